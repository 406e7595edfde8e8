package model

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// consumer receives the messages of a queue.
type consumer struct {
	ch        *channel
	q         *queue
	tag       string
	number    int // in the order of all consumers
	noAck     bool
	exclusive bool
	prefetch  int // 0: unlimited
	unacked   int
}

// delivery is a message that a channel has not acknowledged.
type delivery struct {
	tag uint64
	*entry
	q  *queue
	to *consumer // nil after basic.get
}

func (q *queue) consumers() int { return len(q.active) + len(q.blocked) }

// publish adds a message to the queue; false when the queue is full and rejects it.
func (q *queue) publish(m *message) bool {
	if q.rejects && q.maxLength >= 0 && int64(len(q.ready)) >= q.maxLength {
		return false
	}
	q.last++
	e := &entry{message: m, position: q.last, redelivered: m.redelivered}
	if ttl := q.lifetime(m); ttl >= 0 {
		e.expires = time.Now().Add(time.Duration(ttl) * time.Millisecond)
	}
	if len(q.ready) == 0 {
		if co := q.receiver(); co != nil { // even one that expires at once
			q.deliver(co, e)
			return true
		}
	}
	q.ready = append(q.ready, e)
	q.dropHead()
	q.run()
	return true
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

// dropHead keeps the queue's length.
func (q *queue) dropHead() {
	for !q.rejects && q.maxLength >= 0 && int64(len(q.ready)) > q.maxLength {
		head := q.ready[0]
		q.ready = q.ready[1:]
		q.deadLetter(head, "maxlen")
	}
}

// run drops what has expired at the head, then delivers while a consumer can receive.
func (q *queue) run() {
	for !q.deleted && len(q.ready) > 0 {
		head := q.ready[0]
		if !head.expires.IsZero() && !time.Now().Before(head.expires) {
			q.ready = q.ready[1:]
			q.deadLetter(head, "expired")
			continue
		}
		co := q.receiver()
		if co == nil {
			break
		}
		q.ready = q.ready[1:]
		q.deliver(co, head)
	}
	q.watch()
}

// watch sets the alarm for the head: a message behind it expires no earlier.
func (q *queue) watch() {
	if q.alarm != nil {
		q.b.clock.cancel(q.alarm)
		q.alarm = nil
	}
	if len(q.ready) > 0 && !q.ready[0].expires.IsZero() {
		q.alarm = q.b.clock.set(q.ready[0].expires, q.run)
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

func (co *consumer) full() bool { return !co.noAck && co.prefetch > 0 && co.unacked >= co.prefetch }

func (q *queue) deliver(co *consumer, e *entry) {
	ch := co.ch
	ch.tag++
	if !co.noAck {
		co.unacked++
		ch.unacked = append(ch.unacked, &delivery{ch.tag, e, q, co})
	}
	ch.c.sendContent(ch.number, basicDeliver, func(w *writer) {
		w.shortstr(co.tag)
		w.longlong(ch.tag)
		w.bool(e.redelivered)
		w.shortstr(e.exchange)
		w.shortstr(e.key)
	}, e.content)
}

// get is basic.get.
func (ch *channel) get(q *queue, noAck bool) {
	q.run()
	if len(q.ready) == 0 {
		ch.send(basicGetEmpty, func(w *writer) { w.shortstr("") })
		return
	}
	e := q.ready[0]
	q.ready = q.ready[1:]
	q.watch()
	ch.tag++
	if !noAck {
		ch.unacked = append(ch.unacked, &delivery{ch.tag, e, q, nil})
	}
	ch.c.sendContent(ch.number, basicGetOk, func(w *writer) {
		w.longlong(ch.tag)
		w.bool(e.redelivered)
		w.shortstr(e.exchange)
		w.shortstr(e.key)
		w.long(uint32(len(q.ready)))
	}, e.content)
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
		q.dropHead() // what was requeued counts
		q.run()
	}
}

func acknowledge(*delivery) {}

func reject(d *delivery) { d.q.deadLetter(d.entry, "rejected") }

// requeue puts a message where it was.
func requeue(d *delivery) {
	q := d.q
	d.redelivered = true
	at, _ := slices.BinarySearchFunc(q.ready, d.position, func(e *entry, p uint64) int { return cmp.Compare(e.position, p) })
	q.ready = slices.Insert(q.ready, at, d.entry)
}

// forget removes a consumer from its queue.
func (q *queue) forget(co *consumer) {
	same := func(other *consumer) bool { return other == co }
	q.active = slices.DeleteFunc(q.active, same)
	q.blocked = slices.DeleteFunc(q.blocked, same)
}

// deleteWhenUnused follows the end of a consumer.
func (q *queue) deleteWhenUnused() {
	if q.autoDelete && q.consumers() == 0 && !q.deleted {
		q.b.deleteQueue(q)
	}
}
