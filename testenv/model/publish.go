package model

import (
	"strconv"
	"time"
)

// publishing is a message on its way into the broker.
type publishing struct {
	exchange, key string
	mandatory     bool
	content       *content
	size          uint64
}

// message is one that the broker has. Copies in several queues share it.
type message struct {
	exchange, key string
	content       *content
	deaths        []death // newest first; on RabbitMQ 3 they are in the headers alone
	first         *death
	failed        int64 // of a dead letter of RabbitMQ 4: how often it was returned or rejected
}

func (ch *channel) publish(r *reader) *fault {
	r.short()
	p := &publishing{exchange: r.shortstr(), key: r.shortstr()}
	f := r.flags()
	if p.mandatory = f.bit(0); f.bit(1) {
		return faultf(540, "immediate=true")
	}
	ch.incoming = p
	return nil
}

func (ch *channel) header(r *reader) *fault {
	if class := r.short(); class != basicClass {
		return faultf(505, "expected content header for class 60, got one for class %d instead", class)
	}
	r.short()
	ch.incoming.size = r.longlong()
	ch.incoming.content = readProperties(r)
	if r.err != nil {
		return faultf(502, "properties: %v", r.err)
	}
	most := uint64(134_217_728)
	if ch.c.b.since4() {
		most = 16_777_216
	}
	if size := ch.incoming.size; size > most {
		return faultf(406, "message size %d is larger than max size %d", size, most)
	}
	return ch.whole()
}

func (ch *channel) body(part []byte) *fault {
	p := ch.incoming
	p.content.body = append(p.content.body, part...)
	return ch.whole()
}

// whole publishes the message when all of it is there.
func (ch *channel) whole() *fault {
	p := ch.incoming
	switch n := uint64(len(p.content.body)); {
	case n < p.size:
		return nil
	case n > p.size:
		return faultf(505, "a body of %d bytes where %d are declared", n, p.size)
	}
	ch.incoming = nil
	b := ch.c.b
	x := b.exchanges[p.exchange]
	if x == nil {
		return faultf(404, "no %s", b.in("exchange", p.exchange))
	}
	if x.internal {
		return faultf(403, "cannot publish to internal %s", b.in("exchange", p.exchange))
	}
	if f := ch.check(p.content); f != nil {
		return f
	}
	ch.route(x, p, &message{exchange: p.exchange, key: p.key, content: p.content})
	return nil
}

// check refuses what RabbitMQ refuses, and what the model cannot carry on.
func (ch *channel) check(c *content) *fault {
	if user := c.texts[userID]; c.is(userID) && user != "guest" {
		return faultf(406, "user_id property set to '%s' but authenticated user was 'guest'", user)
	}
	if c.is(expiration) {
		if ttl, err := strconv.ParseUint(c.texts[expiration], 10, 63); err != nil || ttl > longestTTL {
			return unknown("expiration %q", c.texts[expiration])
		}
	}
	for _, header := range []string{"CC", "BCC"} {
		if _, is := c.headers.get(header); is {
			return unknown("header %s", header)
		}
	}
	if c.is(priority) {
		return unknown("priority")
	}
	if !ch.c.b.since4() && !wellFormed(c.headers) {
		return unknown("x-death %v", c.headers)
	}
	return nil
}

// route publishes to the queues, then returns or confirms.
func (ch *channel) route(x *exchange, p *publishing, m *message) {
	to := ch.c.b.route(x, m)
	if len(to) == 0 && p.mandatory {
		ch.c.sendContent(ch.number, basicReturn, func(w *writer) {
			w.short(312)
			w.shortstr("NO_ROUTE")
			w.shortstr(p.exchange)
			w.shortstr(p.key)
		}, p.content)
	}
	slow := false
	for _, q := range to {
		q.publish(m)
		slow = slow || q.quorum
	}
	if !ch.confirms {
		return
	}
	ch.published++
	tag := ch.published
	confirm := func() {
		if ch.opened && !ch.closing {
			ch.send(basicAck, func(w *writer) {
				w.longlong(tag)
				w.octet(0)
			})
		}
	}
	if slow {
		ch.c.b.clock.set(time.Now().Add(replication), confirm)
	} else {
		confirm()
	}
}
