// Package upstream stands for a service that consumers call, with a consumer that
// calls it: what it costs while it is down to bring failed messages back, the test of
// storms in test/stories and the benchmark in bench/ count by it.
//
//	upstream.go  the service: healthy, down, limping, healthy again
//	consumer.go  a consumer that calls it for each delivery, and what is left to do
package upstream

import (
	"slices"
	"sync"
	"time"
)

// Upstream does so many calls a second and fails the others at once, as a service
// does that is asked for more than it can. Safe for concurrent use.
type Upstream struct {
	capacity int

	mu         sync.Mutex
	down, back time.Time // from when on, and from when on it limps; zero: not so far
	well       time.Time // and is well again
	second     int64     // the one that is counted
	served     int       // calls done in it
	coin       int
	known      map[string]bool  // ids that called before
	first      int              // calls while it was down: deliveries of new messages,
	again      int              // and of those that failed before
	load       map[int64]int    // calls in each second
	fresh      map[int64][2]int // new messages in each second: done, and in all
}

// New is a healthy one.
func New(capacity int) *Upstream {
	return &Upstream{capacity: capacity, known: map[string]bool{}, load: map[int64]int{}, fresh: map[int64][2]int{}}
}

// Down fails all calls from then on.
func (u *Upstream) Down(from time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.down = from
}

// Back ends that: from then on it limps, until it is well.
func (u *Upstream) Back(from, well time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.back, u.well = from, well
}

// Call is one for a message; it tells whether it was done.
func (u *Upstream) Call(id string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	second := now.Unix()
	if second != u.second {
		u.second, u.served = second, 0
	}
	u.load[second]++
	isNew := !u.known[id]
	u.known[id] = true
	down := !u.down.IsZero() && now.After(u.down) && (u.back.IsZero() || now.Before(u.back))
	switch {
	case down && isNew:
		u.first++
	case down:
		u.again++
	}
	done := !down && u.served < u.capacity && !u.limps(now)
	if done {
		u.served++
	}
	if isNew {
		f := u.fresh[second]
		f[1]++
		if done {
			f[0]++
		}
		u.fresh[second] = f
	}
	return done
}

// limps fails a share of calls that falls from a half to none.
func (u *Upstream) limps(now time.Time) bool {
	if u.back.IsZero() || now.Before(u.back) || !now.Before(u.well) {
		return false
	}
	u.coin++
	sick := float64(u.well.Sub(now)) / float64(u.well.Sub(u.back)) / 2
	return float64(u.coin*37%100) < 100*sick
}

// WhileDown is how many calls came while it was down: for new messages, which no one
// can keep away, and for those that had failed before.
func (u *Upstream) WhileDown() (first, again int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.first, u.again
}

// Peak is the most calls in a second since it is back.
func (u *Upstream) Peak() (most int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for second, n := range u.load {
		if second >= u.back.Unix() {
			most = max(most, n)
		}
	}
	return most
}

// Recovered is how long after it is well new messages are done as before: from the
// first of three seconds in a row in which 99 of 100 are.
func (u *Upstream) Recovered() (time.Duration, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var seconds []int64
	for second := range u.fresh {
		if second >= u.well.Unix() {
			seconds = append(seconds, second)
		}
	}
	slices.Sort(seconds)
	good := 0
	for _, second := range seconds {
		if f := u.fresh[second]; f[0]*100 >= 99*f[1] {
			good++
		} else {
			good = 0
		}
		if good == 3 {
			return max(0, time.Unix(second-2, 0).Sub(u.well)), true
		}
	}
	return 0, false
}
