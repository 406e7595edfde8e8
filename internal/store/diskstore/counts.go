package diskstore

import (
	"bytes"
	"context"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// loadQueues reads the counts, and the first waiting record's due time of each
// queue.
func (s *Store) loadQueues() error {
	err := counters(s.db, func(state store.State, queue string, n int64) error {
		s.queue(queue).kept[state] += n
		return nil
	})
	if err != nil {
		return err
	}
	for name, q := range s.queues {
		if q.kept[store.Waiting] == 0 {
			continue
		}
		key, err := s.first(q.low, after(queuePrefix(store.Waiting, name)))
		if err != nil {
			return err
		}
		if key != nil {
			q.low, q.next = key, dueOf(key)
		}
	}
	return nil
}

// first is the first key from low on and before end, or nil.
func (s *Store) first(low, end []byte) (key []byte, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: end})
	if err != nil {
		return nil, err
	}
	if it.First() {
		key = bytes.Clone(it.Key())
	}
	return key, it.Close()
}

// Counts implements store.Store.
func (s *Store) Counts(ctx context.Context) ([]store.QueueCount, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	type start struct {
		at  int
		low []byte
	}
	var counts []store.QueueCount
	var starts []start
	s.mu.Lock()
	for name, q := range s.queues {
		if q.kept[store.Waiting]|q.kept[store.Parked]|q.kept[store.Discarded] == 0 {
			continue
		}
		if q.kept[store.Waiting] > 0 {
			low := q.low
			for k := range q.claimed { // claimed ones count as waiting still
				if k < string(low) {
					low = []byte(k)
				}
			}
			starts = append(starts, start{len(counts), bytes.Clone(low)})
		}
		counts = append(counts, store.QueueCount{Queue: name, Waiting: q.kept[store.Waiting], Parked: q.kept[store.Parked], Discarded: q.kept[store.Discarded]})
	}
	s.mu.Unlock()
	for _, at := range starts {
		c := &counts[at.at]
		key, err := s.first(at.low, after(queuePrefix(store.Waiting, c.Queue)))
		if err != nil {
			return nil, err
		}
		if key == nil {
			continue
		}
		c.NextDue = dueOf(key)
		value, err := s.get(key)
		if err != nil {
			return nil, err
		}
		if value == nil {
			continue // it has just been returned
		}
		if r, _, err := store.DecodeRecord(value, false); err == nil {
			c.NextFailed = r.FailedAt
		}
	}
	return counts, nil
}
