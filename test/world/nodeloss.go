package world

import (
	"math/rand/v2"
	"slices"
	"time"
)

// drawNodeLoss has RabbitMQ killed or stopped in order, and started again.
//
// What a node that was killed has lost of the world's messages is nothing: they are persistent, and
// what the service does not have confirmed it publishes again. (test/facts pins what each type of
// queue loses. That a killed node may have forgotten a young quorum queue, and what a classic
// queue's dead-lettering loses at a kill, the model does not show.)
//
// With the library's Native a queue itself counts what a handler has when the node ends as failed,
// and the handler may fail it once more after that: of such a message the ledger cannot tell how
// often it failed.
func (s *scenario) drawNodeLoss(r *rand.Rand) {
	if slices.ContainsFunc(s.queues, func(q *workQueue) bool { return q.library != nil && q.library.native }) {
		return
	}
	for range max(0, r.IntN(6)-3) {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: pick(r, nodeKilled, nodeKilled, nodeStopped),
			away: pick(r, 0, time.Second, 20*time.Second, 4*time.Minute)})
	}
}

// endNode kills RabbitMQ or stops it in order, and starts it again after a while.
func (w *World) endNode(f fault) {
	w.ledger.cut()
	w.ledger.nodeAway(f.away)
	if f.kind == nodeKilled {
		w.broker.Kill()
	} else {
		w.broker.Stop()
	}
	w.old.Go(func() {
		time.Sleep(f.away)
		if w.ledger.nodeBack() {
			w.say("RabbitMQ starts again")
			w.broker.Restart()
		}
	})
}

// reconnects is how long a service may take to connect again to a node that is back.
const reconnects = 30 * time.Second

// nodeAway enters that RabbitMQ is away for a while.
func (l *ledger) nodeAway(lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = append(l.away, time.Now().Add(lasts))
}

// nodeBack tells whether nothing keeps RabbitMQ away any more.
func (l *ledger) nodeBack() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, until := range l.away {
		if until.After(time.Now()) {
			return false
		}
	}
	return true
}

// sentUntil is until when the service may publish what it had claimed before since, as the node
// was away: what has no connection waits for one. l.mu is held.
func (l *ledger) sentUntil(since time.Time) time.Time {
	for _, until := range l.away {
		if until = until.Add(reconnects); until.After(since) {
			since = until
		}
	}
	return since
}

// unanswered enters that the publisher of a message does not know whether RabbitMQ has it.
func (l *ledger) unanswered(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[id]; a != nil {
		a.seen = append(a.seen, time.Now())
	}
}
