package diskstore

import (
	"bytes"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// queue is what is kept in memory of one work queue. Its size does not depend on
// how many messages wait, but for claims, which are few.
type queue struct {
	kept store.Sums // and what came and went
	lane            // of the queue itself
	// forwards are the lanes of its forward targets; nil: there are none.
	forwards map[store.Destination]*lane
	// used is when something was last counted of it; zero: not since the start.
	used time.Time
}

// lane is what is kept in memory of one.
type lane struct {
	// low: all waiting records before this key are claimed. Without it each claim
	// would read the tombstones of all that was retried before.
	low []byte
	// next is when the first unclaimed record is due; zero when there is none.
	next time.Time
	// again: a claim left out what could not be read, and this is when it is looked for
	// again, as a disk may read then; zero: nothing was left out.
	again time.Time
	// claimed has the tokens of claims, and the keys that a Change holds. It is false for
	// those, and for a claim that is being finished: so Finish counts none twice.
	claimed map[string]bool
}

func newLane(l store.Lane) lane { return lane{low: lanePrefix(l), claimed: map[string]bool{}} }

func (s *Store) queue(name string) *queue {
	q := s.queues[name]
	if q == nil {
		q = &queue{lane: newLane(store.Lane{Queue: name})}
		s.queues[name] = q
	}
	return q
}

// lane is what is known of a lane. The caller holds mu.
func (s *Store) lane(l store.Lane) *lane {
	q := s.queue(l.Queue)
	if !l.Forwards() {
		return &q.lane
	}
	if q.forwards[l.Forward] == nil {
		if q.forwards == nil {
			q.forwards = map[store.Destination]*lane{}
		}
		made := newLane(l)
		q.forwards[l.Forward] = &made
	}
	return q.forwards[l.Forward]
}

// lanes visits a queue's lanes.
func (q *queue) lanes(name string, visit func(store.Lane, *lane)) {
	visit(store.Lane{Queue: name}, &q.lane)
	for to, l := range q.forwards {
		visit(store.Lane{Queue: name, Forward: to}, l)
	}
}

// ready notes that the record with this key may be claimed.
func (l *lane) ready(key []byte) {
	if bytes.Compare(key, l.low) < 0 {
		l.low = bytes.Clone(key)
	}
	if due := dueOf(key); l.next.IsZero() || due.Before(l.next) {
		l.next = due
	}
}

// ready notes that a record was kept under key. The caller holds mu.
func (s *Store) ready(key []byte) {
	if isWaiting(key) {
		s.lane(laneOf(key)).ready(key)
	}
}
