package model

import "slices"

// QueueState is what RabbitMQ's management API says of a queue.
type QueueState struct {
	Messages int // ready, unacknowledged, and dead letters that it keeps
	Ready    int
	Policy   string // that applies
}

// Queue tells of a queue; false when there is none of this name.
func (b *Broker) Queue(name string) (QueueState, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	if q == nil {
		return QueueState{}, false
	}
	n := q.count() + len(q.delayed) + b.unacknowledged(q)
	if q.worker != nil {
		n += q.worker.count()
	}
	s := QueueState{Messages: n, Ready: q.count()}
	if q.policy != nil {
		s.Policy = q.policy.Name
	}
	return s, true
}

// Peek is the body of a queue's first message, which is delivered for that and put back; false
// when the queue has none.
func (b *Broker) Peek(name string) (body []byte, is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	if q != nil {
		q.run()
	}
	if q == nil || q.count() == 0 {
		return nil, false
	}
	e := q.takeHead()
	settle([]*delivery{{entry: e, q: q}}, requeue(ended))
	return e.content.body, true
}

// QuorumQueues are the names of all, in order.
func (b *Broker) QuorumQueues() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(sorted(b.queues), func(name string) bool { return !b.queues[name].quorum })
}

// Purge drops what a queue has ready.
func (b *Broker) Purge(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.queues[name]; q != nil {
		q.purge()
	}
}

// unacknowledged counts a queue's messages that clients have.
func (b *Broker) unacknowledged(q *queue) (n int) {
	for _, ch := range b.channels() {
		for _, d := range append(slices.Clone(ch.unacked), ch.flying...) {
			if d.q == q && !d.stale {
				n++
			}
		}
	}
	return n
}
