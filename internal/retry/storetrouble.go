package retry

import (
	"context"
	"sync"
	"time"
)

// maxStoreWait is how long the scheduler waits at most before it tries a store again that
// has failed, and so how late it notices that the store works again.
const maxStoreWait = time.Second

// What the store is asked for.
const (
	returning = "returning due messages"
	settling  = "settling retried messages"
	pausing   = "reading which queues are paused"
)

// troubles are what the store fails at, and since when: a person learns when it
// begins and when it is over, and not of each try.
type troubles struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// failed says, once, that the store fails at something.
func (s *Scheduler) failed(ctx context.Context, at string, err error) {
	s.troubles.mu.Lock()
	defer s.troubles.mu.Unlock()
	if _, known := s.troubles.since[at]; known || ctx.Err() != nil {
		return
	}
	s.troubles.since[at] = time.Now()
	s.log.Error("store: "+at+" fails; trying again until it works", "error", err)
}

// works says, once, that it does not any more.
func (s *Scheduler) works(at string) {
	s.troubles.mu.Lock()
	defer s.troubles.mu.Unlock()
	if since, known := s.troubles.since[at]; known {
		delete(s.troubles.since, at)
		s.log.Info("store: "+at+" works again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// untilDone tries again while the store fails: a claim must not be forgotten, or its
// message would wait until the next start; nor what a person holds back.
func (s *Scheduler) untilDone(ctx context.Context, what string, try func() error) {
	for wait := minBackoff; ; wait = min(2*wait, maxStoreWait) {
		err := try()
		if err == nil {
			s.works(what)
			return
		}
		if ctx.Err() != nil {
			return
		}
		s.failed(ctx, what, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
