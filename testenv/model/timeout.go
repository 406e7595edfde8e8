package model

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	usualConsumerTimeout = 30 * time.Minute

	channelTick = time.Minute // a channel of RabbitMQ 3 looks so often at what is not acknowledged
)

// SetConsumerTimeout changes how long consumers may take, where a queue's own arguments do not
// say it.
func (b *Broker) SetConsumerTimeout(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.consumerTimeout = d
}

// timeouts are what a quorum queue of RabbitMQ 4.3 knows of deliveries that take too long, in ms;
// 0 is never.
type timeouts struct {
	next  int64 // the earliest that it knows of; an ack does not change it
	timed int64 // what next was when it last thought of the timer
	timer *alarm
}

// startTimeout follows a delivery to a client that is to acknowledge it.
func (q *queue) startTimeout(d *delivery) {
	if !q.quorum || !q.b.since4() {
		return
	}
	timeout := q.b.consumerTimeout
	if q.consumerTimeout > 0 {
		timeout = time.Duration(q.consumerTimeout) * time.Millisecond
	}
	d.deadline = time.Now().Add(timeout).UnixMilli()
	q.timeouts.next = earlier(q.timeouts.next, d.deadline)
}

func earlier(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// watchTimeouts follows each command that the queue processes. It sets the timer only to an
// earlier time than before, unless that is over: so after a timer that was handled within its
// millisecond, as here all are, it waits for a command after the next timeout.
func (q *queue) watchTimeouts() {
	t := &q.timeouts
	if !q.quorum || q.deleted || q.b.down {
		return
	}
	timed := t.timed
	if timed < time.Now().UnixMilli() {
		timed = 0
	}
	if t.next != 0 && (timed == 0 || t.next < timed) {
		q.stopTimeouts()
		t.timer = q.b.clock.set(time.UnixMilli(t.next), q.timeOut)
	}
	t.timed = t.next
}

func (q *queue) stopTimeouts() {
	if t := &q.timeouts; t.timer != nil {
		q.b.clock.cancel(t.timer)
		t.timer = nil
	}
}

// timeOut takes back what has not been acknowledged in time. Its consumers get nothing more until
// their clients have said something of all of it.
func (q *queue) timeOut() {
	q.timeouts.timer, q.timeouts.next = nil, 0
	var late []overdue
	for _, ch := range q.b.channels() {
		for _, d := range append(slices.Clone(ch.unacked), ch.flying...) {
			switch {
			case d.q != q || d.stale:
			case d.deadline > time.Now().UnixMilli() || d.tag == 0:
				q.timeouts.next = earlier(q.timeouts.next, d.deadline)
			default:
				late = append(late, overdue{d, ch})
			}
		}
	}
	slices.SortStableFunc(late, func(a, b overdue) int { return cmp.Compare(a.turn(), b.turn()) })
	for _, d := range late {
		d.stale = true
		if d.to != nil {
			d.to.unacked--
			d.to.late++
		}
		q.returnToQuorum(d.entry, nacked)
	}
	for i, d := range late {
		if i == 0 || late[i-1].to != d.to || d.to == nil {
			d.cancel()
		}
	}
	q.run()
	q.dropHead()
}

// overdue is a delivery that took too long.
type overdue struct {
	*delivery
	ch *channel
}

// turn is the consumer's; what was got without one comes last.
func (d overdue) turn() int {
	if d.to == nil {
		return math.MaxInt
	}
	return d.to.number
}

// cancel ends the consumer for its client, and not for RabbitMQ. A client that cannot learn of
// it, or has cancelled it itself, loses the channel.
func (d overdue) cancel() {
	switch {
	case d.ch.closing || !d.ch.opened: // by another of its consumers
	case d.ch.c.canBeCancelled && slices.Contains(d.ch.consumers, d.to):
		d.to.sendCancel()
	default:
		d.ch.fail(d.ch.timedOut(-1))
	}
}

func (ch *channel) timedOut(ms int64) *fault {
	return faultf(406, "delivery acknowledgement on channel %d timed out. Timeout value used: %d ms. "+
		"This timeout value can be configured, see consumers doc guide to learn more", ch.number, ms)
}

// watchUnacked closes a channel of RabbitMQ 3 whose oldest delivery waits for too long.
func (ch *channel) watchUnacked() {
	b := ch.c.b
	if b.since4() || ch.tick != nil || len(ch.unacked) == 0 {
		return
	}
	ch.tick = b.clock.set(time.Now().Add(channelTick), func() {
		ch.tick = nil
		if len(ch.unacked) > 0 && time.Since(ch.unacked[0].at) > b.consumerTimeout {
			ch.fail(ch.timedOut(b.consumerTimeout.Milliseconds()))
			return
		}
		ch.watchUnacked()
	})
}
