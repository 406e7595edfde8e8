package retry

import (
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// forgetRest is how long after its backoff a lane without waiting messages counts as working
// again. What is in flight has its answer by then.
const forgetRest = 2 * time.Minute

// forgetRests ends the backoff of lanes whose messages are gone, because a person discarded
// them, say: no confirm will ever show that they work. It returns how long the scheduler may
// sleep.
func (l *Scheduler) forgetRests(next []store.NextDue, now time.Time) (sleep time.Duration) {
	l.mu.Lock()
	gone := make(map[store.Lane]bool, len(l.resting))
	for lane := range l.resting {
		gone[lane] = true
	}
	l.mu.Unlock()
	if len(gone) == 0 {
		return time.Hour
	}
	for _, n := range next {
		delete(gone, n.Lane)
	}
	sleep = time.Hour
	for lane := range gone {
		l.mu.Lock()
		r, resting := l.resting[lane]
		over := resting && now.Sub(r.until) > forgetRest
		if over {
			delete(l.resting, lane)
		}
		l.mu.Unlock()
		if over {
			l.report(lane, nil)
		} else {
			sleep = forgetRest
		}
	}
	return sleep
}
