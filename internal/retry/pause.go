package retry

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/store"
)

// Hold pauses the retries of a queue, or resumes them. Its messages keep their attempts and
// due times; what its policy forwards is still forwarded, and what is in flight (InFlight at
// most) still arrives. The caller has written the pause to the store before, or it would not
// outlast a restart.
func (l *Scheduler) Hold(queue string, held bool) {
	l.mu.Lock()
	if held {
		l.held[queue] = true
	} else {
		delete(l.held, queue)
	}
	l.mu.Unlock()
	if !held {
		l.Wake()
	}
}

// SetHolds is Hold for all queues at once: no others are paused from then on.
func (l *Scheduler) SetHolds(queues map[string]bool) {
	l.mu.Lock()
	let := false
	for q := range l.held {
		let = let || !queues[q]
	}
	l.held = maps.Clone(queues)
	l.mu.Unlock()
	if let {
		l.Wake()
	}
}

func (l *Scheduler) isHeld(queue string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[queue]
}

// Held are the queues whose retries a person has paused.
func (l *Scheduler) Held() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.held))
}

// Resting are the lanes that back off.
func (l *Scheduler) Resting() []store.Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.resting))
}

// loadHolds reads which queues were paused when the service ended. Nothing is retried before
// that is known, and a Hold meanwhile comes after what was read.
func (l *Scheduler) loadHolds(ctx context.Context) {
	load := func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.store.Entries(ctx, store.HoldPrefix, "", func(e store.Entry) (bool, error) {
			l.held[strings.TrimPrefix(e.Name, store.HoldPrefix)] = true
			return true, nil
		})
	}
	l.untilDone(ctx, holding, load)
}
