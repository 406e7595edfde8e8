package model

import (
	"fmt"
	"slices"
)

// channel is one channel of a connection.
type channel struct {
	c      *connection
	number uint16
	opened bool

	closing bool // the model has sent channel.close

	incoming  *publishing // a message whose content is arriving
	lastQueue string      // declared last
	prefetch  int         // of the consumers to come
	confirms  bool
	published uint64      // since confirm.select
	tag       uint64      // of the last delivery
	unacked   []*delivery // by tag
	flying    []*delivery // of quorum queues, on their way
	consumers []*consumer // oldest first
}

func (ch *channel) frame(kind byte, payload []byte) *fault {
	r := &reader{b: payload}
	switch {
	case kind == methodFrame:
		m := method(r.long())
		switch {
		case ch.closing && m == channelCloseOk:
			ch.remove()
			return nil
		case ch.closing && m == channelClose: // both closed it at once
			ch.send(channelCloseOk, nil)
			return nil
		case ch.closing:
			return nil
		case !ch.opened && m != channelOpen:
			return faultf(504, "expected 'channel.open'")
		case ch.incoming != nil:
			return faultf(505, "expected content header for class 60, got non content header frame instead")
		}
		ch.landCancelled()
		f := ch.method(m, r)
		if f == nil && r.err != nil {
			f = faultf(502, "method %s: %v", m, r.err)
		}
		return f
	case ch.closing:
		return nil
	case kind == headerFrame && ch.incoming != nil && ch.incoming.content == nil:
		return ch.header(r)
	case kind == bodyFrame && ch.incoming != nil && ch.incoming.content != nil:
		return ch.body(payload)
	}
	return faultf(505, "frame of type %d", kind)
}

func (ch *channel) method(m method, r *reader) *fault {
	switch m >> 16 {
	case 20, 85:
		return ch.own(m, r)
	case 40:
		return ch.exchangeMethod(m, r)
	case 50:
		return ch.queueMethod(m, r)
	case basicClass:
		return ch.basicMethod(m, r)
	}
	return unknown("method %s", m)
}

// own processes the methods of channel and confirm.
func (ch *channel) own(m method, r *reader) *fault {
	switch m {
	case channelOpen:
		if ch.opened {
			return faultf(504, "second 'channel.open' seen")
		}
		ch.opened = true
		ch.send(channelOpenOk, func(w *writer) { w.longstr("") })
	case channelClose:
		ch.release()
		ch.send(channelCloseOk, nil)
		ch.remove()
	case confirmSelect:
		ch.confirms = true
		ch.answer(r.flags().bit(0), confirmSelectOk, nil)
	default:
		return unknown("method %s", m)
	}
	return nil
}

func (ch *channel) send(m method, write func(*writer)) { ch.c.send(ch.number, m, write) }

// answer sends what a client waits for, unless it said that it does not.
func (ch *channel) answer(noWait bool, m method, write func(*writer)) {
	if !noWait {
		ch.send(m, write)
	}
}

// fail closes the channel; what comes before the client's channel.close-ok is ignored.
func (ch *channel) fail(f *fault) {
	ch.release()
	ch.closing = true
	ch.send(channelClose, func(w *writer) { f.write(w, 0) })
}

func (ch *channel) remove() {
	ch.c.channels = slices.DeleteFunc(ch.c.channels, func(other *channel) bool { return other == ch })
}

// release ends the consumers, then requeues what was not acknowledged.
func (ch *channel) release() {
	consumers, unacked := ch.consumers, append(ch.unacked, ch.flying...)
	ch.consumers, ch.unacked, ch.flying, ch.incoming, ch.opened = nil, nil, nil, nil, false
	for _, co := range consumers {
		co.q.forget(co)
	}
	settle(unacked, requeue(ended))
	for _, co := range consumers {
		co.q.use()
	}
}

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
}
