package model

import (
	"maps"
	"slices"
	"strconv"
	"strings"
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
	p.mandatory = f.bit(0)
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
		return faultf(404, "no %s", in("exchange", p.exchange))
	}
	if x.flags.bit(3) {
		return faultf(403, "cannot publish to internal %s", in("exchange", p.exchange))
	}
	if f := ch.check(p.content); f != nil {
		return f
	}
	ch.route(x, p, &message{exchange: p.exchange, key: p.key, content: p.content})
	return nil
}

// check refuses what RabbitMQ refuses, and what the model cannot carry on.
func (ch *channel) check(c *content) *fault {
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
	if c.is(priority) || c.is(userID) {
		return unknown("priority, or user's id")
	}
	if _, is := deathsIn(c.headers); !is && !ch.c.b.since4() {
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

// exchange routes by its bindings, which are in the order in which they were made.
type exchange struct {
	name, kind string
	flags      flags // of its declaration: durable 1, auto-delete 2, internal 3
	arguments  table
	bindings   []*binding
}

// binding leads to a queue or to an exchange.
type binding struct {
	source   *exchange
	queue    *queue
	exchange *exchange
	key      string
}

func (x *exchange) alternate() string { return x.arguments.text("alternate-exchange") }

// route finds the queues of a message, each once.
func (b *Broker) route(from *exchange, m *message) (to []*queue) {
	visited := map[*exchange]bool{}
	var visit func(x *exchange)
	visit = func(x *exchange) {
		if x == nil || visited[x] {
			return
		}
		visited[x] = true
		if x.name == "" {
			if q := b.queues[m.key]; q != nil && !slices.Contains(to, q) {
				to = append(to, q)
			}
			return
		}
		routed := false
		for _, bound := range x.bindings {
			switch {
			case !bound.matches(m.key):
				continue
			case bound.exchange != nil:
				visit(bound.exchange)
			case !slices.Contains(to, bound.queue):
				to = append(to, bound.queue)
			}
			routed = true
		}
		if alternate := x.alternate(); !routed && alternate != "" {
			visit(b.exchanges[alternate])
		}
	}
	visit(from)
	return to
}

func (bound *binding) matches(key string) bool {
	switch bound.source.kind {
	case "fanout":
		return true
	case "topic":
		return topicMatches(words(bound.key), words(key))
	}
	return bound.key == key
}

func words(key string) []string {
	if key == "" {
		return nil
	}
	return strings.Split(key, ".")
}

func topicMatches(pattern, key []string) bool {
	switch {
	case len(pattern) == 0:
		return len(key) == 0
	case pattern[0] == "#":
		return topicMatches(pattern[1:], key) || len(key) > 0 && topicMatches(pattern, key[1:])
	case len(key) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == key[0]) && topicMatches(pattern[1:], key[1:])
}

func (ch *channel) exchangeMethod(m method, r *reader) *fault {
	switch m {
	case exchangeDeclare:
		return ch.declareExchange(r)
	case exchangeBind:
		r.short()
		destination, source, key := r.shortstr(), r.shortstr(), r.shortstr()
		noWait, arguments := r.flags().bit(0), r.table()
		bound := &binding{exchange: ch.c.b.exchanges[destination], key: key}
		if f := ch.bindTo(source, bound, "exchange", destination, arguments); f != nil {
			return f
		}
		ch.answer(noWait, exchangeBind.ok(), nil)
		return nil
	}
	return unknown("method %s", m)
}

func (ch *channel) declareExchange(r *reader) *fault {
	b := ch.c.b
	r.short()
	declared := &exchange{name: r.shortstr(), kind: r.shortstr()}
	f := r.flags()
	passive, noWait := f.bit(0), f.bit(4)
	declared.flags = f &^ 0b10001
	declared.arguments = r.table()
	there := b.exchanges[declared.name]
	switch {
	case passive && there == nil:
		return faultf(404, "no %s", in("exchange", declared.name))
	case passive:
	case declared.name == "" || !slices.Contains([]string{"direct", "fanout", "topic"}, declared.kind):
		return unknown("exchange type '%s'", declared.kind)
	case there != nil && (there.kind != declared.kind || there.flags != declared.flags || there.alternate() != declared.alternate()):
		return faultf(406, "inequivalent arg for %s", in("exchange", declared.name))
	case there != nil:
	default:
		for _, a := range declared.arguments {
			if _, text := a.value.(string); a.key != "alternate-exchange" || !text {
				return unknown("argument %s for an exchange", a.key)
			}
		}
		b.exchanges[declared.name] = declared
	}
	ch.answer(noWait, exchangeDeclare.ok(), nil)
	return nil
}

// unbind removes bindings, and the auto-delete exchanges whose last that was.
func (b *Broker) unbind(which func(*binding) bool) {
	for _, name := range slices.Sorted(maps.Keys(b.exchanges)) { // in no other order
		x := b.exchanges[name]
		if x == nil {
			continue // removed meanwhile, as auto-delete
		}
		before := len(x.bindings)
		x.bindings = slices.DeleteFunc(x.bindings, which)
		if x.flags.bit(2) && before > 0 && len(x.bindings) == 0 {
			delete(b.exchanges, name)
			b.unbind(func(bound *binding) bool { return bound.exchange == x })
		}
	}
}

// bindTo makes a binding to a queue or an exchange, which may not exist.
func (ch *channel) bindTo(source string, bound *binding, kind, destination string, arguments table) *fault {
	b := ch.c.b
	switch bound.source = b.exchanges[source]; {
	case source == "" || destination == "" || len(arguments) > 0:
		return unknown("binding of the default exchange, or with arguments")
	case bound.queue == nil && bound.exchange == nil:
		return faultf(404, "no %s", in(kind, destination))
	case bound.source == nil:
		return faultf(404, "no %s", in("exchange", source))
	}
	if !slices.ContainsFunc(bound.source.bindings, func(other *binding) bool { return *other == *bound }) {
		bound.source.bindings = append(bound.source.bindings, bound)
	}
	return nil
}
