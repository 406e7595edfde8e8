package retry

import (
	"maps"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// backoffKept is how long after its backoff a lane without waiting messages counts as working
// again. What was published has its answer by then.
const backoffKept = 2 * time.Minute

// maxSleep is how long the scheduler sleeps when it knows of nothing that will be due: whatever
// changes wakes it.
const maxSleep = time.Hour

// forgetBackoffs ends the backoff of lanes whose messages are gone, because a person discarded
// them, say: no confirm will ever show that they work. It returns how long the scheduler may
// sleep.
func (s *Scheduler) forgetBackoffs(next []store.NextDue, now time.Time) (sleep time.Duration) {
	s.mu.Lock()
	gone := make(map[store.Lane]bool, len(s.backoffs))
	for lane := range s.backoffs {
		gone[lane] = true
	}
	s.mu.Unlock()
	if len(gone) == 0 {
		return maxSleep
	}
	for _, n := range next {
		delete(gone, n.Lane)
	}
	maps.DeleteFunc(gone, func(l store.Lane, _ bool) bool { return s.claimed.has(l) })
	sleep = maxSleep
	for lane := range gone {
		s.mu.Lock()
		b, backingOff := s.backoffs[lane]
		over := backingOff && now.Sub(b.until) > backoffKept
		if over {
			delete(s.backoffs, lane)
		}
		s.mu.Unlock()
		if over {
			s.report(lane, nil)
		} else {
			sleep = backoffKept
		}
	}
	return sleep
}
