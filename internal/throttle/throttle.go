package throttle

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// forgetIdle is how long a queue with nothing to remember is remembered, and forgetUnused any
	// queue that no call was about.
	forgetIdle   = 10 * time.Minute
	forgetUnused = 24 * time.Hour
	// sweepEvery is how often they are looked for.
	sweepEvery = time.Minute
)

// Throttle is called before messages are retried, and learns what became of them. It is safe
// for concurrent use.
type Throttle struct {
	rules   func(queue string) Rules
	random  func() float64
	changed func(Transition)

	mu      sync.Mutex
	queues  map[string]*queue
	swept   time.Time
	share   Share
	leads   bool
	catchUp time.Duration
}

// New makes a throttle. rules returns a queue's rules in force, and random a number in [0, 1);
// changed receives each transition, in their order. All three must be quick, and not call the
// throttle.
func New(rules func(queue string) Rules, random func() float64, changed func(Transition)) *Throttle {
	return &Throttle{rules: rules, random: random, changed: changed, queues: map[string]*queue{}, share: Share{N: 1}, leads: true}
}

// SetCatchUp sets by how much a caller may be late to call Allow again. What a rate allows in
// that time is not lost: the next call allows it at once.
func (t *Throttle) SetCatchUp(by time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.catchUp = by
}

// Allow says how many messages, most at most, may be retried to queue now, and reserves
// them: each is then reported to Retried or NotRetried. If they are fewer than most, retryAt
// is when to ask again; zero: when another method has changed something.
func (t *Throttle) Allow(queue string, most int, now time.Time) (n int, retryAt time.Time) {
	r := t.rules(queue)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queues[queue] == nil && r.unlimited() {
		return most, time.Time{}
	}
	q := t.use(queue, r, now)
	q.advance(now)
	n, retryAt, why := q.allowed(most, now)
	if n > 0 {
		q.reserve(n, now)
		if n < most {
			_, retryAt, why = q.allowed(1, now)
		}
	}
	q.waiting = why == WhyRate && !retryAt.IsZero()
	return n, retryAt
}

// NotRetried frees n messages that were allowed and not published, or not confirmed.
func (t *Throttle) NotRetried(queue string, n int, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.queues[queue]; q != nil && n > 0 {
		q.unreserve(n)
		q.advance(now)
	}
}

// Retried counts allowed messages that RabbitMQ has confirmed, in the order in
// which they were sent.
func (t *Throttle) Retried(queue string, ids []uuid.UUID, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[queue]
	if q == nil {
		return
	}
	q.used = now
	q.reserved = max(0, q.reserved-len(ids))
	if q.consumers == 0 && len(ids) > 0 {
		q.probed, q.probedAt = q.probed+len(ids), now
	}
	if q.rules.tracks() {
		q.advance(now)
		for _, id := range ids {
			r := retry{q.nextSeq, now}
			q.nextSeq++
			q.window.retried(r)
			if _, failed := q.earlyFailures.remove(id); failed {
				q.failedAgain(r, now)
			} else {
				q.tracked.add(id, r)
			}
		}
	}
	if q.reserved == 0 {
		q.earlyFailures = trackedRetries{}
	}
}

// Failed counts a message that failed. announce tells that the queue's failures matter and
// that this message is not known as a retry of this throttle: other replicas need to know.
func (t *Throttle) Failed(queue string, id uuid.UUID, now time.Time) (announce bool) {
	r := t.rules(queue)
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[queue]
	if q == nil || !q.rules.tracks() {
		return r.tracks()
	}
	q.advance(now)
	if r, ok := q.tracked.remove(id); ok {
		q.failedAgain(r, now)
		return false
	}
	if q.reserved > 0 {
		q.earlyFailures.finishBefore(now.Add(-q.rules.settle()))
		q.earlyFailures.add(id, retry{at: now})
	}
	return true
}

// Consumers sets how many consumers and ready messages queue had when RabbitMQ was asked at a time;
// -1 consumers: not known, so no retries are paused for lack of them. waits tells whether a due
// message waits for the queue: otherwise nothing is reported as paused.
func (t *Throttle) Consumers(queue string, n, ready int, waits bool, asked time.Time) {
	r := t.rules(queue)
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.use(queue, r, asked)
	q.consumers, q.ready = n, ready
	if asked.After(q.probedAt) {
		q.probed = 0
	}
	was := !q.noConsumersSince.IsZero()
	paused := n == 0 && waits && r.NoConsumer != RetryWithoutConsumers && (was || q.probesLeft(t.currentShare(asked)) <= 0)
	switch {
	case paused && !was:
		q.noConsumersSince = asked
		t.changed(Transition{Queue: queue, To: NoConsumer, At: asked, Reason: "the queue has no consumers"})
	case !paused && was:
		q.noConsumersSince = time.Time{}
		why := fmt.Sprintf("consumers of the queue: %d", n)
		switch {
		case n > 0:
		case r.NoConsumer == RetryWithoutConsumers:
			why = "its policy retries without consumers"
		case n == 0:
			why = "no message waits for a consumer"
		default:
			why = "it is not known any more whether the queue has consumers"
		}
		t.changed(Transition{Queue: queue, To: ConsumerBack, At: asked, Reason: why})
	}
}

// Force opens or closes a queue's breaker until a person changes it again, whether its policy
// has one or not; ForceAuto lets the breaker decide again.
func (t *Throttle) Force(queue, to, by, reason string, now time.Time) error {
	if to != string(Open) && to != string(Closed) && to != ForceAuto {
		return fmt.Errorf("a breaker cannot be %q; expected open, closed or auto", to)
	}
	if queue == "" {
		return fmt.Errorf("the breaker of which queue?")
	}
	r := t.rules(queue)
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.use(queue, r, now)
	q.firstOpened = time.Time{}
	switch {
	case to != ForceAuto:
		q.forced, q.until = true, time.Time{}
		q.change(State(to), now, reason, by)
	case !q.forced:
		return nil
	case !t.leads: // Follow sets its state then
		q.forced, q.stateNumber = false, noState
	default:
		state := Closed
		if q.state == Open && q.rules.Breaker != nil {
			state = HalfOpen // it is not known whether retries succeed
		}
		q.forced = false
		q.change(state, now, reason, by)
	}
	return nil
}

// sweep forgets, once a minute, the queues of which there is nothing to remember. The
// caller holds mu.
func (t *Throttle) sweep(now time.Time) {
	if now.Sub(t.swept) < sweepEvery {
		return
	}
	t.swept = now
	for name, q := range t.queues {
		if q.idle(now) {
			if q.state != Closed {
				q.change(Closed, now, "nothing was retried for a day", "")
			}
			delete(t.queues, name)
		}
	}
}

// use returns a queue with rules applied, and remembers it.
func (t *Throttle) use(name string, r Rules, now time.Time) *queue {
	q := t.queues[name]
	if q == nil {
		q = t.add(name, now)
	}
	q.setRules(r)
	q.used = now
	return q
}

func (t *Throttle) add(name string, now time.Time) *queue {
	t.sweep(now)
	q := &queue{throttle: t, name: name, used: now, consumers: -1, breaker: breaker{state: Closed, since: now}}
	q.window.reset(DefaultBreaker().Window)
	t.queues[name] = q
	return q
}

// setRules applies rules; they differ after the config was loaded again.
func (q *queue) setRules(r Rules) {
	was := q.rules.Breaker
	q.rules = r
	if r.Breaker != nil && (was == nil || was.Window != r.Breaker.Window) {
		q.firstCounted = q.nextSeq
		q.window.reset(r.Breaker.Window)
	}
	if !r.tracks() && q.tracked.byID != nil {
		q.tracked, q.earlyFailures = trackedRetries{}, trackedRetries{}
	}
}

// View is a queue's state for people and metrics.
type View struct {
	// The breaker. Without one in the policy it is closed, unless a person has forced it.
	HasBreaker bool // the policy has one
	State      State
	Since      time.Time
	Reason     string
	By         string    // who forced it
	Until      time.Time // open: when the first probe is retried
	Forced     bool      // a person has set State; it stays until a person changes it

	WaitReason  WaitReason // why nothing may be retried just now; never WhyPerson or WhyUnreachable
	Rate        float64    // retries per second that are allowed now, of all replicas; 0: no limit
	MaxInFlight int        // in_flight of its policy; 0: no limit
	// InFlight are retried messages that may still fail again. They are counted only where the
	// policy has in_flight or a breaker.
	InFlight         int
	Consumers        int       // -1: not known
	NoConsumersSince time.Time // since when messages wait for a consumer; zero: none does
	Finished         int       // how many of the retries that the breaker counts have finished
	FailedShare      float64   // how much of Finished failed again, from 0 to 1
}

// View returns the state of a queue.
func (t *Throttle) View(queue string, now time.Time) View {
	r := t.rules(queue)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep(now)
	q := t.queues[queue]
	if q == nil {
		return View{State: Closed, HasBreaker: r.Breaker != nil, Rate: r.Rate, MaxInFlight: r.InFlight, Consumers: -1}
	}
	q.setRules(r)
	q.advance(now)
	inFlight := q.inFlight()
	for _, report := range q.reports(now) {
		inFlight += report.InFlight
	}
	v := View{State: q.state, Since: q.since, Reason: q.reason, By: q.by, Until: q.until, Forced: q.forced, HasBreaker: r.Breaker != nil,
		Rate: q.rateLimit(now), MaxInFlight: r.InFlight, InFlight: inFlight, Consumers: q.consumers, NoConsumersSince: q.noConsumersSince}
	n, _, why := q.allowed(1, now)
	switch waits := !q.noConsumersSince.IsZero(); {
	case n == 0 && (why != WhyNoConsumer || waits):
		v.WaitReason = why
	case waits: // between two probes
		v.WaitReason = WhyNoConsumer
	}
	var failed int
	if v.Finished, failed = q.latestOfAll(now); v.Finished > 0 {
		v.FailedShare = float64(failed) / float64(v.Finished)
	}
	return v
}

// Queues returns the queues that the throttle remembers.
func (t *Throttle) Queues() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]string, 0, len(t.queues))
	for name := range t.queues {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// WaitReason is why due messages of a queue are not retried just now. Its text is a label of
// the metric redrive_queue_paused; those that are limits are in the API too.
type WaitReason string

// The reasons. The throttle decides WhyBreaker, WhyNoConsumer, WhyRate and WhyInFlight. A person
// pauses by page, API or command line (WhyPerson), and the scheduler finds out that RabbitMQ does
// not accept messages for a queue (WhyUnreachable).
const (
	WhyPerson      WaitReason = "person"
	WhyBreaker     WaitReason = "breaker"
	WhyNoConsumer  WaitReason = "no_consumer"
	WhyRate        WaitReason = "rate"
	WhyInFlight    WaitReason = "in_flight"
	WhyUnreachable WaitReason = "unreachable"
)

// WaitReasons lists all of them. Page, command line, metrics and alert rules each have a test
// that walks this list.
var WaitReasons = []WaitReason{WhyPerson, WhyBreaker, WhyNoConsumer, WhyRate, WhyInFlight, WhyUnreachable}

// IsLimit tells whether messages continue to be retried, as fast as the limit allows, so that
// people are shown a limit and no pause.
func (w WaitReason) IsLimit() bool { return w == WhyRate || w == WhyInFlight }

// Share is how much of all limits one replica's throttle may use: the I-th of N shares, from
// 0 on. N is 0 while it has none. Without replicas N is 1.
type Share struct {
	N, I int
	// Until is when the share expires; zero: when it is replaced.
	Until time.Time
}

// of returns this share of a whole number; the shares of all add up to it.
func (s Share) of(total int) int {
	if s.N <= 0 {
		return 0
	}
	share := total / s.N
	if s.I < total%s.N {
		share++
	}
	return share
}

// SetShare sets the throttle's share of rates and in_flight. It returns whether that changes
// what may be retried, so that the caller asks again.
func (t *Throttle) SetShare(share Share, now time.Time) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.currentShare(now)
	t.share = share
	is := t.currentShare(now)
	return was.N != is.N || was.I != is.I
}

// currentShare returns the share, or none if it has expired.
func (t *Throttle) currentShare(now time.Time) Share {
	if !t.share.Until.IsZero() && !now.Before(t.share.Until) {
		return Share{}
	}
	return t.share
}

// SetLeads sets whether this throttle decides about the breakers, and allows the probes of those
// that are half-open. Other throttles follow it: see Follow.
func (t *Throttle) SetLeads(leads bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leads = leads
}

// BreakerState is the state of a breaker, as the leader's throttle announces it.
type BreakerState struct {
	State       State     `json:"state"`
	Since       time.Time `json:"since"`
	Until       time.Time `json:"until,omitzero"`
	Reason      string    `json:"why,omitempty"`
	By          string    `json:"by,omitempty"`
	FirstOpened time.Time `json:"first,omitzero"` // when it opened first, and has not been closed since
	Number      int64     `json:"number"`         // identifies the state: each change has another
}

// noState is the number of no state: whatever the leader announces next is applied.
const noState = -1

// newStateNumber returns the number of a state that begins: 0 for Closed, which needs no
// BreakerState.
func newStateNumber(s State, since time.Time) int64 {
	if s == Closed {
		return 0
	}
	return since.UnixMicro()
}

// BreakerStates returns those of all breakers that are not closed, by queue.
func (t *Throttle) BreakerStates(now time.Time) map[string]BreakerState {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[string]BreakerState{}
	for name, q := range t.queues {
		q.advance(now)
		if q.state != Closed {
			all[name] = BreakerState{q.state, q.since, q.until, q.reason, q.by, q.firstOpened, q.stateNumber}
		}
	}
	return all
}

// Follow applies what the leader's throttle has decided: all breakers but these are
// closed. Those that a person has forced stay as they are. It does nothing while this
// throttle leads.
func (t *Throttle) Follow(all map[string]BreakerState, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leads {
		return
	}
	for name := range all {
		if t.queues[name] == nil {
			t.add(name, now)
		}
	}
	for name, q := range t.queues {
		is, decided := all[name]
		if !decided {
			is = BreakerState{State: Closed, Since: now, Reason: "retries succeed"}
		}
		if q.forced || q.stateNumber == is.Number {
			continue
		}
		q.setRules(t.rules(name))
		q.until = is.Until
		if q.state != is.State || decided {
			q.change(is.State, now, is.Reason, is.By)
		}
		q.since, q.until, q.firstOpened, q.stateNumber = is.Since, is.Until, is.FirstOpened, is.Number
	}
}

// RetryStats counts one replica's latest retries of a queue, for the others: the JSON names stay,
// since replicas of two versions may run together.
type RetryStats struct {
	// Number is BreakerState.Number: retries from before the state are not counted.
	Number   int64 `json:"number,omitempty"`
	Finished int   `json:"ended,omitempty"`
	Failed   int   `json:"failed,omitempty"` // how many of Finished failed again
	InFlight int   `json:"flight,omitempty"`
}

type replicaReport struct {
	RetryStats
	at time.Time
}

// reportKept is how long a report of another replica counts: each reports once a second.
const reportKept = 3 * time.Second

// RetryStats returns what the other replicas need to know about the retries from here, by
// queue.
func (t *Throttle) RetryStats(now time.Time) map[string]RetryStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[string]RetryStats{}
	for name, q := range t.queues {
		if !q.rules.tracks() {
			continue
		}
		q.advance(now)
		report := RetryStats{Number: q.stateNumber, InFlight: q.inFlight()}
		report.Finished, report.Failed = q.latest(now)
		if report.InFlight > 0 || report.Finished > 0 {
			all[name] = report
		}
	}
	return all
}

// Receive stores the report of another replica about its retries, of all queues that have
// any.
func (t *Throttle) Receive(replica string, all map[string]RetryStats, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, report := range all {
		q := t.use(name, t.rules(name), now)
		if q.others == nil {
			q.others = map[string]replicaReport{}
		}
		q.others[replica] = replicaReport{report, now}
		q.advance(now)
		q.openIfFailing(now)
	}
	for name, q := range t.queues {
		if _, reported := all[name]; !reported {
			delete(q.others, replica)
		}
	}
}

// reports returns the latest reports of other replicas.
func (q *queue) reports(now time.Time) map[string]replicaReport {
	for replica, report := range q.others {
		if now.Sub(report.at) >= reportKept {
			delete(q.others, replica)
		}
	}
	return q.others
}

// latestOfAll is latest, of all replicas together.
func (q *queue) latestOfAll(now time.Time) (finished, failed int) {
	finished, failed = q.latest(now)
	for _, report := range q.reports(now) {
		if report.Number == q.stateNumber {
			finished, failed = finished+report.Finished, failed+report.Failed
		}
	}
	return finished, failed
}
