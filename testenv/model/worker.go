package model

import (
	"slices"
	"time"
)

const (
	inFlight = 32 // dead letters of a worker without a confirm
	patience = 180 * time.Second
)

// worker dead-letters at least once: what no queue is there for it keeps and tries again. It is
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
	reason string
	dead   *message
}

func (w *worker) count() int { return len(w.waiting) + len(w.pending) }

func (w *worker) add(e *entry, reason string) {
	w.waiting = append(w.waiting, &deadLetter{entry: e, reason: reason})
	w.wake()
}

// wake lets it look for what to do, a little later.
func (w *worker) wake() {
	if w.pass == nil && len(w.waiting) > 0 && len(w.pending) < inFlight {
		w.pass = w.q.b.clock.set(time.Now().Add(replication), w.run)
	}
}

func (w *worker) run() {
	w.pass = nil
	for len(w.waiting) > 0 && len(w.pending) < inFlight {
		d := w.waiting[0]
		w.waiting = w.waiting[1:]
		d.dead = w.q.dying(d.entry, d.reason)
		w.pending = append(w.pending, d)
		w.publish(d)
	}
	w.watch()
}

// publish leaves a message pending unless there is a queue for it.
func (w *worker) publish(d *deadLetter) {
	x := w.q.b.exchanges[w.q.deadExchange]
	if x == nil {
		return
	}
	routed := false
	for _, to := range w.q.b.route(x, d.dead) {
		if d.reason == "rejected" || !d.dead.cycles(to.name) {
			routed = true
			to.publish(d.dead)
		}
	}
	if routed {
		w.pending = slices.DeleteFunc(w.pending, func(other *deadLetter) bool { return other == d })
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
			for _, d := range slices.Clone(w.pending) {
				w.publish(d)
			}
			w.watch()
			w.wake()
		})
	}
}

// stop drops what it has.
func (w *worker) stop() {
	w.waiting, w.pending = nil, nil
	for _, a := range []**alarm{&w.tryAgain, &w.pass} {
		if *a != nil {
			w.q.b.clock.cancel(*a)
			*a = nil
		}
	}
}
