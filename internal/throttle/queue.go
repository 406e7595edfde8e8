package throttle

import (
	"math"
	"time"
)

// queue is the state of one queue's retries.
type queue struct {
	throttle *Throttle
	name     string
	rules    Rules
	used     time.Time

	reserved int    // allowed, and neither retried nor unsent yet
	next     uint64 // number of the next retry
	tracked  tracked
	// early are failures of messages whose retry is not confirmed yet as far as
	// is known here: a consumer can be quicker than RabbitMQ's answer to us.
	early tracked

	bucket
	waiting bool // when Allow was asked last, more messages waited than there were tokens

	breaker
	others map[string]report // what other replicas said of their retries, see replicas.go

	consumers int // -1: not known
	noneSince time.Time
}

// room is how many may be retried now, and if that is fewer than most, why and when to
// ask again; a zero time: when something happens.
func (q *queue) room(most int, now time.Time) (n int, again time.Time, why PauseReason) {
	n = most
	limit := func(to int, at time.Time, because PauseReason) {
		if to < n {
			n, again, why = max(to, 0), at, because
		}
	}
	part := q.throttle.currentShare(now)
	if part.N == 0 && !q.rules.plain() {
		limit(0, time.Time{}, WhyRate) // until SetShare says otherwise, and wakes
	}
	settled := func() (at time.Time) {
		if oldest, ok := q.tracked.oldest(); ok {
			at = oldest.Add(q.rules.settle())
		}
		return at
	}
	if !q.noneSince.IsZero() && q.rules.NoConsumer != RetryWithoutConsumers {
		limit(0, time.Time{}, WhyNoConsumer)
	}
	switch {
	case q.state == Open:
		limit(0, q.until, WhyBreaker)
	case q.state == HalfOpen && !q.throttle.leads:
		limit(0, time.Time{}, WhyBreaker) // until Follow says otherwise
	case q.state == HalfOpen && q.rules.Breaker != nil:
		limit(max(q.rules.Breaker.Probes, 1)-int(q.next-q.base)-q.reserved, settled(), WhyBreaker)
	}
	if q.rules.InFlight > 0 {
		limit(part.of(min(q.rules.InFlight, MaxTracked))-len(q.tracked.out)-q.reserved, settled(), WhyInFlight)
	}
	if n > 0 {
		tokens, at := q.tokens(n, part.N, now)
		limit(tokens, at, WhyRate)
	}
	return n, again, why
}

// bucket holds a token for each message that a rate lets through.
type bucket struct {
	rate float64 // tokens a second; 0: no limit, so far
	have float64 // as many it held at that time
	at   time.Time
}

// burst is how many tokens a bucket holds, those of a tenth of a second. few is with how many
// a caller is called again: a quarter of that, so that a few messages go together.
func (b *bucket) burst() (burst, few float64) {
	burst = max(1, math.Ceil(b.rate/10))
	if b.rate >= 2 {
		burst = max(2, burst)
	}
	return burst, max(1, math.Floor(burst/4))
}

// holds is how many tokens there are now. Where messages wait for the next one, those
// that come in while the caller is late are not lost, see SetCatchUp.
func (q *queue) holds(now time.Time) float64 {
	most, few := q.burst()
	if q.waiting {
		most = max(most, few+q.rate*q.throttle.catchUp.Seconds())
	}
	return min(most, q.have+max(0, now.Sub(q.at)).Seconds()*q.rate)
}

// tokens are how many the rate of one of so many replicas has room for, most at most,
// and when it has for more.
func (q *queue) tokens(most, replicas int, now time.Time) (int, time.Time) {
	limit := q.limit(now) / float64(max(replicas, 1))
	switch {
	case limit <= 0:
		q.bucket = bucket{}
		return most, time.Time{}
	case q.rate == 0:
		q.bucket = bucket{limit, 1, now} // begins with one, or each new rate would begin with a burst
	case q.rate != limit:
		q.bucket = bucket{limit, q.holds(now), now}
	}
	_, few := q.burst()
	have := q.holds(now)
	few = min(few, float64(most))
	return min(most, int(have)), now.Add(time.Duration(math.Ceil(max(few-have, 0) / limit * 1e9)))
}

// reserve takes n, of which room has said that they may go.
func (q *queue) reserve(n int, now time.Time) {
	q.reserved += n
	if q.rate > 0 {
		q.have, q.at = q.holds(now)-float64(n), now
	}
}

// unsent frees what was reserved: not as many waited, or they cannot go.
func (q *queue) unsent(n int) {
	q.reserved = max(0, q.reserved-n)
	q.have += float64(n)
	q.waiting = false
}

// idle tells whether nothing would be lost by forgetting it.
func (q *queue) idle(now time.Time) bool {
	if q.forced || q.reserved > 0 || !q.noneSince.IsZero() && now.Sub(q.used) < forgetUnused {
		return false
	}
	unused := now.Sub(q.used)
	return unused >= forgetUnused || unused >= max(forgetIdle, q.rules.settle()) && q.state == Closed
}
