package throttle

import (
	"fmt"
	"math"
	"time"
)

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
