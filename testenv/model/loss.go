package model

import (
	"slices"
	"time"
)

// Cut ends all connections as a network does: without a word. What was on its way is lost.
func (b *Broker) Cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range slices.Clone(b.connections) {
		c.terminate()
	}
}

// Kill ends the node at once. It has what was confirmed and is on disk when it is started
// again; until then no one can connect.
func (b *Broker) Kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shutDown(false)
}

// Stop ends the node in order: its clients learn why. Otherwise it is as after Kill.
func (b *Broker) Stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shutDown(true)
}

func (b *Broker) shutDown(inOrder bool) {
	b.down = true
	for _, c := range slices.Clone(b.connections) {
		if inOrder {
			c.fail(faultf(320, "broker forced connection closure with reason 'shutdown'"), 0)
		}
		c.terminate()
	}
	for _, name := range sorted(b.exchanges) {
		if x := b.exchanges[name]; x != nil && !x.durable {
			b.removeExchange(x)
		}
	}
	for _, name := range sorted(b.queues) {
		if q := b.queues[name]; q != nil {
			q.crash(inOrder)
		}
	}
}

// Restart starts a node that was killed or stopped. No time has passed for its queues.
func (b *Broker) Restart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down, b.workersEnded = false, false
	for _, name := range sorted(b.queues) {
		q := b.queues[name]
		q.used = time.Now()
		q.watchDelayed()
		if q.worker != nil {
			q.worker.wake()
		}
	}
	b.applyPolicies()
}

// crash is what a node's end does to a queue. Until the node is started again nothing happens
// in it.
func (q *queue) crash(inOrder bool) {
	q.endElection()
	if !q.quorum {
		q.ready = slices.DeleteFunc(q.ready, func(e *entry) bool { return e.content.mode != 2 })
		for _, e := range q.ready {
			e.redelivered = e.redelivered || !inOrder
		}
	}
	clear(q.publishers)
	if q.worker != nil {
		q.worker.crash()
	}
	for _, a := range []**alarm{&q.alarm, &q.unused, &q.delay, &q.timeouts.timer} {
		if *a != nil {
			q.b.clock.cancel(*a)
			*a = nil
		}
	}
	q.timeouts = timeouts{}
}

// crash forgets what has been confirmed to the worker alone: that is published again.
func (w *worker) crash() {
	for _, d := range w.pending {
		d.accepted, d.published = nil, time.Time{}
	}
	w.waiting = append(w.pending, w.waiting...)
	w.pending = nil
	w.cancel()
}
