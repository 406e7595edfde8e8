package throttle

import (
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// forgetAfter is how long a queue is remembered of which there is nothing to
	// remember, and forgetAtLast one that was not asked about for so long.
	forgetAfter  = 10 * time.Minute
	forgetAtLast = 24 * time.Hour
	// sweepEvery is how often they are looked for.
	sweepEvery = time.Minute
)

// Gate is called before messages are retried, and learns what became of them. Safe for
// concurrent use.
type Gate struct {
	rules   func(queue string) Rules
	random  func() float64
	changed func(Transition)

	mu     sync.Mutex
	queues map[string]*queue
	swept  time.Time
	part   Part
	leads  bool
	late   time.Duration
}

// New makes a gate. rules returns those in force; random is in [0, 1); changed receives
// of each change, in their order, and must be quick and not call the gate.
func New(rules func(queue string) Rules, random func() float64, changed func(Transition)) *Gate {
	return &Gate{rules: rules, random: random, changed: changed, queues: map[string]*queue{}, part: Part{N: 1}, leads: true}
}

// Late says by how much a caller can be late who asks Allow again when that has said. What
// a rate lets through in that time is not lost: it goes at once when the caller asks.
func (g *Gate) Late(by time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.late = by
}

// Allow says how many messages, most at most, may be retried to queue now, and reserves
// them: each is then told to Retried or Unsent. If they are fewer than most, again
// is when to ask again; when that is zero, nothing may go before something happens.
func (g *Gate) Allow(queue string, most int, now time.Time) (n int, again time.Time) {
	r := g.rules(queue)
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[queue]
	if q == nil {
		if r.plain() {
			return most, time.Time{}
		}
		q = g.add(queue, now)
	}
	q.ruled(r)
	q.used = now
	q.advance(now)
	n, again, why := q.room(most, now)
	if n > 0 {
		q.reserve(n, now)
		if n < most {
			_, again, why = q.room(1, now)
		}
	}
	q.short = why == WhyRate && !again.IsZero()
	return n, again
}

// Unsent takes back n that were allowed, and not published, or not confirmed.
func (g *Gate) Unsent(queue string, n int, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[queue]; q != nil && n > 0 {
		q.unsent(n)
		q.advance(now)
	}
}

// Retried counts allowed messages that RabbitMQ has confirmed, in the order in
// which they were sent.
func (g *Gate) Retried(queue string, ids []uuid.UUID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[queue]
	if q == nil {
		return
	}
	q.used = now
	q.reserved = max(0, q.reserved-len(ids))
	if q.rules.tracks() {
		q.advance(now)
		for _, id := range ids {
			r := returned{q.next, now}
			q.next++
			q.window.returned(r)
			if _, failed := q.early.take(id); failed {
				q.failedAgain(r, now)
			} else {
				q.flight.add(id, r)
			}
		}
	}
	if q.reserved == 0 {
		q.early = flight{}
	}
}

// Failed counts each message that failed, also those that were never
// retried: these are not counted. elsewhere says that the queue's failures matter,
// and this one was not retried by this gate: other replicas need to know.
func (g *Gate) Failed(queue string, id uuid.UUID, now time.Time) (elsewhere bool) {
	r := g.rules(queue)
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[queue]
	if q == nil || !q.rules.tracks() {
		return r.tracks()
	}
	q.advance(now)
	if r, ok := q.flight.take(id); ok {
		q.failedAgain(r, now)
		return false
	}
	if q.reserved > 0 {
		q.early.quiet(now.Add(-q.rules.settle()))
		q.early.add(id, returned{at: now})
	}
	return true
}

// Consumers sets how many consumers RabbitMQ says that queue has; -1: not known,
// so no retries are paused for lack of them.
func (g *Gate) Consumers(queue string, n int, now time.Time) {
	r := g.rules(queue)
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[queue]
	if q == nil {
		q = g.add(queue, now)
	}
	q.ruled(r)
	q.consumers, q.used = n, now
	held := n == 0 && q.rules.NoConsumer != Retry
	switch was := !q.noneSince.IsZero(); {
	case held && !was:
		q.noneSince = now
		g.changed(Transition{Queue: queue, To: NoConsumer, At: now, Why: "the queue has no consumers"})
	case !held && was:
		q.noneSince = time.Time{}
		why := fmt.Sprintf("consumers of the queue: %d", n)
		switch {
		case n < 0:
			why = "it is not known any more whether the queue has consumers"
		case n == 0:
			why = "its policy retries without consumers"
		}
		g.changed(Transition{Queue: queue, To: ConsumerBack, At: now, Why: why})
	}
}

// Force opens or closes a queue's breaker until a person says otherwise, whether its
// policy has one or not; "auto" lets it decide again.
func (g *Gate) Force(queue, to, by, why string, now time.Time) error {
	if to != string(Open) && to != string(Closed) && to != Auto {
		return fmt.Errorf("a breaker cannot be %q; expected open, closed or auto", to)
	}
	if queue == "" {
		return fmt.Errorf("the breaker of which queue?")
	}
	r := g.rules(queue)
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[queue]
	if q == nil {
		q = g.add(queue, now)
	}
	q.ruled(r)
	q.used, q.first = now, time.Time{}
	switch {
	case to != Auto:
		q.forced, q.until = true, time.Time{}
		q.change(State(to), now, why, by)
	case !q.forced:
		return nil
	case !g.leads: // what it is then, Follow says
		q.forced, q.number = false, undecided
	default:
		state := Closed
		if q.state == Open && q.rules.Breaker != nil {
			state = HalfOpen // it is not known how the queue's consumers are
		}
		q.forced = false
		q.change(state, now, why, by)
	}
	return nil
}

// sweep forgets, once a minute, the queues of which there is nothing to remember. The
// caller holds mu.
func (g *Gate) sweep(now time.Time) {
	if now.Sub(g.swept) < sweepEvery {
		return
	}
	g.swept = now
	for name, q := range g.queues {
		if q.idle(now) {
			delete(g.queues, name)
		}
	}
}

func (g *Gate) add(name string, now time.Time) *queue {
	g.sweep(now)
	q := &queue{gate: g, name: name, used: now, consumers: -1, breaker: breaker{state: Closed, since: now}}
	q.window.reset(DefaultBreaker().Window)
	g.queues[name] = q
	return q
}

// ruled puts rules in force; they differ after the config was loaded again.
func (q *queue) ruled(r Rules) {
	was := q.rules.Breaker
	q.rules = r
	if r.Breaker != nil && (was == nil || was.Window != r.Breaker.Window) {
		q.base = q.next
		q.window.reset(r.Breaker.Window)
	}
	if !r.tracks() && q.flight.out != nil {
		q.flight, q.early = flight{}, flight{}
	}
}
