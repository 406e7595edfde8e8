package throttle

import "time"

// Share is how much of all limits one replica's throttle may use: the I-th of N shares, from
// 0 on. N is 0 while it has none. Without replicas N is 1.
type Share struct {
	N, I int
	// Until is when the share expires; zero: when it is replaced.
	Until time.Time
}

// of returns this share of a whole number; the shares of all add up to it.
func (s Share) of(total int) int {
	if s.N <= 0 {
		return 0
	}
	share := total / s.N
	if s.I < total%s.N {
		share++
	}
	return share
}

// SetShare sets the throttle's share of rates and in_flight. It returns whether that changes
// what may be retried, so that the caller asks again.
func (t *Throttle) SetShare(share Share, now time.Time) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.currentShare(now)
	t.share = share
	is := t.currentShare(now)
	return was.N != is.N || was.I != is.I
}

// currentShare returns the share, or none if it has expired.
func (t *Throttle) currentShare(now time.Time) Share {
	if !t.share.Until.IsZero() && !now.Before(t.share.Until) {
		return Share{}
	}
	return t.share
}

// SetLeads sets whether this throttle decides about the breakers, and allows the probes of those
// that are half-open. Other throttles follow it: see Follow.
func (t *Throttle) SetLeads(leads bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leads = leads
}

// BreakerState is the state of a breaker, as the leader's throttle announces it.
type BreakerState struct {
	State       State     `json:"state"`
	Since       time.Time `json:"since"`
	Until       time.Time `json:"until,omitzero"`
	Reason      string    `json:"why,omitempty"`
	By          string    `json:"by,omitempty"`
	FirstOpened time.Time `json:"first,omitzero"` // when it opened first, and has not been closed since
	Number      int64     `json:"number"`         // identifies the state: each change has another
}

// noState is the number of no state: whatever the leader announces next is applied.
const noState = -1

// newStateNumber returns the number of a state that begins: 0 for Closed, which needs no
// BreakerState.
func newStateNumber(s State, since time.Time) int64 {
	if s == Closed {
		return 0
	}
	return since.UnixMicro()
}

// BreakerStates returns those of all breakers that are not closed, by queue.
func (t *Throttle) BreakerStates(now time.Time) map[string]BreakerState {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[string]BreakerState{}
	for name, q := range t.queues {
		q.advance(now)
		if q.state != Closed {
			all[name] = BreakerState{q.state, q.since, q.until, q.reason, q.by, q.firstOpened, q.stateNumber}
		}
	}
	return all
}

// Follow applies what the leader's throttle has decided: all breakers but these are
// closed. Those that a person has forced stay as they are. It does nothing while this
// throttle leads.
func (t *Throttle) Follow(all map[string]BreakerState, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leads {
		return
	}
	for name := range all {
		if t.queues[name] == nil {
			t.add(name, now)
		}
	}
	for name, q := range t.queues {
		is, decided := all[name]
		if !decided {
			is = BreakerState{State: Closed, Since: now, Reason: "retries succeed"}
		}
		if q.forced || q.stateNumber == is.Number {
			continue
		}
		q.setRules(t.rules(name))
		q.until = is.Until
		if q.state != is.State || decided {
			q.change(is.State, now, is.Reason, is.By)
		}
		q.since, q.until, q.firstOpened, q.stateNumber = is.Since, is.Until, is.FirstOpened, is.Number
	}
}

// RetryStats counts one replica's latest retries of a queue, for the others: the JSON names stay,
// since replicas of two versions may run together.
type RetryStats struct {
	// Number is BreakerState.Number: retries from before the state are not counted.
	Number   int64 `json:"number,omitempty"`
	Finished int   `json:"ended,omitempty"`
	Failed   int   `json:"failed,omitempty"` // how many of Finished failed again
	InFlight int   `json:"flight,omitempty"`
}

type replicaReport struct {
	RetryStats
	at time.Time
}

// reportKept is how long a report of another replica counts: each reports once a second.
const reportKept = 3 * time.Second

// RetryStats returns what the other replicas need to know about the retries from here, by
// queue.
func (t *Throttle) RetryStats(now time.Time) map[string]RetryStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[string]RetryStats{}
	for name, q := range t.queues {
		if !q.rules.tracks() {
			continue
		}
		q.advance(now)
		report := RetryStats{Number: q.stateNumber, InFlight: q.inFlight()}
		report.Finished, report.Failed = q.latest(now)
		if report.InFlight > 0 || report.Finished > 0 {
			all[name] = report
		}
	}
	return all
}

// Receive stores the report of another replica about its retries, of all queues that have
// any.
func (t *Throttle) Receive(replica string, all map[string]RetryStats, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, report := range all {
		q := t.use(name, t.rules(name), now)
		if q.others == nil {
			q.others = map[string]replicaReport{}
		}
		q.others[replica] = replicaReport{report, now}
		q.advance(now)
		q.openIfFailing(now)
	}
	for name, q := range t.queues {
		if _, reported := all[name]; !reported {
			delete(q.others, replica)
		}
	}
}

// reports returns the latest reports of other replicas.
func (q *queue) reports(now time.Time) map[string]replicaReport {
	for replica, report := range q.others {
		if now.Sub(report.at) >= reportKept {
			delete(q.others, replica)
		}
	}
	return q.others
}

// latestOfAll is latest, of all replicas together.
func (q *queue) latestOfAll(now time.Time) (finished, failed int) {
	finished, failed = q.latest(now)
	for _, report := range q.reports(now) {
		if report.Number == q.stateNumber {
			finished, failed = finished+report.Finished, failed+report.Failed
		}
	}
	return finished, failed
}
