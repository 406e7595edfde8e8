package world

import (
	"math/rand/v2"
	"sync"
	"time"
)

// drawLeaderChanges has quorum queues without a leader for a while: the intake above all.
func (s *scenario) drawLeaderChanges(r *rand.Rand) {
	for range max(0, r.IntN(6)-2) {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: leaderChange, conn: pick(r, 0, r.IntN(100)),
			away: pick(r, 500*time.Millisecond, 5*time.Second, time.Minute)})
	}
}

// changeLeader is of the intake or of another quorum queue.
func (w *World) changeLeader(f fault) {
	all := append([]string{"redrive.intake"}, w.broker.QuorumQueues()...)
	queue := all[f.conn%len(all)]
	w.say("%s has no leader", queue)
	w.broker.MoveLeader(queue, f.away, func(text func(header string) string) { w.ledger.lost.add(text(idHeader)) })
}

// lost are messages that RabbitMQ says it has lost: dead letters at most once, where the queue had
// no leader. It has a lock of its own, since RabbitMQ's is held where it is written.
type lost struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (l *lost) add(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ids == nil {
		l.ids = map[string]bool{}
	}
	l.ids[id] = true
}

func (l *lost) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ids[id]
}
