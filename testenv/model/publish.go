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
	copies        []string // further routing keys, of the headers CC and BCC
	open          int      // how many of them are of CC
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
	if f := ch.may("write", "exchange", p.exchange); f != nil {
		return f
	}
	b := ch.c.b
	x := b.exchanges[p.exchange]
	if x == nil {
		return faultf(404, "no %s", b.in("exchange", p.exchange))
	}
	if x.internal {
		return faultf(403, "cannot publish to internal %s", b.in("exchange", p.exchange))
	}
	if f := ch.mayTopic("write", x, p.key); f != nil {
		return f
	}
	if f := ch.check(p.content); f != nil {
		return f
	}
	m := &message{exchange: p.exchange, key: p.key, content: p.content}
	if f := m.readCopies(); f != nil {
		return f
	}
	ch.route(x, p, m)
	return nil
}

// check refuses what RabbitMQ refuses, and what the model cannot carry on.
func (ch *channel) check(c *content) *fault {
	if user := c.texts[userID]; c.is(userID) && user != ch.c.userName {
		return faultf(406, "user_id property set to '%s' but authenticated user was '%s'", user, ch.c.userName)
	}
	if c.is(expiration) {
		if ttl, err := strconv.ParseUint(c.texts[expiration], 10, 63); err != nil || ttl > longestTTL {
			return unknown("expiration %q", c.texts[expiration])
		}
	}
	return nil
}

// readCopies reads CC and BCC, and removes BCC.
func (m *message) readCopies() *fault {
	for _, header := range []string{"CC", "BCC"} {
		value, is := m.content.headers.get(header)
		if !is {
			continue
		}
		keys, isArray := value.(array)
		for _, key := range keys {
			text, isText := key.(string)
			isArray = isArray && isText
			m.copies = append(m.copies, text)
			if header == "CC" {
				m.open++
			}
		}
		if !isArray {
			return unknown("%s that is no list of texts", header)
		}
	}
	if m.content.is(headers) {
		m.content.setHeaders(m.content.headers.without("BCC"))
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
	accepted, slow, known := true, false, time.Now()
	for _, q := range to {
		accepted = q.publish(m, ch) && accepted
		slow = slow || q.quorum
		if q.leaderless() && q.election.at.After(known) {
			known = q.election.at
		}
	}
	if !ch.confirms {
		return
	}
	ch.published++
	tag, answer := ch.published, basicAck
	if !accepted {
		answer = basicNack
	}
	confirm := func() {
		if ch.opened && !ch.closing {
			ch.send(answer, func(w *writer) {
				w.longlong(tag)
				w.octet(0)
			})
		}
	}
	if slow {
		ch.c.b.clock.set(known.Add(replication), confirm)
	} else {
		confirm()
	}
}
