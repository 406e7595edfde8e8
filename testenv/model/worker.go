package model

import (
	"slices"
	"time"
)

const (
	inFlight = 32 // dead letters of a worker without a confirm
	patience = 180 * time.Second
)

// worker dead-letters at least once: what no queue accepts it keeps and tries again. It is
// one for each queue.
type worker struct {
	q        *queue
	waiting  []*deadLetter
	pending  []*deadLetter
	tryAgain *alarm
	pass     *alarm
}

type deadLetter struct {
	*entry
	reason    string
	dead      *message
	published time.Time // zero: never
	accepted  []*queue
}

func (w *worker) count() int { return len(w.waiting) + len(w.pending) }

func (w *worker) add(e *entry, reason string) {
	w.waiting = append(w.waiting, &deadLetter{entry: e, reason: reason})
	w.wake()
}

// wake lets it look for what to do, a little later.
func (w *worker) wake() {
	if w.pass == nil && !w.q.b.workersEnded && len(w.waiting) > 0 && len(w.pending) < inFlight {
		w.pass = w.q.b.clock.set(time.Now().Add(replication), w.run)
	}
}

func (w *worker) run() {
	w.pass = nil
	for len(w.waiting) > 0 && len(w.pending) < inFlight {
		d := w.waiting[0]
		w.waiting = w.waiting[1:]
		x := w.q.b.exchanges[w.q.deadExchange]
		if d.dead = w.q.dying(d.entry, d.reason); d.dead == nil {
			w.waiting = append([]*deadLetter{d}, w.waiting...)
			w.q.b.endWorkers()
			return
		}
		w.pending = append(w.pending, d)
		w.publish(x, d)
	}
	w.watch()
}

// publish leaves a message pending unless all queues have accepted it.
func (w *worker) publish(x *exchange, d *deadLetter) {
	if x == nil {
		return
	}
	routed := w.q.b.route(x, d.dead)
	open := slices.DeleteFunc(slices.Clone(routed), func(to *queue) bool { return slices.Contains(d.accepted, to) })
	open = slices.DeleteFunc(open, func(to *queue) bool { return d.reason != "rejected" && d.dead.cycles(to.name) })
	for _, to := range open {
		d.published = time.Now()
		if to.publish(d.dead, w) {
			d.accepted = append(d.accepted, to)
		}
	}
	settled := len(open) > 0 && !slices.ContainsFunc(open, func(to *queue) bool { return !slices.Contains(d.accepted, to) }) ||
		len(routed) == 0 && len(d.accepted) > 0
	if settled {
		w.pending = slices.DeleteFunc(w.pending, func(other *deadLetter) bool { return other == d })
		w.q.informPublishers()
	}
}

// watch sets the time at which it tries again.
func (w *worker) watch() {
	switch {
	case len(w.pending) == 0 && w.tryAgain != nil:
		w.q.b.clock.cancel(w.tryAgain)
		w.tryAgain = nil
	case len(w.pending) > 0 && w.tryAgain == nil:
		w.tryAgain = w.q.b.clock.set(time.Now().Add(patience), func() {
			w.tryAgain = nil
			w.redeliver()
		})
	}
}

// redeliver publishes again what was never published, or long ago.
func (w *worker) redeliver() {
	if w.q.b.workersEnded {
		return
	}
	x := w.q.b.exchanges[w.q.deadExchange]
	for _, d := range slices.Clone(w.pending) {
		if d.published.IsZero() || time.Since(d.published) >= patience {
			w.q.readdress(d)
			w.publish(x, d)
		}
	}
	w.watch()
	w.wake()
}

// readdress follows a policy that has changed.
func (q *queue) readdress(d *deadLetter) {
	d.dead.exchange, d.dead.key, d.dead.copies = q.deadExchange, d.key, d.copies
	if q.hasDK {
		d.dead.key, d.dead.copies = q.deadKey, nil
	}
}

// stop drops what it has.
func (w *worker) stop() {
	w.waiting, w.pending = nil, nil
	w.cancel()
}

func (w *worker) cancel() {
	for _, a := range []**alarm{&w.tryAgain, &w.pass} {
		if *a != nil {
			w.q.b.clock.cancel(*a)
			*a = nil
		}
	}
}
