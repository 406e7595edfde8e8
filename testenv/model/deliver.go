package model

import (
	"slices"
	"strconv"
	"time"
)

// consumer receives the messages of a queue.
type consumer struct {
	ch       *channel
	q        *queue
	tag      string
	number   int // in the order of all consumers
	noAck    bool
	prefetch int // 0: unlimited
	unacked  int
}

// delivery is a message that a channel has not acknowledged.
type delivery struct {
	tag uint64
	*entry
	q  *queue
	to *consumer // nil after basic.get
}

func (q *queue) consumers() int { return len(q.active) + len(q.blocked) }

// publish adds a message to the queue.
func (q *queue) publish(m *message) {
	e := &entry{message: m, failed: m.failed}
	if ttl := q.lifetime(m); ttl >= 0 {
		if q.quorum {
			ttl = max(ttl, 1)
		}
		e.expires = time.Now().Add(time.Duration(ttl) * time.Millisecond)
	}
	if q.quorum {
		q.add(e)
		q.run()
		return
	}
	if len(q.ready) == 0 {
		if co := q.receiver(); co != nil { // even one that expires at once
			q.last++
			e.position = q.last
			q.deliver(co, e)
			return
		}
	}
	e.redelivered = e.failed > 0
	q.add(e)
	q.run()
}

// lifetime is the message's or the queue's, whichever is shorter, in ms; -1 without.
func (q *queue) lifetime(m *message) int64 {
	if !m.content.is(expiration) {
		return q.ttl
	}
	own, _ := strconv.ParseInt(m.content.texts[expiration], 10, 64) // checked when it was published
	if q.ttl >= 0 {
		return min(own, q.ttl)
	}
	return own
}

// run drops what has expired at the head, then delivers while a consumer can receive.
func (q *queue) run() {
	for head := q.head(); head != nil && !q.deleted; head = q.head() {
		if !head.expires.IsZero() && !time.Now().Before(head.expires) {
			q.deadLetter(q.takeHead(), "expired")
			continue
		}
		co := q.receiver()
		if co == nil {
			break
		}
		q.deliver(co, q.takeHead())
	}
	q.watch()
}

// watch sets the alarm for the head: a message behind it expires no earlier.
func (q *queue) watch() {
	if q.alarm != nil {
		q.b.clock.cancel(q.alarm)
		q.alarm = nil
	}
	if head := q.head(); head != nil && !head.expires.IsZero() {
		q.alarm = q.b.clock.set(head.expires, q.run)
	}
}

// receiver is the next consumer in turn that is not at its prefetch.
func (q *queue) receiver() *consumer {
	for len(q.active) > 0 {
		co := q.active[0]
		q.active = q.active[1:]
		if co.full() {
			q.blocked = append(q.blocked, co)
			continue
		}
		q.active = append(q.active, co)
		return co
	}
	return nil
}

// full tells whether a consumer gets nothing now.
func (co *consumer) full() bool {
	return !co.noAck && co.prefetch > 0 && co.unacked >= co.prefetch
}

func (q *queue) deliver(co *consumer, e *entry) {
	d := &delivery{entry: e, q: q, to: co}
	if !co.noAck {
		co.unacked++
	}
	if !q.quorum {
		co.ch.hand(d, e.content, e.redelivered)
		return
	}
	if co.full() { // it takes its turn again when it acknowledges
		q.forget(co)
		q.blocked = append(q.blocked, co)
	}
	co.ch.fly(d)
}

// hand sends a delivery to the client.
func (ch *channel) hand(d *delivery, c *content, redelivered bool) {
	ch.tag++
	d.tag = ch.tag
	if !d.to.noAck {
		ch.unacked = append(ch.unacked, d)
	}
	ch.c.sendContent(ch.number, basicDeliver, func(w *writer) {
		w.shortstr(d.to.tag)
		w.longlong(d.tag)
		w.bool(redelivered)
		w.shortstr(d.exchange)
		w.shortstr(d.key)
	}, c)
}

// get is basic.get.
func (ch *channel) get(q *queue, noAck bool) {
	q.use()
	q.run()
	if q.count() == 0 {
		ch.send(basicGetEmpty, func(w *writer) { w.shortstr("") })
		return
	}
	e := q.takeHead()
	d := &delivery{tag: ch.tag + 1, entry: e, q: q}
	q.watch()
	c, redelivered := e.content, e.redelivered
	if q.quorum {
		c, redelivered = q.counted(e, true)
	}
	ch.tag++
	if !noAck {
		ch.unacked = append(ch.unacked, d)
	}
	ch.c.sendContent(ch.number, basicGetOk, func(w *writer) {
		w.longlong(ch.tag)
		w.bool(redelivered)
		w.shortstr(e.exchange)
		w.shortstr(e.key)
		w.long(uint32(q.count()))
	}, c)
}

// take removes the deliveries that an answer of the client is about.
func (ch *channel) take(tag uint64, multiple bool) ([]*delivery, *fault) {
	if multiple && tag == 0 {
		taken := ch.unacked
		ch.unacked = nil
		return taken, nil
	}
	i := slices.IndexFunc(ch.unacked, func(d *delivery) bool { return d.tag == tag })
	switch {
	case i < 0:
		return nil, faultf(406, "unknown delivery tag %d", tag)
	case multiple:
		taken := ch.unacked[: i+1 : i+1]
		ch.unacked = ch.unacked[i+1:]
		return taken, nil
	}
	taken := ch.unacked[i]
	ch.unacked = slices.Delete(ch.unacked, i, i+1)
	return []*delivery{taken}, nil
}

// settle frees the consumers' prefetch, does something about each message, then delivers.
func settle(taken []*delivery, do func(*delivery)) {
	var queues []*queue
	for _, d := range taken {
		if !slices.Contains(queues, d.q) {
			queues = append(queues, d.q)
		}
		if co := d.to; co != nil {
			co.unacked--
			if i := slices.Index(d.q.blocked, co); i >= 0 && !co.full() {
				d.q.blocked = slices.Delete(d.q.blocked, i, i+1)
				d.q.active = append(d.q.active, co)
			}
		}
	}
	for _, d := range taken {
		if !d.q.deleted {
			do(d)
		}
	}
	for _, q := range queues {
		q.run()
	}
}

func acknowledge(*delivery) {}

func reject(d *delivery) { d.q.deadLetter(d.entry, "rejected") }

// giver is how a message comes back to its queue.
type giver int

const (
	rejected giver = iota
	nacked
	ended // its channel has
)

// requeue puts a message where it was; a quorum queue has its own rules.
func requeue(by giver) func(*delivery) {
	return func(d *delivery) {
		if d.q.quorum {
			d.q.returnToQuorum(d.entry, by)
			return
		}
		d.redelivered = true
		if by != nacked && d.q.b.since4() { // the queue that it is dead-lettered to shows it
			d.failed++
		}
		d.q.insert(d.entry)
	}
}

// forget removes a consumer from its queue.
func (q *queue) forget(co *consumer) {
	same := func(other *consumer) bool { return other == co }
	q.active = slices.DeleteFunc(q.active, same)
	q.blocked = slices.DeleteFunc(q.blocked, same)
}

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
		c.setHeaders(c.headers.with(key, integer(n)))
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
