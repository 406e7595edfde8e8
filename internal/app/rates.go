package app

import (
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/flow"
)

// rates counts what happened to each queue in the last minute, in a ring of
// seconds. Its memory depends on the number of queues alone.
type rates struct {
	mu     sync.Mutex
	queues map[string]*[3]ring
}

// mostRated bounds the queues counted: a client that reports failures may make
// their names up.
const mostRated = 10_000

type ring struct {
	counts [60]int64
	last   int64 // the second that was counted last
}

const (
	rateFailed = iota
	rateReturned
	rateParked
)

func (r *ring) add(second, n int64) {
	r.forget(second)
	r.counts[second%60] += n
}

// forget clears the seconds since the last one.
func (r *ring) forget(second int64) {
	for s := max(r.last+1, second-59); s <= second; s++ {
		r.counts[s%60] = 0
	}
	r.last = max(r.last, second)
}

func (r *ring) sum(second int64) (n int64) {
	r.forget(second)
	for _, c := range r.counts {
		n += c
	}
	return n
}

func (r *rates) event(e flow.Event) {
	i, ok := rated[e.Kind]
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queues == nil {
		r.queues = map[string]*[3]ring{}
	}
	q := r.queues[e.Queue]
	if q == nil && len(r.queues) >= mostRated {
		return
	}
	if q == nil {
		q = new([3]ring)
		r.queues[e.Queue] = q
	}
	q[i].add(e.At.Unix(), 1)
}

// perMinute are the failed, returned and parked of the last minute.
func (r *rates) perMinute(queue string, now time.Time) (n [3]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[queue]; q != nil {
		for i := range n {
			n[i] = q[i].sum(now.Unix())
		}
	}
	return n
}

// names are the queues that anything happened to since the start.
func (r *rates) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for q := range r.queues {
		all = append(all, q)
	}
	return all
}

var rated = map[flow.Kind]int{flow.Failed: rateFailed, flow.Returned: rateReturned, flow.Parked: rateParked}
