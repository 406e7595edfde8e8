package throttle

import "time"

const windowSlots = 30

// window counts the latest retries that failed again, in slots of the time when they were
// retried.
type window struct {
	slot  time.Duration
	slots [windowSlots]slot
}

type slot struct {
	index  int64  // which slot of all time; 0: never used
	first  uint64 // the first retry in it
	failed int
}

// reset begins again.
func (w *window) reset(length time.Duration) {
	*w = window{slot: max(length/windowSlots, 1)}
}

func (w *window) at(now time.Time) (*slot, int64) {
	n := now.UnixNano() / int64(w.slot)
	return &w.slots[uint64(n)%windowSlots], n
}

func (w *window) retried(r retry) {
	if s, n := w.at(r.at); s.index != n {
		*s = slot{index: n, first: r.seq}
	}
}

func (w *window) failed(r retry) {
	if s, n := w.at(r.at); s.index == n {
		s.failed++
	}
}

// count tells the first retry that is still in the window, and how many failed
// again. next is the sequence number of the next retry.
func (w *window) count(next uint64, now time.Time) (first uint64, failed int) {
	first = next
	_, n := w.at(now)
	for i := range w.slots {
		if s := &w.slots[i]; s.index > n-windowSlots && s.index <= n {
			first = min(first, s.first)
			failed += s.failed
		}
	}
	return first, failed
}
