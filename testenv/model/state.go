package model

import "slices"

// QueueState is what RabbitMQ's management API says of a queue.
type QueueState struct {
	Messages int // ready, unacknowledged, and dead letters that it keeps
	Ready    int
}

// Queue tells of a queue; false when there is none of this name.
func (b *Broker) Queue(name string) (QueueState, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	if q == nil {
		return QueueState{}, false
	}
	n := q.count() + b.unacknowledged(q)
	if q.worker != nil {
		n += q.worker.count()
	}
	return QueueState{Messages: n, Ready: q.count()}, true
}

// unacknowledged counts a queue's messages that clients have.
func (b *Broker) unacknowledged(q *queue) (n int) {
	for _, c := range b.connections {
		for _, ch := range c.channels {
			for _, d := range append(slices.Clone(ch.unacked), ch.flying...) {
				if d.q == q {
					n++
				}
			}
		}
	}
	return n
}
