package model

import (
	"slices"
	"time"
)

const (
	restarts      = 5 // of a classic queue within restartPeriod; at one more RabbitMQ leaves it down
	restartPeriod = 10 * time.Second
)

// crashOver is what RabbitMQ 3 does over a dead letter whose x-death it cannot count on: the
// process that writes it crashes, and is started again.
func (q *queue) crashOver(reason string) {
	switch {
	case q.quorum:
		q.crashed = q.b.step
	case reason != "rejected":
		q.b.giveUp(unknown("crash of %s over a message that is %s", q.b.in("queue", q.name), reason))
	default:
		q.crashClassic()
	}
}

// isDown tells whether a quorum queue has crashed in what is processed now. The dead letters of
// that step are lost, and what it would deliver does not arrive.
func (q *queue) isDown() bool { return q.quorum && q.crashed == q.b.step }

// crashClassic loses what is not persistent, and the consumers. All that clients have not
// acknowledged comes again, and what they then say of it is ignored.
func (q *queue) crashClassic() {
	now := time.Now()
	q.restarted = slices.DeleteFunc(q.restarted, func(at time.Time) bool { return now.Sub(at) > restartPeriod })
	if q.restarted = append(q.restarted, now); len(q.restarted) > restarts {
		q.b.giveUp(unknown("%s that has crashed %d times", q.b.in("queue", q.name), len(q.restarted)))
		return
	}
	back := q.settling
	q.settling = nil
	for _, ch := range q.b.channels() {
		for _, d := range ch.unacked {
			if d.q == q && !d.stale {
				back = append(back, d)
			}
		}
	}
	for _, d := range back {
		d.stale = true
		q.insert(d.entry)
	}
	q.crash(false)
	if !q.durable {
		q.clear()
	}
	q.cancelConsumers()
	q.use()
}

// endWorkers ends dead-lettering at least once for all queues of the node, until it is started
// again: its processes have crashed too often.
func (b *Broker) endWorkers() {
	b.workersEnded = true
	for _, name := range sorted(b.queues) {
		if w := b.queues[name].worker; w != nil {
			w.cancel()
		}
	}
}

// giveUp ends all connections where the model does not know how RabbitMQ goes on.
func (b *Broker) giveUp(f *fault) {
	for _, c := range slices.Clone(b.connections) {
		c.fail(f, 0)
	}
}

// channels are those of all connections, the oldest connection first.
func (b *Broker) channels() (all []*channel) {
	for _, c := range b.connections {
		all = append(all, c.channels...)
	}
	return all
}
