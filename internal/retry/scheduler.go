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

	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	maxBatch   = 512
	batchBytes = 16 << 20
	// MaxClaimed is the most messages that can be claimed and not yet finished. It
	// bounds memory, and how many messages a crash can duplicate. See claimed for
	// what one destination may have of it.
	MaxClaimed = 2560
	// maxClaimedBytes bounds their bodies the same way; it is exceeded by at most one batch.
	maxClaimedBytes = 32 << 20
	// largeBody is the size from which the memory of a body is freed as soon as RabbitMQ has
	// it: until the next garbage collection the following one would be beside it.
	largeBody = 8 << 20
	// maxFinished is how many answered batches are finished in one commit at most.
	maxFinished = 32

	// catchUp is how much of a rate the throttle lets the scheduler catch up on. On a busy
	// machine it wakes late, and it waits for store and RabbitMQ.
	catchUp = 500 * time.Millisecond

	// unansweredAfter is how long RabbitMQ may take to answer a batch before its lane counts as
	// unreachable: more than a queue takes to elect a leader.
	unansweredAfter = 30 * time.Second
)

// ErrUnanswered is reported of a lane whose messages RabbitMQ has, and neither confirms nor
// refuses: the leader of its queue hangs, say. They stay with RabbitMQ, since sending them
// again would duplicate them.
var ErrUnanswered = fmt.Errorf("RabbitMQ has not confirmed for %s what was published to it", unansweredAfter)

// BatchSender publishes claims of one lane, as Sender does. wait returns their results. While
// a queue is being bound, Send cannot publish to it.
type BatchSender interface {
	IsBinding(queue string) bool
	Send(ctx context.Context, queue string, claims []store.Claim) (wait func(context.Context) []Result)
}

// Throttle limits how many due messages may be retried to a queue now, as throttle.Throttle
// does. Where Allow allows fewer than most, retryAt is when to ask again.
// What it allows is reported to NotRetried or Retried. Forwarded messages do not pass it.
type Throttle interface {
	SetCatchUp(by time.Duration)
	Allow(queue string, most int, now time.Time) (n int, retryAt time.Time)
	NotRetried(queue string, n int, now time.Time)
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
	store    Store
	sender   BatchSender
	throttle Throttle
	events   Listener
	log      *slog.Logger
	report   func(lane store.Lane, err error)

	claimed  claimed
	woken    Wakeup
	troubles storeTroubles
	// served are the lanes that have had their batch of the current round. A round that
	// the limits of claimed cut short continues with the others.
	served map[store.Lane]bool

	// pausing is held while pauses change, also while they are read from the store: mu is not, or who
	// only asks for them would wait for the store.
	pausing  *semaphore.Weighted
	mu       sync.Mutex
	backoffs map[store.Lane]backoff // of unreachable lanes
	paused   map[string]bool        // queues whose retries a person has paused, see pause.go
}

// sentBatch is a batch that was published, and whose claims are not finished yet.
type sentBatch struct {
	lane     store.Lane
	claims   []store.Claim
	wait     func(context.Context) []Result
	results  []Result // once RabbitMQ has answered
	halfFull bool     // with it at least half of its destination's window was in use, see claimed.go
}

// NewScheduler makes a scheduler. report receives why a lane is unreachable, each time that it was
// tried, and nil once when it is reachable again; it is called by several goroutines.
func NewScheduler(s Store, sender BatchSender, throttle Throttle, wake Wakeup, events Listener, log *slog.Logger, report func(lane store.Lane, err error)) *Scheduler {
	throttle.SetCatchUp(catchUp)
	return &Scheduler{store: s, sender: sender, throttle: throttle, events: events, log: log, report: report,
		backoffs: map[store.Lane]backoff{}, paused: map[string]bool{}, served: map[store.Lane]bool{}, woken: wake, pausing: semaphore.NewWeighted(1),
		claimed: claimed{perDestination: map[store.Lane]*laneWindow{}}, troubles: storeTroubles{since: map[string]time.Time{}}}
}

// Run publishes messages as they come due until ctx ends. Then it waits for the answers to
// what it has published, for grace at most.
//
// This goroutine claims and publishes, in due order. One for each batch waits for RabbitMQ's
// answers, since those of one lane may take long. One finishes the claims that were answered. So
// the next batches are under way while others are confirmed or made durable.
func (s *Scheduler) Run(ctx context.Context, grace time.Duration) {
	finishCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	defer stop()

	answered := make(chan sentBatch, maxFinished)
	var finisher, waiting sync.WaitGroup
	finisher.Go(func() {
		for b := range answered {
			s.finishClaims(finishCtx, withAnswered(b, answered))
		}
	})
	defer finisher.Wait()
	defer close(answered)
	defer waiting.Wait()
	await := func(b sentBatch) {
		halfFull, previous, passedOn := s.claimed.begin(b.lane, len(b.claims), bodies(b.claims))
		b.halfFull = halfFull
		waiting.Go(func() {
			defer close(passedOn)
			b.results = s.waitAndReport(finishCtx, b)
			if previous != nil {
				<-previous // the throttle receives a queue's retries in the order they were sent
			}
			answered <- b
		})
	}

	s.loadPauses(ctx)
	for storeWait := minBackoff; ctx.Err() == nil; {
		wake, err := s.sendDue(ctx, await)
		woken, changed := s.woken, s.store.Changed()
		if err != nil {
			s.storeFailed(ctx, retryingDue, err)
			// Only the store can be waited for: waking up could do nothing else.
			wake, woken, changed = storeWait, nil, nil
			storeWait = min(2*storeWait, maxStoreWait)
		} else if ctx.Err() == nil {
			s.storeWorks(retryingDue)
			storeWait = minBackoff
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

// waitAndReport waits for the results of a batch, and reports its lane as unreachable when they
// take longer than unansweredAfter.
func (s *Scheduler) waitAndReport(ctx context.Context, b sentBatch) []Result {
	reported := make(chan struct{})
	timer := time.AfterFunc(unansweredAfter, func() {
		defer close(reported)
		s.setBackoff(b.lane, ErrUnanswered)
	})
	results := b.wait(ctx)
	if !timer.Stop() {
		<-reported // or ErrUnanswered would be set after the results, and last
	}
	return results
}

// sendDue claims and sends one batch of each lane that has something due, until
// nothing is, and returns how long there is to wait. It sends one batch of a lane in each
// round: a lane with a million due messages delays the others by one batch at most.
func (s *Scheduler) sendDue(ctx context.Context, await func(sentBatch)) (time.Duration, error) {
	for ctx.Err() == nil {
		next, err := s.store.Next(ctx)
		if err != nil {
			return 0, fmt.Errorf("reading what is due: %w", err)
		}
		slices.SortFunc(next, func(a, b store.NextDue) int { return a.Due.Compare(b.Due) })
		now := time.Now()
		s.claimed.forgetIdle(now)
		wake, sentAny := s.forgetBackoffs(next, now), len(s.served) > 0
		for _, n := range next {
			if s.served[n.Lane] {
				continue
			}
			if !n.Forwards() && (s.isPaused(n.Queue) || s.sender.IsBinding(n.Queue)) {
				continue // until Pause resumes it or it is bound, which wakes
			}
			at := n.Due
			if until := s.backoffUntil(n.Lane); until.After(at) {
				at = until
			}
			if at.After(now) {
				wake = min(wake, at.Sub(now))
				continue
			}
			most, bytes, full := s.claimed.mayClaim(n.Lane, now)
			if full {
				return maxBackoff, nil // until claims are finished, which wakes
			}
			if most == 0 {
				continue // likewise
			}
			most, retryAt := s.allow(n.Lane, most, now)
			if most == 0 {
				if !retryAt.IsZero() {
					wake = min(wake, max(retryAt.Sub(now), time.Millisecond))
				}
				continue // until then, or until Wake
			}
			claims, err := s.store.Claim(ctx, n.Lane, now, most, bytes)
			s.reportNotRetried(n.Lane, most-len(claims), now)
			if err != nil {
				return 0, fmt.Errorf("claiming what is due for queue %q: %w", n.Lane, err)
			}
			if len(claims) == 0 {
				continue
			}
			sentAny, s.served[n.Lane] = true, true
			await(sentBatch{lane: n.Lane, claims: claims, wait: s.sender.Send(ctx, n.Queue, claims)})
		}
		clear(s.served)
		if !sentAny {
			return wake, nil
		}
	}
	return 0, nil
}

// allow asks the throttle how many messages may be retried. Forwards wait for no rate,
// breaker or consumer of their work queue.
func (s *Scheduler) allow(lane store.Lane, most int, now time.Time) (n int, retryAt time.Time) {
	if lane.Forwards() {
		return most, time.Time{}
	}
	return s.throttle.Allow(lane.Queue, most, now)
}

// reportNotRetried reports to the throttle how many that it allowed were not published.
func (s *Scheduler) reportNotRetried(lane store.Lane, n int, now time.Time) {
	if !lane.Forwards() {
		s.throttle.NotRetried(lane.Queue, n, now)
	}
}

// withAnswered adds the batches that were answered meanwhile: a commit with one
// sync serves them all.
func withAnswered(first sentBatch, answered <-chan sentBatch) []sentBatch {
	all := []sentBatch{first}
	for len(all) < maxFinished {
		select {
		case b, ok := <-answered:
			if !ok {
				return all
			}
			all = append(all, b)
		default:
			return all
		}
	}
	return all
}

// finishClaims ends the claims of batches that were answered: what RabbitMQ
// confirmed is deleted, messages that can never be retried are parked, and the others
// continue to wait while their lane is unreachable.
func (s *Scheduler) finishClaims(ctx context.Context, batches []sentBatch) {
	now := time.Now()
	var outcomes []store.Outcome
	var stillWaiting []store.Claim
	obstacles := make([]error, len(batches))
	for i, b := range batches {
		var obstacle error
		for j, r := range b.results {
			switch {
			case r.Done:
				outcomes = append(outcomes, store.Outcome{Claim: b.claims[j], At: now})
			case r.Park != "":
				outcomes = append(outcomes, store.Outcome{Claim: b.claims[j], Park: r.Park, At: now})
			default:
				stillWaiting = append(stillWaiting, b.claims[j])
				if obstacle == nil || errors.Is(obstacle, ErrTryAtOnce) {
					obstacle = r.Err
				}
			}
		}
		s.reportResults(b, now)
		s.setBackoff(b.lane, obstacle)
		obstacles[i] = obstacle
	}
	finished := 0
	finish := func() (err error) { finished, err = s.store.Finish(ctx, outcomes); return err }
	if len(outcomes) > 0 && s.repeatUntilDone(ctx, finishingClaims, finish) {
		if lost := len(outcomes) - finished; lost > 0 {
			s.log.Warn("store: retried messages were no longer claimed when they should be finished, so they may be retried twice:"+
				" it did not answer, or this process stood still, for longer than a lease, or its last answer was lost",
				"messages", lost, "hint", "set store.redis.lease above the longest such time")
		}
		s.reportParked(outcomes)
	}
	if len(stillWaiting) > 0 {
		s.repeatUntilDone(ctx, finishingClaims, func() error { return s.store.Release(ctx, stillWaiting) })
	}
	large := false
	for i, b := range batches {
		large = large || slices.ContainsFunc(b.claims, func(c store.Claim) bool { return len(c.Record.Message.Body) >= largeBody })
		s.claimed.end(&b, obstacles[i] == nil)
		batches[i] = sentBatch{}
	}
	if large {
		outcomes, stillWaiting = nil, nil
		debug.FreeOSMemory()
	}
	s.Wake()
}

func (s *Scheduler) reportParked(outcomes []store.Outcome) {
	for _, o := range outcomes {
		if o.Park != "" {
			e := parkedEvent(o.Claim.Record)
			e.At, e.Why = o.At, o.Park
			s.events(e)
		}
	}
}

// reportResults reports to the throttle what became of a batch that it allowed.
func (s *Scheduler) reportResults(b sentBatch, now time.Time) {
	if b.lane.Forwards() {
		return
	}
	ids := make([]uuid.UUID, 0, len(b.claims))
	for i, r := range b.results {
		if rec := b.claims[i].Record; r.Done && rec.Forward == nil {
			ids = append(ids, rec.ID)
		}
	}
	s.throttle.Retried(b.lane.Queue, ids, now)
	s.throttle.NotRetried(b.lane.Queue, len(b.claims)-len(ids), now)
}

// Busy reports whether messages are being retried now.
func (s *Scheduler) Busy() bool {
	s.claimed.mu.Lock()
	defer s.claimed.mu.Unlock()
	return s.claimed.messages > 0
}

// Wakeup wakes a Scheduler. It is safe for concurrent use.
type Wakeup chan struct{}

// NewWakeup returns a Wakeup for one Scheduler.
func NewWakeup() Wakeup { return make(Wakeup, 1) }

// Wake makes the scheduler look again at what may be retried.
func (w Wakeup) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Wake makes the scheduler look again at what may be retried.
func (s *Scheduler) Wake() { s.woken.Wake() }

func bodies(claims []store.Claim) (n int) {
	for _, c := range claims {
		n += len(c.Record.Message.Body)
	}
	return n
}
