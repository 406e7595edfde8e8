package diskstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// CountDue implements store.Searcher. It reads keys, and no record.
func (s *Store) CountDue(ctx context.Context, queues []string, edges []time.Time, most int64) ([]int64, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	counts := make([]int64, len(edges))
	for _, name := range queues {
		for lane, low := range s.lowest(name) {
			if err := s.countDue(ctx, lane, low, edges, counts, most); err != nil {
				return nil, err
			}
		}
	}
	return counts, nil
}

func (s *Store) countDue(ctx context.Context, lane store.Lane, low []byte, edges []time.Time, counts []int64, most int64) error {
	prefix := lanePrefix(lane)
	it, err := s.walk(s.db, low, after(prefix))
	if err != nil {
		return err
	}
	defer it.Close()
	valid := it.First()
	for i, edge := range edges {
		end := slices.Concat(prefix, placeFrom(edge))
		for valid && bytes.Compare(it.Key(), end) < 0 {
			if counts[i] == most {
				valid = it.SeekGE(end)
				break
			}
			counts[i]++
			valid = it.Next()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return it.Error()
}

// lowest has, for each lane of a queue, a key before which no record waits: what was
// retried left tombstones there, which are slow to read.
func (s *Store) lowest(name string) map[store.Lane][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[store.Lane][]byte{}
	s.queue(name).lanes(name, func(at store.Lane, l *lane) { all[at] = l.lowest() })
	return all
}

// lowest is a key before which no record of the lane waits, claimed or not.
func (l *lane) lowest() []byte {
	low := string(l.low)
	for key := range l.claimed {
		low = min(low, key)
	}
	return []byte(low)
}
