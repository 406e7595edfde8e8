package model

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// queue is a classic or a quorum queue.
type queue struct {
	b                   *Broker
	name                string
	durable, autoDelete bool
	arguments           table
	quorum              bool
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
	case queueBind, queueUnbind:
		source, key := r.shortstr(), r.shortstr()
		noWait, answer := false, queueUnbindOk
		if m == queueBind {
			noWait, answer = r.flags().bit(0), queueBindOk
		}
		if source == "" {
			return faultf(403, "operation not permitted on the default exchange")
		}
		bound := &binding{queue: q, key: key, arguments: r.table()}
		if f := ch.bindTo(source, bound, "queue", name, m == queueUnbind); f != nil {
			return f
		}
		ch.answer(noWait, answer, nil)
	case queuePurge:
		noWait, n := r.flags().bit(0), q.purge()
		ch.answer(noWait, queuePurgeOk, func(w *writer) { w.long(uint32(n)) })
	case queueDelete:
		f := r.flags()
		n := 0
		if q != nil {
			switch n = q.count(); {
			case q.quorum && (f.bit(0) || f.bit(1)):
				return faultf(540, "cannot delete %s. queue.delete operations with flags are not supported by quorum queues", ch.c.b.in("queue", q.name))
			case f.bit(1) && n > 0:
				return faultf(406, "%s not empty", ch.c.b.in("queue", q.name))
			case f.bit(0) && q.consumers() > 0:
				return faultf(406, "%s in use", ch.c.b.in("queue", q.name))
			}
			ch.c.b.deleteQueue(q)
		}
		ch.answer(f.bit(2), queueDeleteOk, func(w *writer) { w.long(uint32(n)) })
	default:
		return unknown("method %s", m)
	}
	return nil
}

// purge drops what is ready.
func (q *queue) purge() (n int) {
	n = q.count()
	q.clear()
	q.watch()
	return n
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
	if exclusive {
		return unknown("exclusive queue")
	}
	q, notFound := ch.find(name)
	switch {
	case passive && notFound != nil:
		return notFound
	case passive:
	case name != "" && q != nil:
		if f := ch.sameQueue(q, durable, autoDelete, arguments); f != nil {
			return f
		}
	case strings.HasPrefix(name, "amq."):
		return faultf(403, "queue name '%s' contains reserved prefix 'amq.*'", name)
	default:
		var f *fault
		if q, f = ch.newQueue(name, durable, autoDelete, arguments); f != nil {
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

func (ch *channel) newQueue(name string, durable, autoDelete bool, arguments table) (*queue, *fault) {
	b := ch.c.b
	if name == "" {
		b.names++
		name = fmt.Sprintf("amq.gen-%022d", b.names)
	}
	q := &queue{b: b, name: name, durable: durable, autoDelete: autoDelete, arguments: arguments, declared: time.Now()}
	if f := q.configure(); f != nil {
		return nil, f
	}
	b.queues[name] = q
	q.use()
	return q, nil
}

// sameQueue refuses to declare a queue again otherwise.
func (ch *channel) sameQueue(q *queue, durable, autoDelete bool, arguments table) *fault {
	subject := ch.c.b.in("queue", q.name)
	switch {
	case durable != q.durable:
		return inequivalent("durable", subject, "'"+truth(durable)+"'", "'"+truth(q.durable)+"'")
	case autoDelete != q.autoDelete:
		return inequivalent("auto_delete", subject, "'"+truth(autoDelete)+"'", "'"+truth(q.autoDelete)+"'")
	}
	if _, is := arguments.get("x-queue-type"); !is && ch.c.b.since4() {
		arguments = arguments.with("x-queue-type", "classic")
	}
	return sameArguments(subject, arguments, q.arguments, q.argumentNames()...)
}

// sameArguments compares those that matter.
func sameArguments(subject string, received, current table, keys ...string) *fault {
	for _, key := range keys {
		n, isNew := received.get(key)
		o, isOld := current.get(key)
		newInteger, isInteger := whole(n)
		oldInteger, wasInteger := whole(o)
		if isNew == isOld && (reflect.DeepEqual(n, o) || isInteger && wasInteger && newInteger == oldInteger) {
			continue
		}
		if isNew && isOld && typeName(n) == typeName(o) {
			return inequivalent(key, subject, fmt.Sprintf("'%v'", n), fmt.Sprintf("'%v'", o))
		}
		return inequivalent(key, subject, described(n, isNew), described(o, isOld))
	}
	return nil
}

func described(value any, is bool) string {
	if !is {
		return "none"
	}
	return fmt.Sprintf("the value '%v' of type '%s'", value, typeName(value))
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
