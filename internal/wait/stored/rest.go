package stored

import (
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// forgetRest is how long after its rest a queue that nothing waits for any more is taken
// to be well. What is under way has its answer by then.
const forgetRest = 2 * time.Minute

// forgetRests ends the rest of queues whose messages are gone, since a person discarded
// them, say: nothing will come through to them that tells that they work. It tells how
// long the loop may sleep.
func (l *Loop) forgetRests(next []store.NextDue, now time.Time) (sleep time.Duration) {
	l.mu.Lock()
	gone := make(map[string]bool, len(l.resting))
	for queue := range l.resting {
		gone[queue] = true
	}
	l.mu.Unlock()
	if len(gone) == 0 {
		return time.Hour
	}
	for _, n := range next {
		delete(gone, n.Queue)
	}
	sleep = time.Hour
	for queue := range gone {
		l.mu.Lock()
		r, resting := l.resting[queue]
		over := resting && now.Sub(r.until) > forgetRest
		if over {
			delete(l.resting, queue)
		}
		l.mu.Unlock()
		if over {
			l.report(queue, nil)
		} else {
			sleep = forgetRest
		}
	}
	return sleep
}
