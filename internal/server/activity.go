package server

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
)

// rates counts what happened to each queue in the last minute and hour, in rings of
// seconds and minutes. Its memory depends on the number of queues alone.
type rates struct {
	mu     sync.Mutex
	queues map[string]*rated
	swept  int64 // the minute in which idle ones were last forgotten
}

// rated is one queue: what of a Flow happened, second by second and minute by minute.
type rated [rateKinds]struct {
	seconds, minutes ring
	all              int64 // since the start
}

// mostRated bounds the queues counted: a client that reports failures may make
// their names up.
const mostRated = 10_000

// Beyond idleRated queues those are forgotten that nothing happened to for an hour.
const idleRated = 1000

// sweep forgets them, once a minute. The caller holds mu.
func (r *rates) sweep(minute int64) {
	if minute <= r.swept || len(r.queues) <= idleRated {
		return
	}
	r.swept = minute
	for name, q := range r.queues {
		idle := true
		for i := range q {
			idle = idle && q[i].minutes.last <= minute-60
		}
		if idle {
			delete(r.queues, name)
		}
	}
}

// ring counts in the last 60 units of time.
type ring struct {
	counts [60]int32
	last   int64 // the unit that was counted last
}

const (
	rateFailed = iota
	rateRetried
	rateParked
	rateDiscarded
	rateKinds
)

func (r *ring) add(unit int64, n int32) {
	r.forget(unit)
	r.counts[unit%60] += n
}

// forget clears the units since the last one.
func (r *ring) forget(unit int64) {
	for u := max(r.last+1, unit-59); u <= unit; u++ {
		r.counts[u%60] = 0
	}
	r.last = max(r.last, unit)
}

func (r *ring) sum(unit int64) (n int64) {
	r.forget(unit)
	for _, c := range r.counts {
		n += int64(c)
	}
	return n
}

func (r *rates) event(e retry.Event) {
	if i, ok := counted[e.Kind]; ok {
		var n [rateKinds]int64
		n[i] = int64(max(1, e.N)) // of many at once, or of one
		r.count(e.Queue, n, e.At)
	}
}

// count counts what happened to a queue, here or at another replica.
func (r *rates) count(queue string, n [rateKinds]int64, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queues == nil {
		r.queues = map[string]*rated{}
	}
	r.sweep(at.Unix() / 60)
	q := r.queues[queue]
	if q == nil && len(r.queues) >= mostRated {
		return
	}
	if q == nil {
		q = new(rated)
		r.queues[queue] = q
	}
	second := at.Unix()
	for i, n := range n {
		if n == 0 {
			continue
		}
		q[i].seconds.add(second, int32(n))
		q[i].minutes.add(second/60, int32(n))
		q[i].all += n
	}
}

// Minute is what happened to a queue in the last minute.
func (r *rates) Minute(queue string, now time.Time) (f inspect.Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[queue]; q != nil {
		for i, n := range fields(&f) {
			*n = q[i].seconds.sum(now.Unix())
		}
	}
	return f
}

// Hour is what happened in each of the last 60 minutes, the current one last, to the
// queues that sees says yes to.
func (r *rates) Hour(now time.Time, sees func(queue string) bool) []inspect.Flow {
	hour := make([]inspect.Flow, 60)
	minute := now.Unix() / 60
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweep(minute)
	for name, q := range r.queues {
		if !sees(name) {
			continue
		}
		for i := range q {
			q[i].minutes.forget(minute)
			for ago := range hour {
				*fields(&hour[59-ago])[i] += int64(q[i].minutes.counts[(minute-int64(ago)+60)%60])
			}
		}
	}
	return hour
}

// Queues are those that anything happened to since the start, but for forgotten ones.
func (r *rates) Queues() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.queues))
}

// Failed is how many messages failed since the start, in the queues that sees says
// yes to, and that are not forgotten.
func (r *rates) Failed(sees func(queue string) bool) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, q := range r.queues {
		if sees(name) {
			n += q[rateFailed].all
		}
	}
	return n
}

func fields(f *inspect.Flow) [rateKinds]*int64 {
	return [...]*int64{rateFailed: &f.Failed, rateRetried: &f.Retried, rateParked: &f.Parked, rateDiscarded: &f.Discarded}
}

var counted = map[retry.Kind]int{retry.Failed: rateFailed, retry.Retried: rateRetried, retry.Parked: rateParked, retry.Discarded: rateDiscarded}
