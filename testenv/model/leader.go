package model

import "time"

// election is a quorum queue without a leader.
type election struct {
	over    *alarm // nil: the queue has one
	at      time.Time
	waiting []func() // what clients want of it
	lost    func(func(string) string)
}

// MoveLeader leaves a quorum queue without a leader for a while, as when the leader's node ends
// and the clients' does not. What they publish and acknowledge counts when there is one again;
// they have everything that was delivered to them, and it is not delivered again. Dead letters at
// most once are lost: of each, lost is called with what reads its headers. It must not call the
// broker; nil does without.
func (b *Broker) MoveLeader(name string, away time.Duration, lost func(text func(header string) string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	if q == nil || !q.quorum || q.leaderless() || b.down {
		return
	}
	q.election.at, q.election.lost = time.Now().Add(away), lost
	q.election.over = b.clock.set(q.election.at, q.elect)
	if q.worker != nil {
		q.worker.crash() // it is a process beside the leader
	}
	q.stopTimeouts()
}

// lose tells of a dead letter that a queue without a leader does not have.
func (q *queue) lose(m *message) {
	if q.election.lost != nil {
		q.election.lost(m.content.headers.text)
	}
}

func (q *queue) leaderless() bool { return q.election.over != nil }

// elect gives the queue a leader, who does what has waited.
func (q *queue) elect() {
	waiting := q.election.waiting
	q.election = election{}
	q.timeouts.timed = 0 // the timer was the former leader's
	for _, do := range waiting {
		do()
	}
	q.run()
	if q.worker != nil {
		q.worker.wake()
	}
}

// endElection is for a queue that ends, or whose node does.
func (q *queue) endElection() {
	if q.leaderless() {
		q.b.clock.cancel(q.election.over)
		q.elect()
	}
}

// whenLed does something now, or when the queue has a leader again.
func (q *queue) whenLed(do func()) {
	if q.leaderless() {
		q.election.waiting = append(q.election.waiting, do)
	} else {
		do()
	}
}

// settleLed leaves out the deliveries of queues without a leader, and settles them later.
func settleLed(taken []*delivery, do func(*delivery)) (now []*delivery) {
	later := map[*queue][]*delivery{}
	for _, d := range taken {
		switch {
		case !d.q.leaderless():
			now = append(now, d)
		case later[d.q] == nil:
			d.q.whenLed(func() { settle(later[d.q], do) })
			fallthrough
		default:
			later[d.q] = append(later[d.q], d)
		}
	}
	return now
}
