package model

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// queue is a classic or a quorum queue.
type queue struct {
	b         *Broker
	name      string
	arguments table
	quorum    bool
	settings

	backlog
	active         []*consumer // in the order in which they receive
	blocked        []*consumer // wait for an ack
	alarm          *alarm      // of the head's expiry
	declared, used time.Time
	unused         *alarm // of x-expires
	deleted        bool

	worker *worker // of a quorum queue that dead-letters at least once
}

func (ch *channel) queueMethod(m method, r *reader) *fault {
	r.short()
	name := r.shortstr()
	if m == queueDeclare {
		f := r.flags()
		return ch.declareQueue(name, f, r.table())
	}
	q, f := ch.find(name)
	if f != nil && (m != queueDelete || f.code != 404) { // to delete what is not there succeeds
		return f
	}
	switch m {
	case queueBind:
		source, key := r.shortstr(), r.shortstr()
		noWait := r.flags().bit(0)
		if f := ch.bindTo(source, &binding{queue: q, key: key}, "queue", name, r.table()); f != nil {
			return f
		}
		ch.answer(noWait, queueBindOk, nil)
	case queueDelete:
		f, n := r.flags(), 0
		if f.bit(0) || f.bit(1) {
			return unknown("deletion only of what is unused or empty")
		}
		if q != nil {
			n = q.count()
			ch.c.b.deleteQueue(q)
		}
		ch.answer(f.bit(2), queueDeleteOk, func(w *writer) { w.long(uint32(n)) })
	default:
		return unknown("method %s", m)
	}
	return nil
}

// find finds a queue; "" is the last that was declared.
func (ch *channel) find(name string) (*queue, *fault) {
	if name == "" {
		if name = ch.lastQueue; name == "" {
			return nil, faultf(404, "no previously declared queue")
		}
	}
	if q := ch.c.b.queues[name]; q != nil {
		return q, nil
	}
	return nil, faultf(404, "no %s", ch.c.b.in("queue", name))
}

func (ch *channel) declareQueue(name string, f flags, arguments table) *fault {
	passive, durable, exclusive, autoDelete, noWait := f.bit(0), f.bit(1), f.bit(2), f.bit(3), f.bit(4)
	if exclusive || autoDelete {
		return unknown("exclusive or auto-delete queue")
	}
	q, notFound := ch.find(name)
	switch {
	case passive && notFound != nil:
		return notFound
	case passive:
	case name != "" && q != nil:
		if !q.isSame(durable, arguments) {
			return faultf(406, "inequivalent arg for %s", ch.c.b.in("queue", name))
		}
	case strings.HasPrefix(name, "amq."):
		return faultf(403, "queue name '%s' contains reserved prefix 'amq.*'", name)
	default:
		var f *fault
		if !durable {
			return unknown("queue that is not durable")
		}
		if q, f = ch.newQueue(name, arguments); f != nil {
			return f
		}
	}
	ch.lastQueue = q.name
	if !q.quorum && !passive {
		q.use()
	}
	ch.answer(noWait, queueDeclareOk, func(w *writer) {
		w.shortstr(q.name)
		w.long(uint32(q.count()))
		w.long(uint32(q.consumers()))
	})
	return nil
}

func (ch *channel) newQueue(name string, arguments table) (*queue, *fault) {
	b := ch.c.b
	if name == "" {
		b.names++
		name = fmt.Sprintf("amq.gen-%022d", b.names)
	}
	q := &queue{b: b, name: name, arguments: arguments, declared: time.Now()}
	if f := q.configure(); f != nil {
		return nil, f
	}
	b.queues[name] = q
	q.use()
	return q, nil
}

// isSame reports whether a queue would be declared as it is.
func (q *queue) isSame(durable bool, arguments table) bool {
	if _, is := arguments.get("x-queue-type"); !is && q.b.since4() {
		arguments = arguments.with("x-queue-type", "classic")
	}
	return durable && !slices.ContainsFunc(q.argumentNames(), func(key string) bool {
		n, isNew := arguments.get(key)
		o, isOld := q.arguments.get(key)
		newInteger, isInteger := whole(n)
		oldInteger, wasInteger := whole(o)
		return isNew != isOld || !reflect.DeepEqual(n, o) && !(isInteger && wasInteger && newInteger == oldInteger)
	})
}

// deleteQueue drops its messages and cancels its consumers.
func (b *Broker) deleteQueue(q *queue) {
	delete(b.queues, q.name)
	q.deleted = true
	q.clear()
	q.watch()
	q.watchUse()
	if q.worker != nil {
		q.worker.stop()
	}
	q.cancelConsumers()
	b.unbind(func(bound *binding) bool { return bound.queue == q })
}

// cancelConsumers ends all of them, and tells their clients.
func (q *queue) cancelConsumers() {
	consumers := append(q.active, q.blocked...)
	q.active, q.blocked = nil, nil
	slices.SortFunc(consumers, func(a, b *consumer) int { return int(a.number) - int(b.number) })
	for _, co := range consumers {
		co.ch.consumers = slices.DeleteFunc(co.ch.consumers, func(other *consumer) bool { return other == co })
		co.sendCancel()
	}
}

func (co *consumer) sendCancel() {
	co.ch.send(basicCancel, func(w *writer) {
		w.shortstr(co.tag)
		w.octet(1)
	})
}

const (
	longestTTL           = 315_360_000_000 // ms
	defaultDeliveryLimit = 20              // of quorum queues since RabbitMQ 4.0
)

// settings are what a queue's arguments say.
type settings struct {
	ttl, expires  int64 // ms; -1 without
	limited       bool  // by deliveryLimit
	deliveryLimit int64
	deadExchange  string
	deadKey       string
	hasDead       bool
	hasDK         bool
}

// The arguments that each type of queue has, in the order in which they are compared.
var (
	classicArguments = []string{"x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key",
		"x-overflow", "x-queue-type"}
	quorumArguments = []string{"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires",
		"x-overflow", "x-queue-type", "x-delivery-limit", "x-message-ttl"}
)

func (q *queue) argumentNames() []string {
	if q.quorum {
		return quorumArguments
	}
	return classicArguments
}

// configure reads the arguments of a new queue.
func (q *queue) configure() *fault {
	kind, isText := "classic", true
	if value, is := q.arguments.get("x-queue-type"); is {
		kind, isText = value.(string)
	} else if q.b.since4() {
		q.arguments = q.arguments.with("x-queue-type", kind)
	}
	if kind != "classic" && kind != "quorum" || !isText {
		return unknown("queue type %s", kind)
	}
	q.quorum = kind == "quorum"
	for _, a := range q.arguments {
		if f := q.check(a.key, a.value); f != nil {
			return f
		}
	}
	q.readSettings()
	return nil
}

func (q *queue) check(key string, value any) *fault {
	if !slices.Contains(q.argumentNames(), key) {
		return unknown("argument %s for this type of queue", key)
	}
	text, isText := value.(string)
	n, isNumber := whole(value)
	switch key {
	case "x-message-ttl", "x-expires", "x-delivery-limit":
		if !isNumber || key != "x-delivery-limit" && (n < 0 || n > longestTTL) || key == "x-expires" && n == 0 {
			return unknown("%s = %v", key, value)
		}
		return nil
	case "x-dead-letter-strategy", "x-overflow":
		if !slices.Contains([]string{"at-most-once", "at-least-once", "drop-head", "reject-publish"}, text) {
			return unknown("%s = %v", key, value)
		}
	}
	if !isText {
		return unknown("%s = %v", key, value)
	}
	return nil
}

// readSettings reads what holds.
func (q *queue) readSettings() {
	number := func(name string) int64 {
		value, _ := q.arguments.get(name)
		if n, is := whole(value); is {
			return n
		}
		return -1
	}
	text := func(name string) (string, bool) {
		value, _ := q.arguments.get(name)
		text, is := value.(string)
		return text, is
	}
	s := settings{ttl: number("x-message-ttl"), expires: number("x-expires"), deliveryLimit: number("x-delivery-limit")}
	_, has := q.arguments.get("x-delivery-limit")
	if !has && q.b.since4() {
		s.deliveryLimit = defaultDeliveryLimit
	}
	s.limited = q.quorum && (s.deliveryLimit >= 0 || has && !q.b.since4())
	s.deadExchange, s.hasDead = text("x-dead-letter-exchange")
	s.deadKey, s.hasDK = text("x-dead-letter-routing-key")
	overflow, _ := text("x-overflow")
	if strategy, _ := text("x-dead-letter-strategy"); q.quorum && s.hasDead && overflow == "reject-publish" && strategy == "at-least-once" {
		q.worker = &worker{q: q}
	}
	q.settings = s
}

// entry is a message in a queue.
type entry struct {
	*message
	position    uint64
	expires     time.Time // zero: never
	redelivered bool

	// Of a quorum queue: how often it was returned, and how often of that as failed. Until
	// RabbitMQ 4.3 the two are one.
	acquired, failed int64
}

// backlog is what a queue has ready. A quorum queue delivers what was returned first, in the
// order in which it was returned.
type backlog struct {
	returned []*entry
	ready    []*entry // by position
	last     uint64   // position
}

func (l *backlog) count() int { return len(l.returned) + len(l.ready) }

// head is the next message; nil without one.
func (l *backlog) head() *entry {
	switch {
	case len(l.returned) > 0:
		return l.returned[0]
	case len(l.ready) > 0:
		return l.ready[0]
	}
	return nil
}

// takeHead removes the next message.
func (l *backlog) takeHead() *entry {
	e := l.head()
	if len(l.returned) > 0 {
		l.returned = l.returned[1:]
	} else {
		l.ready = l.ready[1:]
	}
	return e
}

// add gives a message the last position.
func (l *backlog) add(e *entry) {
	l.last++
	e.position = l.last
	l.insert(e)
}

// insert puts a message where its position is.
func (l *backlog) insert(e *entry) {
	at, _ := slices.BinarySearchFunc(l.ready, e, func(a, b *entry) int {
		return cmp.Compare(a.position, b.position)
	})
	l.ready = slices.Insert(l.ready, at, e)
}

func (l *backlog) clear() { l.returned, l.ready = nil, nil }

// use renews x-expires.
func (q *queue) use() {
	q.used = time.Now()
	q.watchUse()
}

// watchUse sets the time at which an unused queue is deleted, or looked at. A classic queue
// is deleted when its time is over, a quorum queue when it looks next.
func (q *queue) watchUse() {
	if q.unused != nil {
		q.b.clock.cancel(q.unused)
		q.unused = nil
	}
	if q.expires < 0 || q.deleted || !q.quorum && q.consumers() > 0 {
		return
	}
	at := q.used.Add(time.Duration(q.expires) * time.Millisecond)
	if q.quorum {
		at = time.Now().Add(tick - time.Since(q.declared)%tick)
	}
	q.unused = q.b.clock.set(at, func() {
		q.unused = nil
		over := time.Since(q.used) >= time.Duration(q.expires)*time.Millisecond
		switch {
		case over && q.consumers() == 0 && q.b.unacknowledged(q) == 0:
			q.b.deleteQueue(q)
		default:
			q.watchUse()
		}
	})
}
