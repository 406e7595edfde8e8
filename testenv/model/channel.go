package model

import (
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
	r := &reader{b: payload, signed: ch.c.b.since4()}
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
	case channelFlow:
		if !r.flags().bit(0) {
			return faultf(540, "active=false")
		}
		ch.send(channelFlowOk, func(w *writer) { w.bool(true) })
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

// release ends the consumers, then requeues what was not acknowledged, then deletes the
// queues whose last consumer that was.
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
	for _, co := range consumers {
		co.q.deleteWhenUnused()
	}
}
