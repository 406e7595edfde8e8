package throttle

import (
	"container/list"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
)

// queue is the state of one queue's retries.
type queue struct {
	throttle *Throttle
	name     string
	rules    Rules
	used     time.Time

	reserved int    // allowed, and reported neither to Retried nor to NotRetried yet
	nextSeq  uint64 // of the next retry
	tracked  trackedRetries
	// earlyFailures are the failures of messages whose retry is not known to be confirmed yet: a
	// consumer can be quicker than RabbitMQ's answer to us.
	earlyFailures trackedRetries

	bucket
	waiting bool // when Allow was asked last, more messages waited than there were tokens

	breaker
	others map[string]replicaReport // what other replicas said of their retries, see throttle.go

	consumers int // -1: not known
	ready     int // messages that stood in the queue when RabbitMQ was asked last
	// probed are retries that were confirmed to the queue without consumers since it was asked,
	// and probedAt is when the latest was.
	probed   int
	probedAt time.Time
	// noConsumersSince is since when messages wait for a consumer, a probe being in the queue.
	noConsumersSince time.Time
}

// allowed returns how many messages may be retried now, and if that is fewer than most, why and
// when to ask again; a zero time: when something happens.
func (q *queue) allowed(most int, now time.Time) (n int, retryAt time.Time, why WaitReason) {
	n = most
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
	oldestFinishes := func() (at time.Time) {
		if oldest, ok := q.tracked.oldest(); ok {
			at = oldest.at.Add(q.rules.settle())
		}
		return at
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
		limit(max(q.rules.Breaker.Probes, 1)-int(q.nextSeq-q.firstCounted)-q.reserved, oldestFinishes(), WhyBreaker)
	}
	if q.rules.InFlight > 0 && share.N > 0 {
		own, at := q.ownInFlight(share, now)
		if at.IsZero() {
			at = oldestFinishes()
		}
		limit(own-q.inFlight(), at, WhyInFlight)
	}
	if n > 0 {
		tokens, at := q.allowedByRate(n, share.N, now)
		limit(tokens, at, WhyRate)
	}
	return n, retryAt, why
}

// probesLeft is how many messages this replica may retry to a queue without consumers, so that an
// autoscaler has a message to start one for: those of its policy, less what the queue holds.
func (q *queue) probesLeft(share Share) int {
	return share.of(max(q.rules.Probes, 1)) - q.ready - q.probed - q.reserved
}

// ownInFlight is how many messages this replica may have in flight, and when to ask again where
// that depends on what others report. Only the leader retries probes: a share of its own could be
// none at all of few, and the breaker would stay half-open.
func (q *queue) ownInFlight(share Share, now time.Time) (n int, askAgain time.Time) {
	all := min(q.rules.InFlight, MaxTracked)
	if q.state != HalfOpen || !q.throttle.leads {
		return share.of(all), askAgain
	}
	for _, report := range q.reports(now) {
		all -= report.InFlight
		askAgain = now.Add(time.Second) // each replica reports so often
	}
	return all, askAgain
}

// inFlight is how many messages are being retried, or were and may still fail again.
func (q *queue) inFlight() int { return len(q.tracked.byID) + q.reserved }

// bucket holds a token for each message that a rate lets through.
type bucket struct {
	rate   float64 // tokens a second; 0: there was no limit when it was asked last
	tokens float64 // how many it held at the time at
	at     time.Time
}

// burst returns how many tokens a bucket holds at most: those of a tenth of a second. few is how
// many there are when a caller is to ask again: a quarter of that, so that a few messages are
// retried together.
func (b *bucket) burst() (burst, few float64) {
	burst = max(1, math.Ceil(b.rate/10))
	if b.rate >= 2 {
		burst = max(2, burst)
	}
	return burst, max(1, math.Floor(burst/4))
}

// available returns how many tokens there are now. Where messages wait for the next one, tokens
// that arrive while the caller is late are not lost, see SetCatchUp.
func (q *queue) available(now time.Time) float64 {
	most, few := q.burst()
	if q.waiting {
		most = max(most, few+q.rate*q.throttle.catchUp.Seconds())
	}
	return min(most, q.tokens+max(0, now.Sub(q.at)).Seconds()*q.rate)
}

// allowedByRate returns how many messages this replica's share of the rate allows, most at most,
// and when it allows more.
func (q *queue) allowedByRate(most, replicas int, now time.Time) (int, time.Time) {
	limit := q.rateLimit(now) / float64(max(replicas, 1))
	switch {
	case limit <= 0:
		q.bucket = bucket{}
		return most, time.Time{}
	case q.rate == 0:
		q.bucket = bucket{limit, 1, now} // begins with one, or each new rate would begin with a burst
	case q.rate != limit:
		q.bucket = bucket{limit, q.available(now), now}
	}
	_, few := q.burst()
	have := q.available(now)
	few = min(few, float64(most))
	return min(most, int(have)), now.Add(time.Duration(math.Ceil(max(few-have, 0) / limit * 1e9)))
}

// reserve counts n messages that may be retried now.
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

// idle tells whether the queue can be forgotten without a loss.
func (q *queue) idle(now time.Time) bool {
	if q.forced || q.reserved > 0 || q.consumers == 0 && now.Sub(q.used) < forgetUnused {
		return false
	}
	unused := now.Sub(q.used)
	return unused >= forgetUnused || unused >= max(forgetIdle, q.rules.settle()) && q.state == Closed
}

// trackedRetries are the latest retries of which it is not known yet whether they fail again, in
// their order. Beyond MaxTracked the oldest is forgotten. The zero value has none.
type trackedRetries struct {
	byID  map[uuid.UUID]*list.Element // of order
	order list.List                   // the oldest first; each Value is a trackedRetry
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

// finishBefore removes those that were retried at a time or before, and returns the sequence
// number up to which it has.
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

// window counts the latest retries that failed again, in slots of the time when they were
// retried.
type window struct {
	slot  time.Duration
	slots [windowSlots]slot
}

type slot struct {
	index  int64  // which slot of all time; 0: never used
	first  uint64 // the first retry in it
	failed int
}

// reset begins again.
func (w *window) reset(length time.Duration) {
	*w = window{slot: max(length/windowSlots, 1)}
}

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

// count tells the first retry that is still in the window, and how many failed
// again. next is the sequence number of the next retry.
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

// breaker is the circuit breaker of one queue.
type breaker struct {
	state       State
	since       time.Time
	reason      string
	by          string // who forced it
	forced      bool
	until       time.Time // open: when the first probe is retried
	firstOpened time.Time // when it opened first, and has not been closed since; zero: it is closed
	stateNumber int64     // see BreakerState

	// Retries have sequence numbers (retry.seq). Those below firstCounted were made before the
	// state began, and are not counted in it. Those below finishedByFailure have finished because
	// they or a later one failed again, those below finishedByTime because their settle time is over.
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

// failedAgain counts a retry that has failed.
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
	if finished, failed := q.latestOfAll(now); finished >= b.MinRetries && float64(failed) >= b.FailureRatio*float64(finished) {
		q.open(now, fmt.Sprintf("%d of the last %d retries failed again", failed, finished))
	}
}

// waitShare: an open breaker waits for a twentieth of the time since it first opened. So it
// notices the end of an outage late by a twentieth of the outage, or by Breaker.Wait if that is more,
// and never by more than MaxWait (all with jitter), and probes grow fewer as it lasts.
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
		q.change(HalfOpen, now, fmt.Sprintf("the wait is over: up to %d probes go", b.Probes), "")
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
	q.stateNumber = newStateNumber(to, now)
	if to != Open {
		q.until = time.Time{}
	}
	if to == Closed {
		q.firstOpened = time.Time{}
	}
	q.firstCounted = q.nextSeq
	if q.rules.Breaker != nil {
		q.window.reset(q.rules.Breaker.Window)
	}
	q.throttle.changed(Transition{Queue: q.name, From: from, To: to, At: now, Reason: reason, By: by, Until: q.until, OnFollower: !q.throttle.leads})
}

const (
	rampFrom = 5.0 // retries per second
	// rampDoublings is how often the rate doubles over a ramp that has no rate to rise to.
	rampDoublings = 12
)

// rateLimit is how many retries per second are allowed, of all replicas together; 0: no limit.
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
