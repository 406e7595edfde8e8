package server

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
)

// activity counts what happened to each queue in the last minute and hour, in rings of
// seconds and minutes. Its memory depends on the number of queues alone.
type activity struct {
	mu     sync.Mutex
	queues map[string]*queueActivity
	swept  int64 // the minute in which idle ones were last forgotten
}

// queueActivity counts for one queue what a Flow has, by second and by minute.
type queueActivity [flowKinds]struct {
	seconds, minutes ring
	all              int64 // since the start
}

// maxActiveQueues bounds the queues that are counted: a client that reports failures may make
// their names up.
const maxActiveQueues = 10_000

// keptIdleQueues is how many queues are kept although nothing happened to them for an hour.
const keptIdleQueues = 1000

// sweep forgets the idle queues beyond keptIdleQueues, once a minute. The caller holds mu.
func (r *activity) sweep(minute int64) {
	if minute <= r.swept || len(r.queues) <= keptIdleQueues {
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
	flowFailed = iota
	flowRetried
	flowParked
	flowDiscarded
	flowKinds
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

func (r *activity) event(e retry.Event) {
	if i, ok := flowOf[e.Kind]; ok {
		var n [flowKinds]int64
		n[i] = int64(max(1, e.N)) // of many at once, or of one
		r.count(e.Queue, n, e.At)
	}
}

// count counts what happened to a queue, here or at another replica.
func (r *activity) count(queue string, n [flowKinds]int64, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queues == nil {
		r.queues = map[string]*queueActivity{}
	}
	r.sweep(at.Unix() / 60)
	q := r.queues[queue]
	if q == nil && len(r.queues) >= maxActiveQueues {
		return
	}
	if q == nil {
		q = new(queueActivity)
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

// Minute returns what happened to a queue in the last minute.
func (r *activity) Minute(queue string, now time.Time) (f inspect.Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[queue]; q != nil {
		for i, n := range flowFields(&f) {
			*n = q[i].seconds.sum(now.Unix())
		}
	}
	return f
}

// Hour returns what happened in each of the last 60 minutes, the current one last, to the
// queues for which sees is true.
func (r *activity) Hour(now time.Time, sees func(queue string) bool) []inspect.Flow {
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
				*flowFields(&hour[59-ago])[i] += int64(q[i].minutes.counts[(minute-int64(ago)+60)%60])
			}
		}
	}
	return hour
}

// Queues returns those that something happened to since the start, but for forgotten ones.
func (r *activity) Queues() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.queues))
}

// Failed returns how many messages failed since the start, in the queues for which sees is true
// and that are not forgotten.
func (r *activity) Failed(sees func(queue string) bool) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, q := range r.queues {
		if sees(name) {
			n += q[flowFailed].all
		}
	}
	return n
}

func flowFields(f *inspect.Flow) [flowKinds]*int64 {
	return [...]*int64{flowFailed: &f.Failed, flowRetried: &f.Retried, flowParked: &f.Parked, flowDiscarded: &f.Discarded}
}

// flowOf are the events that are counted, each as one of a Flow.
var flowOf = map[retry.Kind]int{retry.Failed: flowFailed, retry.Retried: flowRetried, retry.Parked: flowParked, retry.Discarded: flowDiscarded}
