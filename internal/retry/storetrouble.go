package retry

import (
	"context"
	"sync"
	"time"
)

// longestAway is how long the loop waits at most before it asks a store again that has
// failed: so late it goes on when the store is back.
const longestAway = time.Second

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
func (l *Scheduler) failed(ctx context.Context, at string, err error) {
	l.troubles.mu.Lock()
	defer l.troubles.mu.Unlock()
	if _, known := l.troubles.since[at]; known || ctx.Err() != nil {
		return
	}
	l.troubles.since[at] = time.Now()
	l.log.Error("store: "+at+" fails; trying again until it works", "error", err)
}

// works says, once, that it does not any more.
func (l *Scheduler) works(at string) {
	l.troubles.mu.Lock()
	defer l.troubles.mu.Unlock()
	if since, known := l.troubles.since[at]; known {
		delete(l.troubles.since, at)
		l.log.Info("store: "+at+" works again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// untilDone tries again while the store fails: a claim must not be forgotten, or its
// message would wait until the next start; nor what a person holds back.
func (l *Scheduler) untilDone(ctx context.Context, what string, try func() error) {
	for wait := firstRest; ; wait = min(2*wait, longestAway) {
		err := try()
		if err == nil {
			l.works(what)
			return
		}
		if ctx.Err() != nil {
			return
		}
		l.failed(ctx, what, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
