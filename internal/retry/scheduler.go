package retry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	batch      = 512
	batchBytes = 16 << 20
	// InFlight is the most messages that can be claimed and not yet settled. It
	// bounds memory, and how many messages a crash can double. See flights for
	// what one destination may have of it.
	InFlight = 2560
	// inFlightBytes bounds their bodies the same way, but for one batch more.
	inFlightBytes = 32 << 20
	// From largeBody on the memory of a body is freed as soon as RabbitMQ has it: until the
	// next garbage collection the following one would be beside it.
	largeBody = 8 << 20
	// together is how many answered batches are settled in one commit at most.
	together = 32

	// late is by how much the throttle lets the scheduler catch up. On a busy machine it is
	// woken late, and waits for store and RabbitMQ.
	late = 500 * time.Millisecond

	firstRest = 250 * time.Millisecond
	longest   = 15 * time.Second
)

// Giver publishes claims of one lane, as Sender does.
type Giver interface {
	Send(ctx context.Context, queue string, claims []store.Claim) (wait func(context.Context) []Result)
}

// Gate limits how many due messages may be retried to a queue now, as throttle.Gate does.
// What it allows is reported to Unsent or Retried. Forwarded messages do not pass it.
type Gate interface {
	Late(by time.Duration)
	Allow(queue string, most int, now time.Time) (n int, again time.Time)
	Unsent(queue string, n int, now time.Time)
	Retried(queue string, ids []uuid.UUID, now time.Time)
}

// Store is a store with a side table, as the scheduler needs it.
type Store interface {
	store.Store
	Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (more bool, err error)) error
}

// Scheduler publishes due messages, lane by lane. Make one with NewScheduler and call Run
// once.
type Scheduler struct {
	store  Store
	give   Giver
	gate   Gate
	events Listener
	log    *slog.Logger
	report func(lane store.Lane, err error)

	flights  flights
	woken    chan struct{} // something was settled
	troubles troubles
	// served are the lanes that have had their batch of the current round. A round that
	// the limits in flight cut short continues with the others.
	served map[store.Lane]bool

	mu      sync.Mutex
	resting map[store.Lane]rest // lanes that back off
	paused  map[string]bool     // queues whose retries a person has paused, see pause.go
}

type rest struct {
	until time.Time
	tries int
}

// sent is a batch whose answers are awaited.
type sent struct {
	lane   store.Lane
	claims []store.Claim
	wait   func(context.Context) []Result
	fates  []Result // once answered
	filled bool     // the window of its destination
}

// NewScheduler makes a scheduler. report receives why a lane is stuck, and nil when it works
// again; it is called on change only.
func NewScheduler(s Store, g Giver, gate Gate, events Listener, log *slog.Logger, report func(lane store.Lane, err error)) *Scheduler {
	gate.Late(late)
	return &Scheduler{store: s, give: g, gate: gate, events: events, log: log, report: report,
		resting: map[store.Lane]rest{}, paused: map[string]bool{}, served: map[store.Lane]bool{}, woken: make(chan struct{}, 1),
		flights: flights{by: map[store.Lane]*flight{}}, troubles: troubles{since: map[string]time.Time{}}}
}

// Run publishes messages as they come due until ctx ends. Then it waits for the answers to
// what it has published, for grace at most.
//
// This goroutine claims and publishes, in due order. One for each batch waits for RabbitMQ's
// answers, since those of one lane may take long. One settles what was answered. So the next
// batches are under way while others are confirmed or made durable.
func (l *Scheduler) Run(ctx context.Context, grace time.Duration) {
	settleCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	defer stop()

	answered := make(chan sent, together)
	var settler, waiting sync.WaitGroup
	settler.Go(func() {
		for s := range answered {
			l.settle(settleCtx, withWaiting(s, answered))
		}
	})
	defer settler.Wait()
	defer close(answered)
	defer waiting.Wait()
	await := func(s sent) {
		filled, before, after := l.flights.begin(s.lane, len(s.claims), bodies(s.claims))
		s.filled = filled
		waiting.Go(func() {
			defer close(after)
			s.fates = s.wait(settleCtx)
			if before != nil {
				<-before // the gate hears of a queue's returns in the order they were sent
			}
			answered <- s
		})
	}

	l.loadPauses(ctx)
	for away := firstRest; ctx.Err() == nil; {
		wake, err := l.sendDue(ctx, await)
		woken, changed := l.woken, l.store.Changed()
		if err != nil {
			l.failed(ctx, returning, err)
			// Whatever it is woken for, it would ask the store.
			wake, woken, changed = away, nil, nil
			away = min(2*away, longestAway)
		} else if ctx.Err() == nil {
			l.works(returning)
			away = firstRest
		}
		timer := time.NewTimer(wake)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-woken:
		case <-changed:
		}
		timer.Stop()
	}
}

// sendDue claims and sends one batch of each lane that has something due, until
// nothing is, and tells how long there is to wait. One batch a lane and round:
// one with a million due messages holds up no other by more than a batch.
func (l *Scheduler) sendDue(ctx context.Context, await func(sent)) (time.Duration, error) {
	for ctx.Err() == nil {
		next, err := l.store.Next(ctx)
		if err != nil {
			return 0, fmt.Errorf("asking what is due: %w", err)
		}
		slices.SortFunc(next, func(a, b store.NextDue) int { return a.Due.Compare(b.Due) })
		now := time.Now()
		l.flights.sweep(now)
		wake, sentAny := l.forgetRests(next, now), len(l.served) > 0
		for _, n := range next {
			if l.served[n.Lane] {
				continue
			}
			if !n.Forwards() && l.isPaused(n.Queue) {
				continue // until Pause says otherwise, which wakes
			}
			at := n.Due
			if r := l.restUntil(n.Lane); r.After(at) {
				at = r
			}
			if at.After(now) {
				wake = min(wake, at.Sub(now))
				continue
			}
			most, bytes, full := l.flights.room(n.Lane, now)
			if full {
				return longest, nil // until something is settled, which wakes
			}
			if most == 0 {
				continue // the same
			}
			most, again := l.allow(n.Lane, most, now)
			if most == 0 {
				if !again.IsZero() {
					wake = min(wake, max(again.Sub(now), time.Millisecond))
				}
				continue // until then, or until Wake
			}
			claims, err := l.store.Claim(ctx, n.Lane, now, most, bytes)
			l.unsent(n.Lane, most-len(claims), now)
			if err != nil {
				return 0, fmt.Errorf("claiming what is due for queue %q: %w", n.Lane, err)
			}
			if len(claims) == 0 {
				continue
			}
			sentAny, l.served[n.Lane] = true, true
			await(sent{lane: n.Lane, claims: claims, wait: l.give.Send(ctx, n.Queue, claims)})
		}
		clear(l.served)
		if !sentAny {
			return wake, nil
		}
	}
	return 0, nil
}

// allow asks the gate how many may return. What is forwarded waits for no rate, breaker
// or consumer of its work queue.
func (l *Scheduler) allow(lane store.Lane, most int, now time.Time) (n int, again time.Time) {
	if lane.Forwards() {
		return most, time.Time{}
	}
	return l.gate.Allow(lane.Queue, most, now)
}

// unsent tells the gate of what it allowed, and was not returned.
func (l *Scheduler) unsent(lane store.Lane, n int, now time.Time) {
	if !lane.Forwards() {
		l.gate.Unsent(lane.Queue, n, now)
	}
}

// withWaiting adds the batches that were answered meanwhile: a commit with one
// sync serves them all.
func withWaiting(first sent, answered <-chan sent) []sent {
	all := []sent{first}
	for len(all) < together {
		select {
		case s, ok := <-answered:
			if !ok {
				return all
			}
			all = append(all, s)
		default:
			return all
		}
	}
	return all
}

// settle ends the claims of batches that were answered: what RabbitMQ
// confirmed is deleted, what can never return is parked, the rest goes on
// waiting while its lane rests.
func (l *Scheduler) settle(ctx context.Context, batches []sent) {
	now := time.Now()
	var outcomes []store.Outcome
	var back []store.Claim
	obstacles := make([]error, len(batches))
	for i, s := range batches {
		var obstacle error
		for j, f := range s.fates {
			switch {
			case f.Done:
				outcomes = append(outcomes, store.Outcome{Claim: s.claims[j], At: now})
			case f.Park != "":
				outcomes = append(outcomes, store.Outcome{Claim: s.claims[j], Park: f.Park, At: now})
			default:
				back = append(back, s.claims[j])
				if obstacle == nil || errors.Is(obstacle, Again) {
					obstacle = f.Err
				}
			}
		}
		l.tell(s, now)
		l.rest(s.lane, obstacle)
		obstacles[i] = obstacle
	}
	if len(outcomes) > 0 {
		l.untilDone(ctx, settling, func() error { _, err := l.store.Settle(ctx, outcomes); return err })
	}
	for _, o := range outcomes {
		if r := o.Claim.Record; o.Park != "" {
			l.events(Event{Kind: Parked, At: o.At, Queue: r.Queue, ID: r.ID, Attempt: r.Attempt, Reason: r.Reason, Why: o.Park})
		}
	}
	if len(back) > 0 {
		l.untilDone(ctx, settling, func() error { return l.store.Release(ctx, back) })
	}
	large := false
	for i, s := range batches {
		large = large || slices.ContainsFunc(s.claims, func(c store.Claim) bool { return len(c.Record.Message.Body) >= largeBody })
		l.flights.end(&s, obstacles[i] == nil)
		batches[i] = sent{}
	}
	if large {
		outcomes, back = nil, nil
		debug.FreeOSMemory()
	}
	l.Wake()
}

// tell the gate what became of a batch it has allowed.
func (l *Scheduler) tell(s sent, now time.Time) {
	if s.lane.Forwards() {
		return
	}
	ids := make([]uuid.UUID, 0, len(s.claims))
	for i, f := range s.fates {
		if r := s.claims[i].Record; f.Done && r.Forward == nil {
			ids = append(ids, r.ID)
		}
	}
	l.gate.Retried(s.lane.Queue, ids, now)
	l.gate.Unsent(s.lane.Queue, len(s.claims)-len(ids), now)
}

// Wake makes the loop ask the gate again: more may return than it said last.
func (l *Scheduler) Wake() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

func bodies(claims []store.Claim) (n int) {
	for _, c := range claims {
		n += len(c.Record.Message.Body)
	}
	return n
}

// rest keeps a lane's messages waiting after an obstacle, longer each time, and
// forgets it when a batch went through.
func (l *Scheduler) rest(lane store.Lane, obstacle error) {
	l.mu.Lock()
	r, was := l.resting[lane]
	switch {
	case obstacle == nil:
		delete(l.resting, lane)
	case errors.Is(obstacle, Again) && r.tries == 0:
		// Bound again: at once, but only once, or a queue that is bound and yet
		// unroutable would spin.
		l.resting[lane] = rest{until: time.Now(), tries: 1}
	case errors.Is(obstacle, ErrAsked): // the answer is on its way
		l.resting[lane] = rest{until: time.Now().Add(firstRest << min(r.tries, 2)), tries: r.tries + 1}
	default:
		l.resting[lane] = rest{until: time.Now().Add(min(firstRest<<min(r.tries, 16), longest)), tries: r.tries + 1}
	}
	l.mu.Unlock()
	if obstacle == nil && !was || errors.Is(obstacle, Again) || errors.Is(obstacle, ErrAsked) || errors.Is(obstacle, context.Canceled) {
		return
	}
	l.report(lane, obstacle)
}

func (l *Scheduler) restUntil(lane store.Lane) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.resting[lane].until
}
