package retry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	maxBatch   = 512
	batchBytes = 16 << 20
	// MaxClaimed bounds the messages that are claimed and not yet finished, and so memory and what a crash can
	// duplicate.
	MaxClaimed = 2560
	// maxClaimedBytes bounds their bodies the same way; it is exceeded by at most one batch.
	maxClaimedBytes = 32 << 20
	// largeBody is the size from which the memory of a body is freed as soon as RabbitMQ has it, not at the next
	// garbage collection.
	largeBody = 8 << 20
	// maxFinished is how many answered batches are finished in one commit at most.
	maxFinished = 32

	// catchUp is how much of a rate the scheduler may catch up on: a busy machine wakes it late, and it waits for store
	// and RabbitMQ.
	catchUp = 500 * time.Millisecond

	// unansweredAfter is how long RabbitMQ may take to answer a batch before its lane is unreachable: more than a queue
	// takes to elect a leader.
	unansweredAfter = 30 * time.Second
)

// ErrUnanswered is reported of a lane whose messages RabbitMQ neither confirms nor refuses: the leader of its queue
// hangs, say. Sending them again would duplicate them.
var ErrUnanswered = fmt.Errorf("RabbitMQ has not confirmed for %s what was published to it", unansweredAfter)

// BatchSender publishes claims of one lane, as Sender does, but not while their queue is being bound.
type BatchSender interface {
	IsBinding(queue string) bool
	Send(ctx context.Context, queue string, claims []store.Claim) (wait func(context.Context) []Result)
}

// Throttle limits how many due messages may be retried to a queue now, as throttle.Throttle does. Forwarded messages do
// not pass it.
type Throttle interface {
	SetCatchUp(by time.Duration)
	Allow(queue string, wanted int, now time.Time) (n int, retryAt time.Time)
	NotRetried(queue string, n int, now time.Time)
	Retried(queue string, ids []uuid.UUID, now time.Time)
}

// Store is a store with a side table, as the scheduler needs it.
type Store interface {
	store.Store
	Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (more bool, err error)) error
}

// Scheduler publishes due messages, lane by lane. Call Run once.
type Scheduler struct {
	store    Store
	sender   BatchSender
	throttle Throttle
	events   Listener
	log      *slog.Logger
	report   func(lane store.Lane, err error)

	claimed claimed
	woken   Wakeup
	served  map[store.Lane]bool // had a batch in this round; one that is cut short continues with the others

	// pausing is held while pauses change, also while they are read from the store. Separate from mu, so that reading a
	// pause never waits for the store.
	pausing  *semaphore.Weighted
	mu       sync.Mutex
	backoffs map[store.Lane]backoff // of unreachable lanes
	paused   map[string]bool        // queues whose retries a person has paused

	failingSince map[string]time.Time // operations of the store
}

// sentBatch is a batch that was published, and whose claims are not finished yet.
type sentBatch struct {
	lane     store.Lane
	claims   []store.Claim
	wait     func(context.Context) []Result
	results  []Result
	obstacle error // why some of them wait again; nil: none does
	halfFull bool  // with it at least half of its destination's window was in use
}

// NewScheduler returns a Scheduler. report receives why a lane is unreachable, each time that it was tried, and nil
// once when it is reachable again; it is called by several goroutines.
func NewScheduler(
	s Store, sender BatchSender, throttle Throttle, wake Wakeup, events Listener, log *slog.Logger,
	report func(lane store.Lane, err error),
) *Scheduler {
	throttle.SetCatchUp(catchUp)
	return &Scheduler{store: s, sender: sender, throttle: throttle, events: events, log: log, report: report,
		backoffs: map[store.Lane]backoff{}, paused: map[string]bool{}, served: map[store.Lane]bool{}, woken: wake,
		pausing: semaphore.NewWeighted(1), failingSince: map[string]time.Time{},
		claimed: claimed{perDestination: map[store.Lane]*laneWindow{}}}
}

// Run publishes messages as they come due until ctx ends. Then it waits for the answers, for grace at most.
//
// This goroutine claims and publishes, in due order. One for each batch waits for RabbitMQ's answers, and one finishes
// the claims that were answered: the next batches are under way while others are confirmed or made durable.
func (s *Scheduler) Run(ctx context.Context, grace time.Duration) {
	finishCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })()

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
			// Wait for the store only: nothing else can help.
			wake, woken, changed = storeWait, nil, nil
			storeWait = min(2*storeWait, maxStoreWait)
		} else if ctx.Err() == nil {
			s.storeWorks(retryingDue)
			storeWait = minBackoff
		}
		select {
		case <-ctx.Done():
		case <-time.After(wake):
		case <-woken:
		case <-changed:
		}
	}
}

// waitAndReport waits for the results of a batch, and reports its lane as unreachable after unansweredAfter.
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

// sendDue claims and sends what is due, and returns how long to wait for more. It sends one batch of each lane in a
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
				continue // Pause or the end of the binding wakes
			}
			if wait := max(n.Due.Sub(now), s.backoffUntil(n.Lane).Sub(now)); wait > 0 {
				wake = min(wake, wait)
				continue
			}
			wanted, bytes, full := s.claimed.mayClaim(n.Lane, now)
			if full {
				return maxBackoff, nil // until claims are finished, which wakes
			}
			if wanted == 0 {
				continue // likewise
			}
			allowed, retryAt := s.allow(n.Lane, wanted, now)
			if allowed == 0 {
				if !retryAt.IsZero() {
					wake = min(wake, max(retryAt.Sub(now), time.Millisecond))
				}
				continue // until then, or until Wake
			}
			claims, err := s.store.Claim(ctx, n.Lane, now, allowed, bytes)
			s.reportNotRetried(n.Lane, allowed-len(claims), now)
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

// allow asks the throttle how many messages may be retried. Forwards do not wait for it.
func (s *Scheduler) allow(lane store.Lane, wanted int, now time.Time) (n int, retryAt time.Time) {
	if lane.Forwards() {
		return wanted, time.Time{}
	}
	return s.throttle.Allow(lane.Queue, wanted, now)
}

func (s *Scheduler) reportNotRetried(lane store.Lane, n int, now time.Time) {
	if !lane.Forwards() {
		s.throttle.NotRetried(lane.Queue, n, now)
	}
}

// withAnswered adds the batches that were answered meanwhile: one synced commit serves them all.
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

// finishClaims ends the claims of answered batches: what RabbitMQ confirmed is deleted, what can never be retried is
// parked, and the others wait while their lane is unreachable.
func (s *Scheduler) finishClaims(ctx context.Context, batches []sentBatch) {
	now := time.Now()
	var outcomes []store.Outcome
	var stillWaiting []store.Claim
	for i := range batches {
		b := &batches[i]
		for j, r := range b.results {
			if r.Done || r.Park != "" {
				outcomes = append(outcomes, store.Outcome{Claim: b.claims[j], Park: r.Park, At: now})
				continue
			}
			stillWaiting = append(stillWaiting, b.claims[j])
			if b.obstacle == nil || errors.Is(b.obstacle, ErrTryAtOnce) {
				b.obstacle = r.Err
			}
		}
		s.reportResults(*b, now)
		s.setBackoff(b.lane, b.obstacle)
	}
	finished := 0
	finish := func() (err error) { finished, err = s.store.Finish(ctx, outcomes); return err }
	if len(outcomes) > 0 && s.repeatUntilDone(ctx, finishingClaims, finish) {
		if lost := len(outcomes) - finished; lost > 0 {
			s.log.Warn("store: retried messages were no longer claimed when they should be finished, so they may be "+
				"retried twice: it did not answer, or this process stood still, for longer than a lease, or its last "+
				"answer was lost",
				"messages", lost, "hint", "set store.redis.lease above the longest such time")
		}
		for _, o := range outcomes {
			if o.Park != "" {
				e := parkedEvent(o.Claim.Record)
				e.At, e.Why = o.At, o.Park
				s.events(e)
			}
		}
	}
	if len(stillWaiting) > 0 {
		s.repeatUntilDone(ctx, finishingClaims, func() error { return s.store.Release(ctx, stillWaiting) })
	}
	large := false
	for i, b := range batches {
		large = large || slices.ContainsFunc(b.claims,
			func(c store.Claim) bool { return len(c.Record.Message.Body) >= largeBody })
		s.claimed.end(&b, b.obstacle == nil)
		batches[i] = sentBatch{}
	}
	if large {
		outcomes, stillWaiting = nil, nil
		debug.FreeOSMemory()
	}
	s.Wake()
}

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

func (s *Scheduler) Busy() bool {
	s.claimed.mu.Lock()
	defer s.claimed.mu.Unlock()
	return s.claimed.messages > 0
}

// Wakeup wakes a Scheduler. It is safe for concurrent use.
type Wakeup chan struct{}

func NewWakeup() Wakeup { return make(Wakeup, 1) }

func (w Wakeup) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

func (s *Scheduler) Wake() { s.woken.Wake() }

func bodies(claims []store.Claim) (n int) {
	for _, c := range claims {
		n += len(c.Record.Message.Body)
	}
	return n
}

const (
	// firstWindow is how many messages may be claimed for a destination that has not confirmed any lately: so few that
	// the others continue while many are unreachable.
	firstWindow  = 16
	windowGrowth = 4
	// maxWindow is the largest window: what a destination that hangs may take from the others.
	maxWindow = 2 * maxBatch
	// A destination with its first window may have 1/firstPart of what is free, and any 1/reservePart while no more
	// than reserve is free: so unreachable ones leave something for the others.
	firstPart, reserve, reservePart = 64, maxBatch / 2, 16
	// windowKept is how long a destination keeps its window while nothing is claimed for it.
	windowKept = 10 * time.Second
)

// claimed counts claims that are not finished yet, by destination. A destination for which RabbitMQ does not confirm
// keeps its part meanwhile, and leaves the rest to others.
type claimed struct {
	mu              sync.Mutex
	messages, bytes int
	perDestination  map[store.Lane]*laneWindow // by windowKey
	idleForgotten   time.Time
}

// laneWindow counts and bounds what is claimed for one destination. Lanes that forward to the same target share one.
type laneWindow struct {
	messages, bytes int
	// size is how many messages may be claimed. It grows windowGrowth times with each confirmed batch that filled half
	// of it, and is firstWindow again after a batch that was not confirmed.
	size int
	used time.Time
	last chan struct{} // closed when the answers to its latest batch were passed on
}

func windowKey(l store.Lane) store.Lane {
	if l.Forwards() {
		l.Queue = ""
	}
	return l
}

// windowOf returns the window of a lane's destination. The caller holds mu.
func (c *claimed) windowOf(l store.Lane) *laneWindow {
	w := c.perDestination[windowKey(l)]
	if w == nil {
		w = &laneWindow{size: firstWindow}
		c.perDestination[windowKey(l)] = w
	}
	return w
}

// mayClaim returns how many messages, and bytes of bodies, may be claimed of a lane now: at most half of what others
// leave, and a small part of the reserve. full reports whether nothing may be claimed of any lane.
func (c *claimed) mayClaim(l store.Lane, now time.Time) (messages, bytes int, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := MaxClaimed - c.messages
	if free <= 0 || c.bytes >= maxClaimedBytes {
		return 0, 0, true
	}
	w := c.windowOf(l)
	w.used = now
	left := free + w.messages
	window := min(w.size, (left+1)/2)
	if w.size == firstWindow {
		window = min(window, max(1, free/firstPart))
	}
	if free <= reserve {
		window = min(window, max(1, free/reservePart))
	}
	messages = min(maxBatch, window-w.messages, free)
	bytes = min(batchBytes, (maxClaimedBytes-c.bytes+w.bytes)/2-w.bytes)
	// Each batch costs a commit: while some are on their way, it waits until it can be larger.
	if w.messages > 0 && messages < max(1, min(maxBatch, window)/4) || bytes <= 0 {
		return 0, 0, false
	}
	return messages, bytes, false
}

// begin counts what was claimed of a lane. halfFull reports whether at least half of the window is in use with it.
// previous is closed when the answers to the previous batch were passed on; the caller closes passedOn.
func (c *claimed) begin(
	l store.Lane, messages, bytes int,
) (halfFull bool, previous <-chan struct{}, passedOn chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.windowOf(l)
	c.messages, c.bytes = c.messages+messages, c.bytes+bytes
	w.messages, w.bytes = w.messages+messages, w.bytes+bytes
	previous, passedOn = w.last, make(chan struct{})
	w.last = passedOn
	return 2*w.messages >= w.size, previous, passedOn
}

func (c *claimed) has(l store.Lane) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.perDestination[windowKey(l)]
	return w != nil && w.messages > 0
}

// end counts a batch whose claims are finished; confirmed reports whether none of them waits again.
func (c *claimed) end(s *sentBatch, confirmed bool) {
	messages, bytes := len(s.claims), bodies(s.claims)
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.windowOf(s.lane)
	c.messages, c.bytes = c.messages-messages, c.bytes-bytes
	w.messages, w.bytes = w.messages-messages, w.bytes-bytes
	switch {
	case !confirmed:
		w.size = firstWindow
	case s.halfFull:
		w.size = min(windowGrowth*w.size, maxWindow)
	}
}

// forgetIdle forgets, now and then, destinations that nothing is claimed for.
func (c *claimed) forgetIdle(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.idleForgotten) < windowKept {
		return
	}
	c.idleForgotten = now
	maps.DeleteFunc(c.perDestination, func(_ store.Lane, w *laneWindow) bool {
		return w.messages == 0 && now.Sub(w.used) >= windowKept
	})
}

const minBackoff, maxBackoff = 250 * time.Millisecond, 15 * time.Second

// backoffKept is how long after its backoff an unreachable lane without messages is reachable: what was published has
// its answer by then.
const backoffKept = 2 * time.Minute

// maxSleep is how long the scheduler sleeps when nothing will be due: whatever changes wakes it.
const maxSleep = time.Hour

// backoff bars a lane from being published for a while.
type backoff struct {
	until     time.Time
	tries     int  // since the lane was last reachable
	reachable bool // as far as is known: RabbitMQ is being asked about its queue
}

// setBackoff keeps a lane's messages waiting after an obstacle, longer each time. Without one the lane is reachable.
func (s *Scheduler) setBackoff(lane store.Lane, obstacle error) {
	s.mu.Lock()
	b, wasBackingOff := s.backoffs[lane]
	reachable := !wasBackingOff || b.reachable
	switch {
	case obstacle == nil:
		delete(s.backoffs, lane)
	case errors.Is(obstacle, ErrTryAtOnce) && b.tries == 0:
		// Only once: a queue that is bound and yet unroutable must not be tried without end.
		s.backoffs[lane] = backoff{until: time.Now(), tries: 1, reachable: reachable}
	case errors.Is(obstacle, ErrUnanswered): // its window bounds what is claimed
		b.reachable = false
		s.backoffs[lane] = b
	case errors.Is(obstacle, ErrLookupPending): // the answer is on its way
		s.backoffs[lane] = backoff{until: time.Now().Add(minBackoff << min(b.tries, 2)), tries: b.tries + 1,
			reachable: reachable}
	default:
		s.backoffs[lane] = backoff{until: time.Now().Add(min(minBackoff<<min(b.tries, 16), maxBackoff)),
			tries: b.tries + 1}
	}
	s.mu.Unlock()
	if obstacle == nil && !wasBackingOff || errors.Is(obstacle, ErrTryAtOnce) ||
		errors.Is(obstacle, ErrLookupPending) || errors.Is(obstacle, context.Canceled) {
		return
	}
	s.report(lane, obstacle)
}

func (s *Scheduler) backoffUntil(lane store.Lane) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backoffs[lane].until
}

// forgetBackoffs ends the backoff of lanes whose messages are gone, since a person discarded them, say: no confirm will
// show that they are reachable. It returns how long the scheduler may sleep.
func (s *Scheduler) forgetBackoffs(next []store.NextDue, now time.Time) (sleep time.Duration) {
	gone := map[store.Lane]bool{}
	s.mu.Lock()
	for lane := range s.backoffs {
		if !s.claimed.has(lane) {
			gone[lane] = true
		}
	}
	s.mu.Unlock()
	for _, n := range next {
		delete(gone, n.Lane)
	}
	sleep = maxSleep
	for lane := range gone {
		s.mu.Lock()
		b, backingOff := s.backoffs[lane]
		over := backingOff && now.Sub(b.until) > backoffKept
		if over {
			delete(s.backoffs, lane)
		}
		s.mu.Unlock()
		if over {
			s.report(lane, nil)
		} else {
			sleep = backoffKept
		}
	}
	return sleep
}

// Pause pauses the retries of a queue, or resumes them. What its policy forwards is still forwarded, and what is
// claimed still arrives. The caller first writes the pause to the store, so that it outlasts a restart.
func (s *Scheduler) Pause(queue string, paused bool) {
	s.changePauses(func() {
		if paused {
			s.paused[queue] = true
		} else {
			delete(s.paused, queue)
		}
	})
	if !paused {
		s.Wake()
	}
}

// SetPauses replaces the set of paused queues, as Pause changes it.
func (s *Scheduler) SetPauses(queues map[string]bool) {
	resumed := false
	s.changePauses(func() {
		for q := range s.paused {
			resumed = resumed || !queues[q]
		}
		s.paused = maps.Clone(queues)
	})
	if resumed {
		s.Wake()
	}
}

// changePauses changes the pauses. If loadPauses is reading, it waits: the change is newer.
func (s *Scheduler) changePauses(change func()) {
	_ = s.pausing.Acquire(context.Background(), 1) // it never fails
	defer s.pausing.Release(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *Scheduler) isPaused(queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused[queue]
}

func (s *Scheduler) Paused() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.paused))
}

// loadPauses reads which queues were paused when the service ended. A Pause meanwhile is applied on top.
func (s *Scheduler) loadPauses(ctx context.Context) {
	load := func() error {
		if err := s.pausing.Acquire(ctx, 1); err != nil {
			return err
		}
		defer s.pausing.Release(1)
		return s.store.Entries(ctx, store.PausePrefix, "", func(e store.Entry) (bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.paused[strings.TrimPrefix(e.Name, store.PausePrefix)] = true
			return true, nil
		})
	}
	s.repeatUntilDone(ctx, readingPauses, load)
}

const maxStoreWait = time.Second

const (
	retryingDue     = "retrying due messages"
	finishingClaims = "finishing retried messages"
	readingPauses   = "reading which queues are paused"
)

func (s *Scheduler) storeFailed(ctx context.Context, operation string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.failingSince[operation]; known || ctx.Err() != nil {
		return
	}
	s.failingSince[operation] = time.Now()
	s.log.Error("store: "+operation+" fails; trying again until it works", "error", err)
}

func (s *Scheduler) storeWorks(operation string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if since, known := s.failingSince[operation]; known {
		delete(s.failingSince, operation)
		s.log.Info("store: "+operation+" works again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// repeatUntilDone repeats an operation while the store fails: a forgotten claim would make its message wait until the
// next start, and unread pauses would retry what a person has paused. done is false if ctx ended first.
func (s *Scheduler) repeatUntilDone(ctx context.Context, operation string, try func() error) (done bool) {
	for wait := minBackoff; ; wait = min(2*wait, maxStoreWait) {
		err := try()
		if err == nil {
			s.storeWorks(operation)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		s.storeFailed(ctx, operation, err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}
