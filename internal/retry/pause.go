package retry

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/store"
)

// Pause pauses the retries of a queue, or resumes them. Its messages keep their attempts and
// due times; what its policy forwards is still forwarded, and what is claimed (MaxClaimed at
// most) still arrives. The caller has written the pause to the store before, or it would not
// outlast a restart.
func (s *Scheduler) Pause(queue string, paused bool) {
	s.changePauses(func() {
		if paused {
			s.paused[queue] = true
		} else {
			delete(s.paused, queue)
		}
	})
	if !paused {
		s.Wake()
	}
}

// SetPauses is Pause for all queues at once: no other queues are paused afterwards.
func (s *Scheduler) SetPauses(queues map[string]bool) {
	resumed := false
	s.changePauses(func() {
		for q := range s.paused {
			resumed = resumed || !queues[q]
		}
		s.paused = maps.Clone(queues)
	})
	if resumed {
		s.Wake()
	}
}

// changePauses changes them, after what loadPauses reads.
func (s *Scheduler) changePauses(change func()) {
	_ = s.pausing.Acquire(context.Background(), 1) // it never fails
	defer s.pausing.Release(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *Scheduler) isPaused(queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused[queue]
}

// Paused returns the queues whose retries a person has paused.
func (s *Scheduler) Paused() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.paused))
}

// loadPauses reads which queues were paused when the service ended. Nothing is retried before
// that is known, and a Pause meanwhile comes after what was read.
func (s *Scheduler) loadPauses(ctx context.Context) {
	load := func() error {
		if err := s.pausing.Acquire(ctx, 1); err != nil {
			return err
		}
		defer s.pausing.Release(1)
		return s.store.Entries(ctx, store.PausePrefix, "", func(e store.Entry) (bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.paused[strings.TrimPrefix(e.Name, store.PausePrefix)] = true
			return true, nil
		})
	}
	s.repeatUntilDone(ctx, readingPauses, load)
}
