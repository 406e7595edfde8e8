package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/digits"
	"github.com/redrive-mq/redrive/internal/store"
)

// Condition of the service, best first.
type Condition string

const (
	Well      Condition = "ok"
	Attention Condition = "attention" // a person should look, though nothing is broken
	Wrong     Condition = "wrong"
)

func (c Condition) rank() int { return slices.Index([]Condition{Well, Attention, Wrong}, c) }

// Health is whether something is wrong, and what. Page, API and command line show this one answer.
type Health struct {
	State   Condition      `json:"state" enum:"ok,attention,wrong" doc:"wrong: messages are not received, not stored or not retried as they should be; attention: a person should look."`
	Reasons []HealthReason `json:"reasons" doc:"The worst first; empty when the state is ok."`
}

// HealthReason is one thing that is wrong, or that a person should look at.
type HealthReason struct {
	State Condition  `json:"state" enum:"attention,wrong"`
	Kind  string     `json:"kind" enum:"problem,notice,replica,doctor,unreachable,no_consumer,breaker,pause,overdue,parked" doc:"What it is about; from unreachable to overdue it is a queue's."`
	Queue string     `json:"queue,omitempty"`
	Text  string     `json:"text" doc:"Without the queue's name, where it is of one."`
	Since *time.Time `json:"since,omitempty"`
	// waiting orders the reasons of one kind.
	waiting int64
}

const (
	// mostOfAKind is how many queues are named that have the same trouble, and how many others
	// are counted only.
	mostOfAKind = 5
	// overdueAfter is how long after it was due a message is retried at the latest, where nothing
	// holds it back.
	overdueAfter = time.Minute
	// healthFresh is how long an answer about more than MostQueues queues is used again.
	healthFresh = 2 * time.Second
)

// healthCache has the latest answers about very many queues, by what their callers may see.
type healthCache struct {
	mu    sync.Mutex
	known map[string]knownHealth
}

type knownHealth struct {
	Health
	asOf time.Time
}

// Health tells whether something is wrong, as far as the caller may know it. Where the store cannot
// be read, that is among the reasons.
func (in *Inspector) Health(ctx context.Context, by auth.Caller) (Health, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return Health{}, err
	}
	s, err := in.visibleQueues(ctx, by)
	if ctx.Err() != nil {
		return Health{}, ctx.Err()
	}
	return s.health(by, err), nil
}

// health is Health; unread is why the store cannot be read.
func (s *visibleQueues) health(by auth.Caller, unread error) Health {
	if unread != nil || len(s.counts) <= MostQueues {
		return s.healthNow(by, unread)
	}
	whose, now := strings.Join(by.Queues, "\x00"), s.Now()
	s.healths.mu.Lock()
	defer s.healths.mu.Unlock()
	if k, ok := s.healths.known[whose]; ok && now.Sub(k.asOf) < healthFresh && !now.Before(k.asOf) {
		return k.Health
	}
	if s.healths.known == nil || len(s.healths.known) > 100 {
		s.healths.known = map[string]knownHealth{}
	}
	h := s.healthNow(by, nil)
	s.healths.known[whose] = knownHealth{h, now}
	return h
}

func (s *visibleQueues) healthNow(by auth.Caller, unread error) Health {
	var all []HealthReason
	ofQueues := map[string]bool{}
	if unread == nil {
		all = s.troubles(ofQueues)
	}
	problems := s.ProblemsFor(by)
	if unread != nil {
		problems = append(problems, Unread+unread.Error())
	}
	var whole []HealthReason
	for _, p := range problems {
		if !saidOf(ofQueues, p) {
			whole = append(whole, HealthReason{State: Wrong, Kind: "problem", Text: p})
		}
	}
	if len(problems) == 0 && !s.IsReady() {
		whole = append(whole, HealthReason{State: Wrong, Kind: "problem", Text: "the service is not ready"})
	}
	if s.Notices != nil {
		for _, n := range s.Notices() {
			whole = append(whole, HealthReason{State: Attention, Kind: "notice", Text: n})
		}
	}
	whole = append(whole, s.replicaTroubles(by)...)
	whole = append(whole, examinationTroubles(s.examined(by))...)
	return HealthOf(append(whole, all...))
}

// HealthOf is the health that reasons make; it orders them, the worst first.
func HealthOf(reasons []HealthReason) Health {
	h := Health{State: Well, Reasons: reasons}
	if reasons == nil {
		h.Reasons = []HealthReason{}
	}
	slices.SortStableFunc(h.Reasons, func(a, b HealthReason) int { return cmp.Compare(b.State.rank(), a.State.rank()) })
	if len(h.Reasons) > 0 {
		h.State = h.Reasons[0].State
	}
	return h
}

// saidOf tells whether a problem is one of these queues' own, which its reason says already.
func saidOf(queues map[string]bool, problem string) bool {
	for _, part := range []string{PartQueue, PartConsumers} {
		name, ok := strings.CutPrefix(problem, part)
		for at := 0; ok && at < len(name); at++ { // a queue's name may contain anything
			if strings.HasPrefix(name[at:], ": ") && (queues[name[:at]] || len(queues) > mostOfAKind && name[:at] == OtherQueues) {
				return true
			}
		}
	}
	return false
}

// troubles are the reasons that are of queues, a few of each kind; named receives the queues whose
// retries have stopped.
func (s *visibleQueues) troubles(named map[string]bool) []HealthReason {
	byKind, parked := map[string][]HealthReason{}, int64(0)
	for _, n := range s.counts {
		parked += n.Parked
		if r, ok := s.trouble(n); ok {
			r.Queue, r.waiting = n.Queue, n.Waiting
			byKind[r.Kind] = append(byKind[r.Kind], r)
			if r.Kind == "unreachable" || r.Kind == "no_consumer" {
				named[n.Queue] = true
			}
		}
	}
	var all []HealthReason
	for _, kind := range []string{"unreachable", "no_consumer", "breaker", "pause", "overdue"} {
		some := byKind[kind]
		slices.SortStableFunc(some, func(a, b HealthReason) int {
			return cmp.Or(cmp.Compare(b.State.rank(), a.State.rank()), cmp.Compare(b.waiting, a.waiting))
		})
		if more := len(some) - mostOfAKind; more > 1 {
			rest := HealthReason{State: some[mostOfAKind].State, Kind: kind, Text: digits.Group(fmt.Sprint(more)) + map[string]string{
				"unreachable": " more queues cannot be published to", "no_consumer": " more queues have no consumers", "breaker": " more queues have a breaker that holds retries back",
				"pause": " more queues are paused", "overdue": " more queues have overdue messages"}[kind]}
			some = append(some[:mostOfAKind:mostOfAKind], rest)
		}
		all = append(all, some...)
	}
	if parked > 0 {
		text := digits.Group(fmt.Sprint(parked)) + " messages are parked until a person replays or discards them"
		if parked == 1 {
			text = "1 message is parked until a person replays or discards it"
		}
		all = append(all, HealthReason{State: Attention, Kind: "parked", Text: text})
	}
	return all
}

// trouble is the reason why the retries of a queue are held back, if they are.
func (s *visibleQueues) trouble(n store.QueueCount) (r HealthReason, ok bool) {
	if p, paused := s.pauses[n.Queue]; paused {
		r = HealthReason{State: Attention, Kind: "pause", Text: "retries paused by " + p.By, Since: &p.Since}
		if p.Reason != "" {
			r.Text += ": " + p.Reason
		}
		return r, true
	}
	if s.Unreachable != nil {
		if why := s.Unreachable(n.Queue); why != "" {
			return HealthReason{State: Wrong, Kind: "unreachable", Text: "retries stopped: " + why}, true
		}
	}
	var t *ThrottleView
	if s.Throttle != nil {
		t = s.Throttle(n.Queue)
	}
	if f, forced := s.forced[n.Queue]; forced && t != nil {
		t.Forced = &f
	}
	if t.KeepsBack() {
		return heldBack(t), true
	}
	if n.Waiting > 0 && !n.NextDue.IsZero() && s.Now().Sub(n.NextDue) > overdueAfter {
		r = HealthReason{State: Attention, Kind: "overdue", Text: "messages are due and not retried yet", Since: &n.NextDue}
		if limit := t.LimitText(); limit != "" {
			r.Text += ", " + limit
		}
		return r, true
	}
	return r, false
}

// heldBack is the reason of a queue whose throttle keeps messages back.
func heldBack(t *ThrottleView) HealthReason {
	switch {
	case t.NoConsumer != nil:
		return HealthReason{State: Wrong, Kind: "no_consumer", Text: "no consumers: what is due for it waits", Since: t.NoConsumer}
	case t.Forced != nil:
		r := HealthReason{State: Attention, Kind: "breaker", Text: t.Text(), Since: &t.Forced.Since}
		if t.Forced.Reason != "" {
			r.Text += ": " + t.Forced.Reason
		}
		return r
	case t.State == "open":
		return HealthReason{State: Wrong, Kind: "breaker", Text: t.Text(), Since: t.Since}
	}
	return HealthReason{State: Attention, Kind: "breaker", Text: t.Text(), Since: t.Since}
}

// replicaTroubles are those of the other replicas; this one's are its problems.
func (s *visibleQueues) replicaTroubles(by auth.Caller) (all []HealthReason) {
	for _, r := range s.replicasFor(by) {
		switch {
		case r.Self:
		case r.Silent(s.Now()):
			all = append(all, HealthReason{State: Attention, Kind: "replica", Text: "replica " + r.ID + ": not heard of", Since: &r.Beat})
		case !r.Ready:
			all = append(all, HealthReason{State: Attention, Kind: "replica", Text: strings.Join(append([]string{"replica " + r.ID + ": not ready"}, r.Problems[:min(1, len(r.Problems))]...), ": ")})
		}
	}
	return all
}

// examinationTroubles are what the doctor found wrong.
func examinationTroubles(e Examination) (all []HealthReason) {
	n := map[string]int{}
	for _, f := range e.Findings {
		n[f.Status]++
	}
	say := func(state Condition, count int, one, many string) {
		switch {
		case count == 1:
			all = append(all, HealthReason{State: state, Kind: "doctor", Text: "the doctor found 1 " + one, Since: e.At})
		case count > 1:
			all = append(all, HealthReason{State: state, Kind: "doctor", Text: fmt.Sprintf("the doctor found %d %s", count, many), Since: e.At})
		}
	}
	say(Wrong, n["wrong"], "thing wrong", "things wrong")
	say(Attention, n["warning"], "thing to look at", "things to look at")
	if e.Error != "" {
		all = append(all, HealthReason{State: Attention, Kind: "doctor", Text: "the doctor could not look: " + e.Error, Since: e.At})
	}
	return all
}
