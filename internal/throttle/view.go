package throttle

import (
	"slices"
	"time"
)

// View is a queue's state for people and metrics.
type View struct {
	// The breaker. Without one in the policy it is closed, unless a person has forced it.
	HasBreaker bool // the policy has one
	State      State
	Since      time.Time
	Reason     string
	By         string    // who forced it
	Until      time.Time // open: when the first probe is retried
	Forced     bool      // a person has set State; it stays until a person changes it

	WaitReason  WaitReason // why nothing may be retried just now; never WhyPerson or WhyUnreachable
	Rate        float64    // retries per second that are allowed now, of all replicas; 0: no limit
	MaxInFlight int        // in_flight of its policy; 0: no limit
	// InFlight are retried messages that may still fail again. They are counted only where the
	// policy has in_flight or a breaker.
	InFlight         int
	Consumers        int       // -1: not known
	NoConsumersSince time.Time // since when messages wait for a consumer; zero: none does
	Finished         int       // how many of the retries that the breaker counts have finished
	FailedShare      float64   // how much of Finished failed again, from 0 to 1
}

// View returns the state of a queue.
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
	v := View{State: q.state, Since: q.since, Reason: q.reason, By: q.by, Until: q.until, Forced: q.forced, HasBreaker: r.Breaker != nil,
		Rate: q.rateLimit(now), MaxInFlight: r.InFlight, InFlight: inFlight, Consumers: q.consumers, NoConsumersSince: q.noConsumersSince}
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

// Queues returns the queues that the throttle remembers.
func (t *Throttle) Queues() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]string, 0, len(t.queues))
	for name := range t.queues {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}
