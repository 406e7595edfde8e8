package retry

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/store"
)

// Hold pauses the returns to a queue, or lets them go on; what its policy forwards is
// forwarded all the same. Its messages keep their attempts and when they are due. What is on its way already (InFlight at most)
// still arrives. Whoever calls it has written the hold to the store before, or
// the next start would not know of it.
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

// SetHolds is Hold for all queues at once: no others are held from now on.
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

// Held are the queues whose returns a person has paused.
func (l *Scheduler) Held() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.held))
}

// Resting are the lanes that take nothing just now.
func (l *Scheduler) Resting() []store.Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.resting))
}

// loadHolds reads what was held when the service ended. Nothing returns before
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
