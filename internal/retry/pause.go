package retry

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/store"
)

// Pause pauses the retries of a queue, or resumes them. Its messages keep their attempts and
// due times; what its policy forwards is still forwarded, and what is in flight (InFlight at
// most) still arrives. The caller has written the pause to the store before, or it would not
// outlast a restart.
func (l *Scheduler) Pause(queue string, paused bool) {
	l.mu.Lock()
	if paused {
		l.paused[queue] = true
	} else {
		delete(l.paused, queue)
	}
	l.mu.Unlock()
	if !paused {
		l.Wake()
	}
}

// SetPauses is Pause for all queues at once: no others are paused from then on.
func (l *Scheduler) SetPauses(queues map[string]bool) {
	l.mu.Lock()
	let := false
	for q := range l.paused {
		let = let || !queues[q]
	}
	l.paused = maps.Clone(queues)
	l.mu.Unlock()
	if let {
		l.Wake()
	}
}

func (l *Scheduler) isPaused(queue string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.paused[queue]
}

// Paused are the queues whose retries a person has paused.
func (l *Scheduler) Paused() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.paused))
}

// Resting are the lanes that back off.
func (l *Scheduler) Resting() []store.Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.resting))
}

// loadPauses reads which queues were paused when the service ended. Nothing is retried before
// that is known, and a Pause meanwhile comes after what was read.
func (l *Scheduler) loadPauses(ctx context.Context) {
	load := func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.store.Entries(ctx, store.PausePrefix, "", func(e store.Entry) (bool, error) {
			l.paused[strings.TrimPrefix(e.Name, store.PausePrefix)] = true
			return true, nil
		})
	}
	l.untilDone(ctx, pausing, load)
}
