package diskstore

import (
	"bytes"
	"context"
	"runtime/debug"
	"slices"
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
	// low: no waiting record before this key is unclaimed. Without it each claim
	// would read the tombstones of all that was retried before.
	low []byte
	// next is when the first unclaimed record is due; zero when there is none.
	next time.Time
	// again: a claim left out what could not be read, and this is when it is looked for
	// again, as a disk may read then; zero: nothing was left out.
	again time.Time
	// claimed has the tokens of claims; false while one is being finished, so that a claim
	// given twice is counted once.
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
func (q *lane) ready(key []byte) {
	if bytes.Compare(key, q.low) < 0 {
		q.low = bytes.Clone(key)
	}
	if due := dueOf(key); q.next.IsZero() || due.Before(q.next) {
		q.next = due
	}
}

// recordOverhead is about how many bytes a record has besides its body.
const recordOverhead = 1024

// sizeOf is about how much room records take.
func sizeOf(records []*store.Record) (n int) {
	for _, r := range records {
		n += len(r.Message.Body) + recordOverhead
	}
	return n
}

// Add implements store.Store.
func (s *Store) Add(ctx context.Context, records []*store.Record) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	size := sizeOf(records)
	if err := s.checkSpace(size, s.reserve); err != nil {
		return err
	}
	if hasLarge(records) {
		s.large.Lock()
		defer s.large.Unlock()
		defer s.flushLarge()
	}
	c := s.newWriteBatch(size)
	defer c.close()
	c.fails = true
	s.adding.RLock()
	defer s.adding.RUnlock()
	keys, err := c.add(records)
	if err != nil {
		return err
	}
	if err := s.receipts.write(c.batch, receiptsOf(records)); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	s.added(keys)
	return nil
}

// added notes that records were kept under these keys.
func (s *Store) added(keys [][]byte) {
	s.mu.Lock()
	for _, key := range keys {
		s.ready(key)
	}
	s.mu.Unlock()
	s.signal()
}

const (
	// largeValue is from what size on a record has a place of its own on the disk.
	largeValue = 1 << 20
	// largeBody is from what size on a record is on the disk before the next such one
	// is added. Pebble has each several times in memory until then.
	largeBody = 8 << 20
)

func hasLarge(records []*store.Record) bool {
	return slices.ContainsFunc(records, func(r *store.Record) bool { return len(r.Message.Body) >= largeBody })
}

// flushLarge waits until it is. What goes wrong with that, Pebble says in its log and at
// the next commit; the record is in the log of the store already.
func (s *Store) flushLarge() {
	_ = s.db.Flush()
	debug.FreeOSMemory() // or it would be there twice as often until the next collection
}

// ready notes that a record was kept under key. The caller holds mu.
func (s *Store) ready(key []byte) {
	if isWaiting(key) {
		s.lane(laneOf(key)).ready(key)
	}
}
