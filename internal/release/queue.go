package release

import (
	"math"
	"time"

	"golang.org/x/time/rate"
)

// queue is what is known of one.
type queue struct {
	gate  *Gate
	name  string
	rules Rules
	used  time.Time

	reserved int    // allowed, and neither returned nor unsent yet
	next     uint64 // number of the next return
	flight   flight
	// early are failures of messages whose return is not confirmed yet as far as
	// is known here: a consumer can be quicker than RabbitMQ's answer to us.
	early flight

	limiter *rate.Limiter // nil: no limit, so far
	spare   float64       // tokens taken from limiter that were not used; below 0: used beyond it

	breaker
	others map[string]heard // what other replicas said of their returns, see part.go

	consumers int // -1: not known
	noneSince time.Time
}

// Why nothing may return just now; also the label of a metric.
const (
	WhyBreaker    = "breaker"
	WhyNoConsumer = "no_consumer"
	WhyInFlight   = "in_flight"
	WhyRate       = "rate"
)

// room is how many may return now, and if that is fewer than most, why and when to
// ask again; a zero time: when something happens.
func (q *queue) room(most int, now time.Time) (n int, again time.Time, why string) {
	n = most
	limit := func(to int, at time.Time, because string) {
		if to < n {
			n, again, why = max(to, 0), at, because
		}
	}
	part := q.gate.parted(now)
	if part.N == 0 && !q.rules.plain() {
		limit(0, time.Time{}, WhyRate) // until SetPart says otherwise, and wakes
	}
	settled := func() (at time.Time) {
		if oldest, ok := q.flight.oldest(); ok {
			at = oldest.Add(q.rules.settle())
		}
		return at
	}
	if !q.noneSince.IsZero() && q.rules.NoConsumer != Return {
		limit(0, time.Time{}, WhyNoConsumer)
	}
	switch {
	case q.state == Open:
		limit(0, q.until, WhyBreaker)
	case q.state == HalfOpen && !q.gate.leads:
		limit(0, time.Time{}, WhyBreaker) // until Follow says otherwise
	case q.state == HalfOpen && q.rules.Breaker != nil:
		limit(max(q.rules.Breaker.Probes, 1)-int(q.next-q.base)-q.reserved, settled(), WhyBreaker)
	}
	if q.rules.InFlight > 0 {
		limit(part.of(min(q.rules.InFlight, MostTracked))-len(q.flight.out)-q.reserved, settled(), WhyInFlight)
	}
	if n > 0 {
		tokens, at := q.tokens(n, part.N, now)
		limit(tokens, at, WhyRate)
	}
	return n, again, why
}

// tokens are how many the rate of one of so many replicas has room for, most at most,
// and when it has for more.
//
// The bucket holds a tenth of a second, so that a caller who is a little late loses
// nothing, and is asked again when a quarter of that is in it, so that each time a
// few go together.
func (q *queue) tokens(most, replicas int, now time.Time) (int, time.Time) {
	limit := q.limit(now) / float64(max(replicas, 1))
	if limit <= 0 {
		q.limiter = nil
		return most, time.Time{}
	}
	burst := max(1, int(math.Ceil(limit/10)))
	if limit >= 2 {
		burst = max(2, burst)
	}
	switch {
	case q.limiter == nil:
		q.limiter, q.spare = rate.NewLimiter(rate.Limit(limit), burst), 0
		q.limiter.AllowN(now, burst-1) // begins with one, or each new rate would begin with a burst
	case q.limiter.Limit() != rate.Limit(limit):
		q.limiter.SetLimitAt(now, rate.Limit(limit))
		q.limiter.SetBurstAt(now, burst)
	}
	have := q.limiter.TokensAt(now)
	q.spare = min(q.spare, float64(burst)-have)
	have += q.spare
	few := float64(min(most, max(1, burst/4)))
	return min(most, int(have)), now.Add(time.Duration(math.Ceil(max(few-have, 0) / limit * 1e9)))
}

// reserve takes n, of which room has told that they may go.
func (q *queue) reserve(n int, now time.Time) {
	q.reserved += n
	if q.limiter != nil {
		whole := min(n, int(q.limiter.TokensAt(now)))
		q.limiter.AllowN(now, whole)
		q.spare -= float64(n - whole)
	}
}

// unsent gives back what was reserved.
func (q *queue) unsent(n int) {
	q.reserved = max(0, q.reserved-n)
	q.spare += float64(n)
}

// idle tells whether nothing would be lost by forgetting it.
func (q *queue) idle(now time.Time) bool {
	if q.forced || q.reserved > 0 || !q.noneSince.IsZero() && now.Sub(q.used) < forgetAtLast {
		return false
	}
	unused := now.Sub(q.used)
	return unused >= forgetAtLast || unused >= max(forgetAfter, q.rules.settle()) && q.state == Closed
}
