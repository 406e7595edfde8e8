package throttle

import (
	"time"
)

// Part is what one of several gates, each a replica's, has of what its queues' rules
// allow to all of them: it is the I-th of N, from 0 on. N is 0 while it has none. A
// gate that hears of no others is the only one.
type Part struct {
	N, I int
	// Until is how long it counts; zero: until there is another.
	Until time.Time
}

// of divides a whole number so that the parts of all add up to it.
func (p Part) of(total int) int {
	if p.N <= 0 {
		return 0
	}
	part := total / p.N
	if p.I < total%p.N {
		part++
	}
	return part
}

// SetPart says what part of rates and in_flight it has from now on. It tells whether
// another number may go than before, so that the caller asks again.
func (g *Gate) SetPart(p Part, now time.Time) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.parted(now)
	g.part = p
	is := g.parted(now)
	return was.N != is.N || was.I != is.I
}

// parted is the part that counts now.
func (g *Gate) parted(now time.Time) Part {
	if !g.part.Until.IsZero() && !now.Before(g.part.Until) {
		return Part{}
	}
	return g.part
}

// SetLeads says whether this gate decides about the breakers, and sends the probes of
// those that are half-open. One that does not follows: see Follow.
func (g *Gate) SetLeads(leads bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leads = leads
}

// Standing is the state of a breaker, as the gate that leads tells the others.
type Standing struct {
	State  State     `json:"state"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"`
	Why    string    `json:"why,omitempty"`
	By     string    `json:"by,omitempty"`
	First  time.Time `json:"first,omitzero"` // when it opened first
	Number int64     `json:"number"`         // another one for each change
}

// undecided is the number of no state.
const undecided = -1

// numbered is the number of a state that has begun: 0 for Closed, which needs no
// Standing.
func numbered(s State, since time.Time) int64 {
	if s == Closed {
		return 0
	}
	return since.UnixMicro()
}

// Standings are those of all breakers that are not closed, by queue.
func (g *Gate) Standings(now time.Time) map[string]Standing {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]Standing{}
	for name, q := range g.queues {
		q.advance(now)
		if q.state != Closed {
			all[name] = Standing{q.state, q.since, q.until, q.why, q.by, q.first, q.number}
		}
	}
	return all
}

// Follow takes over what the gate that leads has decided: all breakers but these are
// closed. Those that a person has set stay as they are. It does nothing while this
// gate leads.
func (g *Gate) Follow(all map[string]Standing, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leads {
		return
	}
	for name := range all {
		if g.queues[name] == nil {
			g.add(name, now)
		}
	}
	for name, q := range g.queues {
		is, standing := all[name]
		if !standing {
			is = Standing{State: Closed, Since: now, Why: "retries succeed"}
		}
		if q.forced || q.number == is.Number {
			continue
		}
		q.ruled(g.rules(name))
		q.until = is.Until
		if q.state != is.State || standing {
			q.change(is.State, now, is.Why, is.By)
		}
		q.since, q.until, q.first, q.number = is.Since, is.Until, is.First, is.Number
	}
}

// Judged is what is known of one replica's latest retries of a queue.
type Judged struct {
	// Number is that of the breaker's state: what was retried before it says nothing
	// of it.
	Number int64 `json:"number,omitempty"`
	Ended  int   `json:"ended,omitempty"`
	Failed int   `json:"failed,omitempty"` // of those: again
	Flight int   `json:"flight,omitempty"` // of which nothing is known yet
}

type heard struct {
	Judged
	at time.Time
}

// heardFor is how long a word of another replica counts: each tells all it knows once
// a second.
const heardFor = 3 * time.Second

// Judged is what the other replicas need to know about the retries from here, by queue.
func (g *Gate) Judged(now time.Time) map[string]Judged {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]Judged{}
	for name, q := range g.queues {
		if !q.rules.tracks() {
			continue
		}
		q.advance(now)
		j := Judged{Number: q.number, Flight: len(q.flight.out) + q.reserved}
		j.Ended, j.Failed = q.seen(now)
		if j.Flight > 0 || j.Ended > 0 {
			all[name] = j
		}
	}
	return all
}

// Heard takes what another replica says of its retries: of all queues there is
// something to be said of.
func (g *Gate) Heard(replica string, all map[string]Judged, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, j := range all {
		q := g.queues[name]
		if q == nil {
			q = g.add(name, now)
			q.ruled(g.rules(name))
		}
		if q.others == nil {
			q.others = map[string]heard{}
		}
		q.used = now
		q.others[replica] = heard{j, now}
		q.advance(now)
		q.judge(now)
	}
	for name, q := range g.queues {
		if _, said := all[name]; !said {
			delete(q.others, replica)
		}
	}
}

// heard is what others said lately.
func (q *queue) heard(now time.Time) map[string]heard {
	for replica, h := range q.others {
		if now.Sub(h.at) >= heardFor {
			delete(q.others, replica)
		}
	}
	return q.others
}

// seenByAll is seen of all replicas together.
func (q *queue) seenByAll(now time.Time) (ended, failed int) {
	ended, failed = q.seen(now)
	for _, h := range q.heard(now) {
		if h.Number == q.number {
			ended, failed = ended+h.Ended, failed+h.Failed
		}
	}
	return ended, failed
}
