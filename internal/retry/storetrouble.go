package retry

import (
	"context"
	"sync"
	"time"
)

// maxStoreWait is the longest wait before the scheduler tries a failing store again, and so
// bounds how late it notices that the store works.
const maxStoreWait = time.Second

// Operations of the store, as the log names them.
const (
	retryingDue     = "retrying due messages"
	finishingClaims = "finishing retried messages"
	readingPauses   = "reading which queues are paused"
)

// storeTroubles remembers which operations of the store fail, and since when: the log has one
// line when that begins and one when it ends, not one for each try.
type storeTroubles struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// storeFailed logs, once, that an operation of the store fails.
func (s *Scheduler) storeFailed(ctx context.Context, operation string, err error) {
	s.troubles.mu.Lock()
	defer s.troubles.mu.Unlock()
	if _, known := s.troubles.since[operation]; known || ctx.Err() != nil {
		return
	}
	s.troubles.since[operation] = time.Now()
	s.log.Error("store: "+operation+" fails; trying again until it works", "error", err)
}

// storeWorks logs, once, that a failing operation works again.
func (s *Scheduler) storeWorks(operation string) {
	s.troubles.mu.Lock()
	defer s.troubles.mu.Unlock()
	if since, known := s.troubles.since[operation]; known {
		delete(s.troubles.since, operation)
		s.log.Info("store: "+operation+" works again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// repeatUntilDone repeats an operation while the store fails: a forgotten claim would make its
// message wait until the next start, and unread pauses would retry what a person has paused. done
// is false if ctx ended first.
func (s *Scheduler) repeatUntilDone(ctx context.Context, operation string, try func() error) (done bool) {
	for wait := minBackoff; ; wait = min(2*wait, maxStoreWait) {
		err := try()
		if err == nil {
			s.storeWorks(operation)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		s.storeFailed(ctx, operation, err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}
