package model

import (
	"cmp"
	"slices"
	"time"
)

// delayedRetry is how RabbitMQ 4.3 keeps back what was returned to a quorum queue.
type delayedRetry struct {
	failed, returned bool  // which of them: after a failure, or without
	least, most      int64 // ms
}

// delayed is a message that is kept back.
type delayed struct {
	*entry
	ready time.Time
}

// readDelayedRetry reads the queue's arguments.
func (q *queue) readDelayedRetry() (r delayedRetry) {
	kind, _ := q.text("delayed-retry-type")
	r.least = q.least("delayed-retry-min")
	if r.most = q.least("delayed-retry-max"); r.most <= 0 {
		r.most = r.least
	}
	if q.quorum && q.b.since4() && r.least > 0 {
		r.failed, r.returned = kind == "all" || kind == "failed", kind == "all" || kind == "returned"
	}
	return r
}

// keepBack keeps a message that was returned back, when the queue does so.
func (q *queue) keepBack(e *entry, failed bool) bool {
	if failed && !q.retry.failed || !failed && !q.retry.returned {
		return false
	}
	wait := min(q.retry.least*max(1, e.failed), q.retry.most)
	d := delayed{e, time.Now().Add(time.Duration(wait) * time.Millisecond)}
	at, _ := slices.BinarySearchFunc(q.delayed, d, func(a, b delayed) int {
		return cmp.Or(a.ready.Compare(b.ready), cmp.Compare(a.position, b.position))
	})
	q.delayed = slices.Insert(q.delayed, at, d)
	q.watchDelayed()
	return true
}

func (q *queue) watchDelayed() {
	if q.delay != nil {
		q.b.clock.cancel(q.delay)
		q.delay = nil
	}
	if len(q.delayed) > 0 && !q.b.down {
		q.delay = q.b.clock.set(q.delayed[0].ready, func() {
			q.delay = nil
			for len(q.delayed) > 0 && !time.Now().Before(q.delayed[0].ready) {
				q.returned = append(q.returned, q.delayed[0].entry)
				q.delayed = q.delayed[1:]
			}
			q.watchDelayed()
			q.run()
		})
	}
}
