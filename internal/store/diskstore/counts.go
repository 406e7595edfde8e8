package diskstore

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/redrive-mq/redrive/internal/store"
)

// loadQueues reads the counts, and the first waiting record's due time of each
// queue.
func (s *Store) loadQueues() error {
	err := counters(s.db, func(state store.State, queue string, n int64) error {
		if n != 0 {
			s.queue(queue).kept[state] += n
		}
		return nil
	})
	if err != nil {
		return err
	}
	var starts []start
	for name, q := range s.queues {
		if q.kept[store.Waiting] == 0 {
			continue
		}
		starts = append(starts, start{name: name, low: q.low})
	}
	leftOut, err := s.firsts(starts, func(at start, key, _ []byte) error {
		q := s.queues[at.name]
		q.low, q.next = bytes.Clone(key), dueOf(key)
		return nil
	})
	for _, at := range starts {
		if leftOut { // of one of them: it may be read later
			s.queues[at.name].leftOut()
		}
	}
	return err
}

// start is from where to look for the first waiting record of a queue.
type start struct {
	name string
	low  []byte
	at   int
}

// firsts visits the first record of each start, with one iterator for all: there may be
// many thousand queues. leftOut tells that something could not be read.
func (s *Store) firsts(starts []start, visit func(at start, key, value []byte) error) (leftOut bool, err error) {
	slices.SortFunc(starts, func(a, b start) int { return bytes.Compare(a.low, b.low) })
	it, err := s.walk(s.db, []byte{prefixWaiting}, []byte{prefixWaiting + 1})
	if err != nil {
		return false, err
	}
	it.skipped = func(from []byte, err error) {
		leftOut = true
		s.damage.skipped(from, err)
	}
	for _, at := range starts {
		if !it.SeekGE(at.low) {
			if it.Error() != nil {
				break
			}
			continue
		}
		if !bytes.HasPrefix(it.Key(), queuePrefix(store.Waiting, at.name)) {
			continue
		}
		value, err := it.ValueAndErr() // nil where it cannot be read
		if err = s.damage.unreadable(it.Key(), err); err == nil {
			err = visit(at, it.Key(), value)
		}
		if err != nil {
			return leftOut, errors.Join(err, it.Close())
		}
	}
	return leftOut, errors.Join(it.Error(), it.Close())
}

// Counts implements store.Store.
func (s *Store) Counts(ctx context.Context) ([]store.QueueCount, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
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
			starts = append(starts, start{name: name, low: bytes.Clone(low), at: len(counts)})
		}
		counts = append(counts, store.QueueCount{Queue: name, Waiting: q.kept[store.Waiting], Parked: q.kept[store.Parked], Discarded: q.kept[store.Discarded]})
	}
	s.mu.Unlock()
	_, err = s.firsts(starts, func(at start, key, value []byte) error {
		c := &counts[at.at]
		c.NextDue = dueOf(key)
		if r, _, err := store.DecodeRecord(value, false); err == nil {
			c.NextFailed = r.FailedAt
		}
		return nil
	})
	return counts, err
}
