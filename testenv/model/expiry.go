package model

import "time"

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
