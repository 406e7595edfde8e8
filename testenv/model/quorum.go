package model

import (
	"slices"
	"time"
)

const (
	// replication is how long a quorum queue takes: what it delivers and confirms arrives so
	// much later. In the meantime the connection may end.
	replication = time.Millisecond

	tick = 5 * time.Second // a quorum queue looks so often at its x-expires
)

// returnToQuorum puts a message back into a quorum queue: in front, behind what was returned
// before. On RabbitMQ 3, without a delivery limit, what the client returned goes to the end.
func (q *queue) returnToQuorum(e *entry, by giver) {
	e.acquired++
	if by != nacked || !q.b.since4() {
		e.failed++
	}
	switch {
	case q.limited && e.failed > q.deliveryLimit:
		q.deadLetter(e, "delivery_limit")
	case !q.limited && by != ended && !q.b.since4():
		q.add(e)
	default:
		q.returned = append(q.returned, e)
	}
}

// counted is a message as a quorum queue delivers it: with the counts of its returns.
func (q *queue) counted(e *entry, get bool) (c *content, redelivered bool) {
	acquired, c := e.acquired, e.content
	if acquired == 0 {
		acquired = e.failed // of the queue where it was rejected
	}
	with := func(key string, n int64) {
		c = c.copy()
		c.setHeaders(c.headers.with(key, n))
	}
	switch {
	case !q.b.since4():
		if e.failed > 0 || get {
			with("x-delivery-count", e.failed)
		}
		return c, e.failed > 0
	case acquired > 0:
		with("x-acquired-count", acquired)
		if e.failed > 0 {
			with("x-delivery-count", e.failed)
		}
	}
	return c, acquired > 0
}

// fly is a delivery of a quorum queue on its way to the channel.
func (ch *channel) fly(d *delivery) {
	ch.flying = append(ch.flying, d)
	d.q.b.clock.set(time.Now().Add(replication), func() { ch.land(d) })
}

// land delivers a message that has arrived.
func (ch *channel) land(d *delivery) {
	i := slices.Index(ch.flying, d)
	if i < 0 {
		return // it has arrived before; or the channel has ended, and the message is in the queue again
	}
	ch.flying = slices.Delete(ch.flying, i, i+1)
	if d.q.deleted {
		return
	}
	c, redelivered := d.q.counted(d.entry, false)
	ch.hand(d, c, redelivered)
}

// landCancelled delivers what is on its way to consumers that were cancelled: it comes behind the
// answer to that, and before what the client sends next.
func (ch *channel) landCancelled() {
	for _, d := range slices.Clone(ch.flying) {
		if !slices.Contains(ch.consumers, d.to) {
			ch.land(d)
		}
	}
}

// declareQuorum refuses what a quorum queue cannot be.
func (q *queue) declareQuorum() *fault {
	for _, wrong := range []struct {
		is       bool
		property string
	}{{q.autoDelete, "auto-delete"}, {!q.durable, "non-durable"}} {
		if wrong.is {
			return faultf(406, "invalid property '%s' for %s", wrong.property, q.b.in("queue", q.name))
		}
	}
	return nil
}
