package throttle

import (
	"slices"
	"time"
)

// View is a queue's state for people and metrics.
type View struct {
	State  State       `json:"state"`
	Since  time.Time   `json:"since,omitzero"`
	Reason string      `json:"why,omitempty"`
	By     string      `json:"by,omitempty"`     // who forced it
	Until  time.Time   `json:"until,omitzero"`   // open: when the first probe goes
	Forced bool        `json:"forced"`           // until a person says otherwise
	On     bool        `json:"on"`               // its policy has a breaker
	Paused PauseReason `json:"paused,omitempty"` // why nothing may be retried just now; never WhyPerson or WhyUnreachable
	Rate   float64     `json:"rate,omitempty"`   // retries per second that are allowed now, of all replicas; 0: no limit
	Limit  int         `json:"limit,omitempty"`  // in_flight of its policy; 0: no limit
	// InFlight are retried messages of which nothing is known yet, as far as its
	// rules have them counted.
	InFlight         int       `json:"in_flight"`
	Consumers        int       `json:"consumers"` // -1: not known
	NoConsumersSince time.Time `json:"no_consumers_since,omitzero"`
	// Seen is how many of the latest retries have finished, of which FailedShare failed again.
	Seen        int     `json:"seen"`
	FailedShare float64 `json:"failed_share"`
}

// View tells how a queue is.
func (t *Throttle) View(queue string, now time.Time) View {
	r := t.rules(queue)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep(now)
	q := t.queues[queue]
	if q == nil {
		return View{State: Closed, On: r.Breaker != nil, Rate: r.Rate, Limit: r.InFlight, Consumers: -1}
	}
	q.setRules(r)
	q.advance(now)
	flight := len(q.tracked.out) + q.reserved
	for _, h := range q.reports(now) {
		flight += h.Flight
	}
	v := View{State: q.state, Since: q.since, Reason: q.reason, By: q.by, Until: q.until, Forced: q.forced, On: r.Breaker != nil,
		Rate: q.limit(now), Limit: r.InFlight, InFlight: flight, Consumers: q.consumers, NoConsumersSince: q.noneSince}
	if n, _, why := q.room(1, now); n == 0 {
		v.Paused = why
	}
	var failed int
	if v.Seen, failed = q.latestOfAll(now); v.Seen > 0 {
		v.FailedShare = float64(failed) / float64(v.Seen)
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
