// Package throttle limits how many due messages may be retried to their work queue now: no faster than its policy's
// rate, no more at once than in_flight, only a probe to a queue without consumers, and none while its circuit breaker
// is open. It is arithmetic: no IO, no goroutines, and time is passed in.
package throttle

import (
	"container/list"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Rules are a policy's limits on its queues' retries. The zero Rules limit only retries of a queue without consumers.
type Rules struct {
	Rate     float64       // retries per second; 0: no limit
	InFlight int           // messages in flight: retried, not failed again, within Settle; 0: no limit
	Settle   time.Duration // for how long after a retry a failure counts as that retry's; 0: DefaultSettle
	Breaker  *Breaker      // nil: none
	// NoConsumer is PauseWithoutConsumers or "", or RetryWithoutConsumers for queues that are read with basic.get.
	NoConsumer string
	Probes     int           // messages that a queue without consumers holds before retries pause; 0: 1
	NoQueue    time.Duration // for how long messages wait for a queue that does not exist; 0: DefaultNoQueue
}

// String lists the limits, except NoConsumer; "" when there are none.
func (r Rules) String() string {
	var parts []string
	if r.Rate > 0 {
		parts = append(parts, FormatRate(r.Rate))
	}
	if r.InFlight > 0 {
		parts = append(parts, fmt.Sprintf("%d in flight", r.InFlight))
	}
	if r.Breaker != nil {
		parts = append(parts, "breaker")
	}
	return strings.Join(parts, ", ")
}

// FormatRate writes a rate, given per second, in the unit that makes it a whole number.
func FormatRate(r float64) string {
	switch {
	case r == math.Trunc(r):
		return fmt.Sprintf("%g/s", r)
	case math.Abs(r*60-math.Round(r*60)) < 1e-9:
		return fmt.Sprintf("%g/min", math.Round(r*60))
	}
	return fmt.Sprintf("%.4g/h", r*3600)
}

const (
	PauseWithoutConsumers = "pause"
	RetryWithoutConsumers = "retry"
)

const DefaultNoQueue = 5 * time.Minute

const DefaultSettle = 30 * time.Second

// MaxTracked bounds the retried messages of a queue that are remembered at once, and so memory and InFlight.
const MaxTracked = 65_536

// Breaker says when a queue's retries pause: when at least MinRetries of those in the last Window have finished, and
// FailureRatio of these have failed again. A retry has finished when it or, since a queue is nearly in order, a later
// one fails again, or when its settle time is over (Rules.Settle).
type Breaker struct {
	FailureRatio float64 // 0…1
	MinRetries   int
	Window       time.Duration
	// Wait is how long the breaker is open before Probes messages are retried. While these fail, it grows to a
	// twentieth of the time since the breaker first opened, up to MaxWait. Each wait is up to 20 % shorter or longer.
	Wait, MaxWait time.Duration
	Probes        int
	// Ramp is how long the rate rises after no probe has failed again within the settle time.
	Ramp time.Duration
}

func DefaultBreaker() Breaker {
	return Breaker{FailureRatio: 0.5, MinRetries: 20, Window: time.Minute, Wait: 10 * time.Second,
		MaxWait: 2 * time.Minute, Probes: 3, Ramp: time.Minute}
}

type State string

// Closed allows all retries, Open none, HalfOpen as many as Probes says, and Ramp more and more until it is Closed.
const (
	Closed   State = "closed"
	Open     State = "open"
	HalfOpen State = "half-open"
	Ramp     State = "ramp"
)

var States = []State{Closed, Open, HalfOpen, Ramp}

// Transition.To can also be one of these: messages wait for a consumer of the queue, or no longer.
const (
	NoConsumer   State = "no-consumer"
	ConsumerBack State = "consumer-back"
)

// ForceAuto passed to Force lets the breaker decide again.
const ForceAuto = "auto"

type Transition struct {
	Queue      string
	From, To   State // From is "" when To is NoConsumer or ConsumerBack
	At         time.Time
	Reason     string
	By         string    // who forced it; "" when no one did
	Until      time.Time // To is Open: when the first probe is retried; zero: when a person closes it
	OnFollower bool      // this replica does not lead: the leader reports it
}

func (r *Rules) settle() time.Duration {
	if r.Settle <= 0 {
		return DefaultSettle
	}
	return r.Settle
}

func (r *Rules) tracks() bool { return r.InFlight > 0 || r.Breaker != nil }

func (r *Rules) unlimited() bool { return r.Rate <= 0 && !r.tracks() }

const (
	// A queue with nothing to remember is forgotten after forgetIdle, and any queue that no call was about after
	// forgetUnused.
	forgetIdle   = 10 * time.Minute
	forgetUnused = 24 * time.Hour
	sweepEvery   = time.Minute
)

// Throttle limits retries. It is asked before messages are retried, and told what became of them. It is safe for
// concurrent use.
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

// New returns a Throttle. rules returns a queue's rules in force, and random a number in [0, 1); changed receives each
// transition, in order. All three must be quick, and not call the throttle.
func New(rules func(queue string) Rules, random func() float64, changed func(Transition)) *Throttle {
	return &Throttle{rules: rules, random: random, changed: changed, queues: map[string]*queue{}, share: Share{N: 1},
		leads: true}
}

// SetCatchUp sets by how much a caller may be late to call Allow again without losing what a rate allows meanwhile.
func (t *Throttle) SetCatchUp(by time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.catchUp = by
}

// Allow returns how many of the wanted messages may be retried to queue now, and reserves them: report each to Retried
// or NotRetried. If they are fewer than wanted, retryAt is when to ask again; zero: when something has changed.
func (t *Throttle) Allow(queue string, wanted int, now time.Time) (n int, retryAt time.Time) {
	r := t.rules(queue)
	t.mu.Lock()
	defer t.mu.Unlock()
	// If retries wait for consumers, those under way count as soon as RabbitMQ says that there are none.
	if t.queues[queue] == nil && r.unlimited() && r.NoConsumer != PauseWithoutConsumers {
		return wanted, time.Time{}
	}
	q := t.use(queue, r, now)
	q.advance(now)
	n, retryAt, why := q.allowed(wanted, now)
	if n > 0 {
		q.reserve(n, now)
		if n < wanted {
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

// Retried counts allowed messages that RabbitMQ has confirmed, in the order in which they were sent.
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

// Failed counts a message that failed. announce reports whether other replicas need to know: the queue's failures
// matter, and the message is not known as a retry of this throttle.
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

// Consumers sets how many consumers and ready messages queue had when RabbitMQ was asked; n is -1 if not known, which
// pauses no retries. waits reports whether a due message waits for the queue: otherwise nothing is reported as paused.
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
	paused := n == 0 && waits && r.NoConsumer != RetryWithoutConsumers &&
		(was || q.probesLeft(t.currentShare(asked)) <= 0)
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

// Force opens or closes a queue's breaker until a person changes it again, even if its policy has none; ForceAuto lets
// the breaker decide again.
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

// sweep forgets, once a minute, the queues with nothing to remember. The caller holds mu.
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
	q := &queue{throttle: t, name: name, used: now, consumers: -1,
		breaker: breaker{state: Closed, since: now, window: newWindow(DefaultBreaker().Window)}}
	t.queues[name] = q
	return q
}

// setRules applies rules, which change when the config is loaded again.
func (q *queue) setRules(r Rules) {
	was := q.rules.Breaker
	q.rules = r
	if r.Breaker != nil && (was == nil || was.Window != r.Breaker.Window) {
		q.firstCounted = q.nextSeq
		q.window = newWindow(r.Breaker.Window)
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
	Forced     bool      // a person has set State, until a person changes it

	WaitReason  WaitReason // why nothing may be retried just now; never WhyPerson or WhyUnreachable
	Rate        float64    // retries per second that are allowed now, of all replicas; 0: no limit
	MaxInFlight int        // in_flight of its policy; 0: no limit
	// InFlight counts retried messages that may still fail again, if the policy has in_flight or a breaker.
	InFlight         int
	Consumers        int       // -1: not known
	NoConsumersSince time.Time // since when messages wait for a consumer; zero: none does
	Finished         int       // how many of the retries that the breaker counts have finished
	FailedShare      float64   // the part of Finished that failed again, from 0 to 1
}

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
	v := View{State: q.state, Since: q.since, Reason: q.reason, By: q.by, Until: q.until, Forced: q.forced,
		HasBreaker: r.Breaker != nil, Rate: q.rateLimit(now), MaxInFlight: r.InFlight, InFlight: inFlight,
		Consumers: q.consumers, NoConsumersSince: q.noConsumersSince}
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

func (t *Throttle) Queues() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.queues))
}

// WaitReason is why due messages of a queue are not retried just now. Its text is a label of
// the metric redrive_queue_paused; those that are limits are in the API too.
type WaitReason string

// The reasons. The throttle decides all but WhyPerson and WhyUnreachable: a person pauses, and the scheduler finds out
// that RabbitMQ does not accept messages for a queue.
const (
	WhyPerson      WaitReason = "person"
	WhyBreaker     WaitReason = "breaker"
	WhyNoConsumer  WaitReason = "no_consumer"
	WhyRate        WaitReason = "rate"
	WhyInFlight    WaitReason = "in_flight"
	WhyUnreachable WaitReason = "unreachable"
)

// WaitReasons lists all reasons. Page, command line, metrics and alert rules each have a test that walks this list.
var WaitReasons = []WaitReason{WhyPerson, WhyBreaker, WhyNoConsumer, WhyRate, WhyInFlight, WhyUnreachable}

// IsLimit reports whether messages continue to be retried, as fast as the limit allows: people then see a limit, not a
// pause.
func (w WaitReason) IsLimit() bool { return w == WhyRate || w == WhyInFlight }

// Share is the part of all limits that one replica's throttle may use: number I, from 0, of N equal shares. N is 0
// while it has none, and 1 without replicas.
type Share struct {
	N, I  int
	Until time.Time // when the share expires; zero: when it is replaced
}

// of returns this share of total. All shares add up to total.
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

// SetShare sets the throttle's share of rates and in_flight, and reports whether that changes what may be retried.
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

// SetLeads sets whether this throttle decides about the breakers, and allows probes. The others Follow it.
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
	FirstOpened time.Time `json:"first,omitzero"` // when it opened first since it was closed
	Number      int64     `json:"number"`         // identifies the state: each change has another; 0: Closed
}

// noState is the number of no state, so that Follow applies whatever the leader announces next.
const noState = -1

// BreakerStates returns the states of all breakers that are not closed, by queue.
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

// Follow applies what the leader's throttle has decided: all breakers but these are closed. Those that a person has
// forced stay as they are. It does nothing while this throttle leads.
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

// RetryStats counts one replica's latest retries of a queue, for the others. The JSON names must stay: replicas of two
// versions may run together.
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

// reportKept is how long another replica's report counts. Each reports once a second.
const reportKept = 3 * time.Second

// RetryStats returns, by queue, what other replicas need to know about this one's retries.
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

// Receive stores another replica's report about the retries of all its queues.
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

func (q *queue) reports(now time.Time) map[string]replicaReport {
	maps.DeleteFunc(q.others, func(_ string, r replicaReport) bool { return now.Sub(r.at) >= reportKept })
	return q.others
}

// latestOfAll is like latest, for all replicas together.
func (q *queue) latestOfAll(now time.Time) (finished, failed int) {
	finished, failed = q.latest(now)
	for _, report := range q.reports(now) {
		if report.Number == q.stateNumber {
			finished, failed = finished+report.Finished, failed+report.Failed
		}
	}
	return finished, failed
}

type queue struct {
	throttle *Throttle
	name     string
	rules    Rules
	used     time.Time

	reserved int    // allowed, and reported neither to Retried nor to NotRetried yet
	nextSeq  uint64 // of the next retry
	tracked  trackedRetries
	// earlyFailures are failures of messages whose retry RabbitMQ has not confirmed yet: a consumer can be quicker than
	// its answer to us.
	earlyFailures trackedRetries

	bucket
	waiting bool // at the last Allow, more messages waited than there were tokens

	breaker
	others map[string]replicaReport // by replica

	consumers int // -1: not known
	ready     int // messages in the queue when RabbitMQ was asked last
	// probed counts the retries to the queue without consumers that RabbitMQ has confirmed since it was asked; probedAt
	// is when the latest was.
	probed   int
	probedAt time.Time
	// noConsumersSince is since when messages wait for a consumer, a probe being in the queue.
	noConsumersSince time.Time
}

// allowed returns how many messages may be retried now, and if that is fewer than wanted, why and when to ask again.
func (q *queue) allowed(wanted int, now time.Time) (n int, retryAt time.Time, why WaitReason) {
	n = wanted
	limit := func(to int, at time.Time, reason WaitReason) {
		if to = max(to, 0); to < n {
			n, retryAt, why = to, at, reason
		}
	}
	share := q.throttle.currentShare(now)
	if share.N == 0 && !q.rules.unlimited() {
		// Shown as a rate, whatever limits there are. SetShare ends it, and wakes the scheduler.
		limit(0, time.Time{}, WhyRate)
	}
	var oldestFinishes time.Time
	if oldest, ok := q.tracked.oldest(); ok {
		oldestFinishes = oldest.at.Add(q.rules.settle())
	}
	if q.consumers == 0 && q.rules.NoConsumer != RetryWithoutConsumers {
		limit(q.probesLeft(share), time.Time{}, WhyNoConsumer)
	}
	switch {
	case q.state == Open:
		limit(0, q.until, WhyBreaker)
	case q.state == HalfOpen && !q.throttle.leads:
		limit(0, time.Time{}, WhyBreaker) // until Follow says otherwise
	case q.state == HalfOpen && q.rules.Breaker != nil:
		limit(max(q.rules.Breaker.Probes, 1)-int(q.nextSeq-q.firstCounted)-q.reserved, oldestFinishes, WhyBreaker)
	}
	if q.rules.InFlight > 0 && share.N > 0 {
		own, askAgain := q.ownInFlight(share, now)
		if askAgain.IsZero() {
			askAgain = oldestFinishes
		}
		limit(own-q.inFlight(), askAgain, WhyInFlight)
	}
	if n > 0 {
		tokens, at := q.allowedByRate(n, share.N, now)
		limit(tokens, at, WhyRate)
	}
	return n, retryAt, why
}

// probesLeft returns how many messages this replica may retry to a queue without consumers: the policy's probes, for
// which an autoscaler may start one, less what the queue holds.
func (q *queue) probesLeft(share Share) int {
	return share.of(max(q.rules.Probes, 1)) - q.ready - q.probed - q.reserved
}

// ownInFlight returns how many messages this replica may have in flight, and when to ask again if others' reports may
// change that. The leader may use what others leave for probes: its share of a small limit could be 0.
func (q *queue) ownInFlight(share Share, now time.Time) (n int, askAgain time.Time) {
	n = min(q.rules.InFlight, MaxTracked)
	if q.state != HalfOpen || !q.throttle.leads {
		return share.of(n), askAgain
	}
	for _, report := range q.reports(now) {
		n -= report.InFlight
		askAgain = now.Add(time.Second) // each replica reports so often
	}
	return n, askAgain
}

// inFlight returns how many messages are being retried, or were and may still fail again.
func (q *queue) inFlight() int { return len(q.tracked.byID) + q.reserved }

// bucket holds a token for each message that a rate lets through.
type bucket struct {
	rate   float64 // tokens a second; 0: there was no limit at the last call
	tokens float64 // held at the time at
	at     time.Time
}

// burst returns how many tokens a bucket holds at most: those of a tenth of a second. few is how many there must be
// when a caller asks again: a quarter of that, so that a few messages are retried together.
func (b *bucket) burst() (burst, few float64) {
	burst = max(1, math.Ceil(b.rate/10))
	if b.rate >= 2 {
		burst = max(2, burst)
	}
	return burst, max(1, math.Floor(burst/4))
}

// available returns how many tokens there are now. While messages wait for the next one, a late caller loses none, see
// SetCatchUp.
func (q *queue) available(now time.Time) float64 {
	burst, few := q.burst()
	if q.waiting {
		burst = max(burst, few+q.rate*q.throttle.catchUp.Seconds())
	}
	return min(burst, q.tokens+max(0, now.Sub(q.at)).Seconds()*q.rate)
}

// allowedByRate returns how many of the wanted messages this replica's share of the rate allows, and when more.
func (q *queue) allowedByRate(wanted, replicas int, now time.Time) (int, time.Time) {
	limit := q.rateLimit(now) / float64(max(replicas, 1))
	switch {
	case limit <= 0:
		q.bucket = bucket{}
		return wanted, time.Time{}
	case q.rate == 0:
		q.bucket = bucket{limit, 1, now} // one token: a new rate must not begin with a burst
	case q.rate != limit:
		q.bucket = bucket{limit, q.available(now), now}
	}
	_, few := q.burst()
	have := q.available(now)
	few = min(few, float64(wanted))
	return min(wanted, int(have)), now.Add(time.Duration(math.Ceil(max(few-have, 0) / limit * 1e9)))
}

func (q *queue) reserve(n int, now time.Time) {
	q.reserved += n
	if q.rate > 0 {
		q.tokens, q.at = q.available(now)-float64(n), now
	}
}

// unreserve frees n reserved messages that were not retried, and returns their tokens.
func (q *queue) unreserve(n int) {
	q.reserved = max(0, q.reserved-n)
	q.tokens += float64(n)
	q.waiting = false
}

// idle reports whether the queue can be forgotten without a loss.
func (q *queue) idle(now time.Time) bool {
	unused := now.Sub(q.used)
	return !q.forced && q.reserved == 0 && (unused >= forgetUnused ||
		unused >= max(forgetIdle, q.rules.settle()) && q.state == Closed && q.consumers != 0)
}

// trackedRetries holds, in order, the latest retries that may still fail again. Beyond MaxTracked the oldest is
// forgotten. The zero value has none.
type trackedRetries struct {
	byID  map[uuid.UUID]*list.Element
	order list.List // the oldest first; each Value is a trackedRetry
}

type retry struct {
	seq uint64
	at  time.Time
}

type trackedRetry struct {
	id uuid.UUID
	retry
}

func (t *trackedRetries) add(id uuid.UUID, r retry) {
	if t.byID == nil {
		t.byID = map[uuid.UUID]*list.Element{}
	}
	t.remove(id) // a second copy with the same id takes the first's place
	t.byID[id] = t.order.PushBack(trackedRetry{id, r})
	if len(t.byID) > MaxTracked {
		t.removeOldest()
	}
}

func (t *trackedRetries) remove(id uuid.UUID) (retry, bool) {
	e := t.byID[id]
	if e == nil {
		return retry{}, false
	}
	delete(t.byID, id)
	return t.order.Remove(e).(trackedRetry).retry, true
}

func (t *trackedRetries) removeOldest() {
	delete(t.byID, t.order.Remove(t.order.Front()).(trackedRetry).id)
}

// finishBefore removes the retries of that time or before, and returns the sequence number after the last of them.
func (t *trackedRetries) finishBefore(at time.Time) (to uint64) {
	for r, ok := t.oldest(); ok && !r.at.After(at); r, ok = t.oldest() {
		to = r.seq + 1
		t.removeOldest()
	}
	return to
}

func (t *trackedRetries) oldest() (r retry, ok bool) {
	if e := t.order.Front(); e != nil {
		return e.Value.(trackedRetry).retry, true
	}
	return r, false
}

const windowSlots = 30

// window counts the latest retries that failed again, in slots of the time when they were retried.
type window struct {
	slot  time.Duration
	slots [windowSlots]slot
}

type slot struct {
	index  int64  // which slot of all time; 0: never used
	first  uint64 // the first retry in it
	failed int
}

func newWindow(length time.Duration) window { return window{slot: max(length/windowSlots, 1)} }

func (w *window) at(now time.Time) (*slot, int64) {
	n := now.UnixNano() / int64(w.slot)
	return &w.slots[uint64(n)%windowSlots], n
}

func (w *window) retried(r retry) {
	if s, n := w.at(r.at); s.index != n {
		*s = slot{index: n, first: r.seq}
	}
}

func (w *window) failed(r retry) {
	if s, n := w.at(r.at); s.index == n {
		s.failed++
	}
}

// count returns the first retry that is still in the window, and how many failed again. next is the sequence number of
// the next retry.
func (w *window) count(next uint64, now time.Time) (first uint64, failed int) {
	first = next
	_, n := w.at(now)
	for i := range w.slots {
		if s := &w.slots[i]; s.index > n-windowSlots && s.index <= n {
			first = min(first, s.first)
			failed += s.failed
		}
	}
	return first, failed
}

type breaker struct {
	state       State
	since       time.Time
	reason      string
	by          string // who forced it
	forced      bool
	until       time.Time // open: when the first probe is retried
	firstOpened time.Time // when it opened first since it was closed; zero: it is closed
	stateNumber int64     // see BreakerState

	// Sequence numbers (retry.seq). Retries below firstCounted were made before the state began. Those below
	// finishedByFailure have finished because they or a later one failed again, those below finishedByTime because
	// their settle time is over.
	firstCounted, finishedByFailure, finishedByTime uint64

	window window
}

// latest counts the latest retries that have finished, and how many of these failed again.
func (q *queue) latest(now time.Time) (finished, failed int) {
	first, failed := q.window.count(q.nextSeq, now)
	first = max(first, q.firstCounted)
	if to := max(q.finishedByFailure, q.finishedByTime); to > first {
		finished = int(to - first)
	}
	return finished, failed
}

func (q *queue) failedAgain(r retry, now time.Time) {
	b := q.rules.Breaker
	if b == nil || r.seq < q.firstCounted {
		return
	}
	q.finishedByFailure = max(q.finishedByFailure, r.seq+1)
	q.window.failed(r)
	if q.state == HalfOpen && !q.forced && q.throttle.leads {
		q.open(now, "a probe failed again")
		return
	}
	q.openIfFailing(now)
}

// openIfFailing opens the breaker when too many of the latest retries failed again.
func (q *queue) openIfFailing(now time.Time) {
	b := q.rules.Breaker
	if b == nil || q.forced || !q.throttle.leads || q.state != Closed && q.state != Ramp {
		return
	}
	if finished, failed := q.latestOfAll(now); finished >= b.MinRetries &&
		float64(failed) >= b.FailureRatio*float64(finished) {
		q.open(now, fmt.Sprintf("%d of the last %d retries failed again", failed, finished))
	}
}

// waitShare makes an open breaker wait for a twentieth of the time since it first opened: so late it notices the end of
// an outage, and the rarer are its probes.
const waitShare = 20

func (q *queue) open(now time.Time, reason string) {
	b := q.rules.Breaker
	if q.firstOpened.IsZero() {
		q.firstOpened = now
	}
	wait := min(max(b.Wait, now.Sub(q.firstOpened)/waitShare), b.MaxWait)
	q.until = now.Add(time.Duration(float64(wait) * (0.8 + 0.4*q.throttle.random())))
	q.change(Open, now, reason, "")
}

// advance applies the changes that time alone causes.
func (q *queue) advance(now time.Time) {
	q.finishedByTime = max(q.finishedByTime, q.tracked.finishBefore(now.Add(-q.rules.settle())))
	b := q.rules.Breaker
	switch {
	case q.forced:
	case b == nil:
		if q.state != Closed {
			q.change(Closed, now, "its policy has no breaker", "")
		}
	case !q.throttle.leads:
	case q.state == Open && !now.Before(q.until):
		probes := "one probe is sent"
		if b.Probes > 1 {
			probes = fmt.Sprintf("up to %d probes are sent", b.Probes)
		}
		q.change(HalfOpen, now, probes, "")
	case q.state == HalfOpen && q.nextSeq > q.firstCounted && q.finishedByTime >= q.nextSeq && q.reserved == 0:
		q.change(Ramp, now, fmt.Sprintf("no probe failed again within %s", q.rules.settle()), "")
	case q.state == Ramp && now.Sub(q.since) >= b.Ramp:
		q.change(Closed, now, "retries succeed", "")
	}
}

// change begins a state. Retries from before it are not counted in it.
func (q *queue) change(to State, now time.Time, reason, by string) {
	from := q.state
	q.state, q.since, q.reason, q.by = to, now, reason, by
	q.stateNumber = now.UnixMicro()
	if to != Open {
		q.until = time.Time{}
	}
	if to == Closed {
		q.stateNumber, q.firstOpened = 0, time.Time{}
	}
	q.firstCounted = q.nextSeq
	if q.rules.Breaker != nil {
		q.window = newWindow(q.rules.Breaker.Window)
	}
	q.throttle.changed(Transition{Queue: q.name, From: from, To: to, At: now, Reason: reason, By: by, Until: q.until,
		OnFollower: !q.throttle.leads})
}

const (
	rampFrom = 5.0 // retries per second
	// rampDoublings is how often the rate doubles over a ramp that has no rate to rise to.
	rampDoublings = 12
)

// rateLimit returns how many retries per second are allowed to all replicas together; 0: no limit.
func (q *queue) rateLimit(now time.Time) float64 {
	if q.state != Ramp || q.forced || q.rules.Breaker == nil {
		return q.rules.Rate
	}
	done := min(1, max(0, now.Sub(q.since).Seconds()/max(q.rules.Breaker.Ramp.Seconds(), 1e-9)))
	if q.rules.Rate > 0 {
		from := min(rampFrom, q.rules.Rate)
		return from + (q.rules.Rate-from)*done
	}
	return rampFrom * math.Pow(2, rampDoublings*done)
}
