package model

import (
	"fmt"
	"slices"
)

func (ch *channel) basicMethod(m method, r *reader) *fault {
	switch m {
	case basicPublish:
		return ch.publish(r)
	case basicConsume:
		return ch.consume(r)
	case basicCancel:
		tag, noWait := r.shortstr(), r.flags().bit(0)
		ch.cancel(tag)
		ch.answer(noWait, basicCancelOk, func(w *writer) { w.shortstr(tag) })
		return nil
	case basicQos:
		size, prefetch, global := r.long(), r.short(), r.flags().bit(0)
		if size != 0 {
			return faultf(540, "prefetch_size!=0 (%d)", size)
		}
		if global {
			return unknown("global prefetch")
		}
		ch.prefetch = int(prefetch)
		ch.send(basicQosOk, nil)
		return nil
	case basicGet:
		r.short()
		name, noAck := r.shortstr(), r.flags().bit(0)
		q, f := ch.find(name)
		if f == nil {
			ch.get(q, noAck)
		}
		return f
	case basicAck, basicReject, basicNack:
		return ch.settleMethod(m, r)
	}
	return unknown("method %s", m)
}

func (ch *channel) settleMethod(m method, r *reader) *fault {
	tag, f := r.longlong(), r.flags()
	multiple, do := f.bit(0), acknowledge
	switch {
	case m == basicReject && f.bit(0):
		do = requeue(rejected)
	case m == basicNack && f.bit(1):
		do = requeue(nacked)
	case m != basicAck:
		do = reject
	}
	taken, unknownTag := ch.take(tag, multiple && m != basicReject)
	if unknownTag == nil {
		settle(taken, do)
	}
	return unknownTag
}

func (ch *channel) consume(r *reader) *fault {
	b := ch.c.b
	r.short()
	name, tag, f := r.shortstr(), r.shortstr(), r.flags()
	noLocal, noAck, exclusive, noWait := f.bit(0), f.bit(1), f.bit(2), f.bit(3)
	for _, a := range r.table() {
		return unknown("argument %s for a consumer", a.key)
	}
	if noLocal || exclusive {
		return unknown("consumer that is exclusive or no-local")
	}
	q, notFound := ch.find(name)
	switch {
	case notFound != nil:
		return notFound
	case slices.ContainsFunc(ch.consumers, func(co *consumer) bool { return co.tag == tag }):
		return faultf(530, "attempt to reuse consumer tag '%s'", tag)
	}
	b.names++
	if tag == "" {
		tag = fmt.Sprintf("amq.ctag-%022d", b.names)
	}
	co := &consumer{ch: ch, q: q, tag: tag, number: b.names, noAck: noAck, prefetch: ch.prefetch}
	ch.consumers = append(ch.consumers, co)
	ch.answer(noWait, basicConsumeOk, func(w *writer) { w.shortstr(tag) })
	q.active = append(q.active, co)
	q.use()
	q.run()
	return nil
}

// cancel ends a consumer; what it has not acknowledged stays with the channel.
func (ch *channel) cancel(tag string) {
	i := slices.IndexFunc(ch.consumers, func(co *consumer) bool { return co.tag == tag })
	if i < 0 {
		return
	}
	co := ch.consumers[i]
	ch.consumers = slices.Delete(ch.consumers, i, i+1)
	co.q.forget(co)
	co.q.deleteWhenUnused()
}
