package retry

import (
	"context"
	"errors"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// The first backoff of an unreachable lane, and the longest.
const minBackoff, maxBackoff = 250 * time.Millisecond, 15 * time.Second

// backoffKept is how long after its backoff an unreachable lane that has no messages any more
// counts as reachable. What was published has its answer by then.
const backoffKept = 2 * time.Minute

// maxSleep is how long the scheduler sleeps when it knows of nothing that will be due: whatever
// changes wakes it.
const maxSleep = time.Hour

// backoff is until when nothing of a lane is published.
type backoff struct {
	until     time.Time
	tries     int  // since it was reachable last
	reachable bool // as far as is known: its queue is being looked up
}

// setBackoff keeps a lane's messages waiting after an obstacle, longer each time. Without one, a
// batch went through: the lane is reachable.
func (s *Scheduler) setBackoff(lane store.Lane, obstacle error) {
	s.mu.Lock()
	b, wasBackingOff := s.backoffs[lane]
	reachable := !wasBackingOff || b.reachable
	switch {
	case obstacle == nil:
		delete(s.backoffs, lane)
	case errors.Is(obstacle, ErrTryAtOnce) && b.tries == 0:
		// Only once, or a queue that is bound and yet unroutable would be tried without end.
		s.backoffs[lane] = backoff{until: time.Now(), tries: 1, reachable: reachable}
	case errors.Is(obstacle, ErrUnanswered): // its window bounds what is claimed
		b.reachable = false
		s.backoffs[lane] = b
	case errors.Is(obstacle, ErrLookupPending): // the answer is on its way
		s.backoffs[lane] = backoff{until: time.Now().Add(minBackoff << min(b.tries, 2)), tries: b.tries + 1, reachable: reachable}
	default:
		s.backoffs[lane] = backoff{until: time.Now().Add(min(minBackoff<<min(b.tries, 16), maxBackoff)), tries: b.tries + 1}
	}
	s.mu.Unlock()
	if obstacle == nil && !wasBackingOff || errors.Is(obstacle, ErrTryAtOnce) || errors.Is(obstacle, ErrLookupPending) || errors.Is(obstacle, context.Canceled) {
		return
	}
	s.report(lane, obstacle)
}

func (s *Scheduler) backoffUntil(lane store.Lane) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backoffs[lane].until
}

// Unreachable returns the lanes whose messages RabbitMQ did not take or has not answered when they
// were last tried.
func (s *Scheduler) Unreachable() (lanes []store.Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for lane, b := range s.backoffs {
		if !b.reachable {
			lanes = append(lanes, lane)
		}
	}
	return lanes
}

// forgetBackoffs ends the backoff of lanes whose messages are gone, because a person discarded
// them, say: no confirm will ever show that they are reachable. It returns how long the scheduler
// may sleep.
func (s *Scheduler) forgetBackoffs(next []store.NextDue, now time.Time) (sleep time.Duration) {
	gone := map[store.Lane]bool{}
	s.mu.Lock()
	for lane := range s.backoffs {
		if !s.claimed.has(lane) {
			gone[lane] = true
		}
	}
	s.mu.Unlock()
	for _, n := range next {
		delete(gone, n.Lane)
	}
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
