package diskstore

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/redrive-mq/redrive/internal/store"
)

// Free is the room left on the disk, and what is kept free of it, in bytes.
func (s *Store) Free() (free, reserve uint64, err error) {
	u, err := s.fs.GetDiskUsage(s.path)
	return u.AvailBytes, s.reserve, err
}

// checkSpace returns store.ErrFull when there is no room for n more bytes besides reserve. They are
// written twice, to the log and to a table, before the log is cut. While more than the
// reserve is free, one batch may use up to half of it: a batch that only fits an emptier
// disk would be offered for ever.
func (s *Store) checkSpace(n int, reserve uint64) error {
	need := max(reserve+1, reserve/2+2*uint64(n))
	free, _, err := s.Free()
	for _, reclaim := range [...]func(missing uint64){s.emptyLogs, s.compactDeleted} {
		if err == nil && free < need {
			reclaim(need - free)
			free, _, err = s.Free()
		}
	}
	if err != nil {
		return fmt.Errorf("asking for the free room of %s: %w", s.path, err)
	}
	if free >= need {
		return nil
	}
	return fmt.Errorf("%w: %s has %d MiB free, and %d MiB are kept in reserve: %d MiB more are needed on the disk", store.ErrFull, s.path, free>>20, reserve>>20, (need-free)>>20+1)
}

// emptyLogs frees the room of logs that are kept to be written again.
func (s *Store) emptyLogs(uint64) {
	s.files.emptyLogs(s.path, func() int { return int(s.db.Metrics().WAL.Files) })
}

// deleted is what records take on the disk that were deleted. Pebble removes it when it
// compacts, which it need not do for some 100 MiB: near the reserve, a store that is empty
// could refuse messages for ever.
type deleted struct {
	bytes atomic.Uint64 // about, since they were compacted
	mu    sync.Mutex    // one compaction at a time
}

// unknown is how much an earlier process may have deleted.
const unknown = math.MaxUint64 / 2

// compactDeleted frees the room of deleted records, unless less than missing was deleted
// since the last time: it would rewrite what is kept and gain nothing. What fails here is in
// Pebble's log, and fails again at the next commit.
func (s *Store) compactDeleted(missing uint64) {
	if !s.deleted.mu.TryLock() {
		return
	}
	defer s.deleted.mu.Unlock()
	if s.deleted.bytes.Load() < missing {
		return
	}
	s.deleted.bytes.Store(0)
	if s.db.Flush() != nil {
		return
	}
	for _, prefix := range recordPrefixes {
		if !s.compact([]byte{prefix}, []byte{prefix + 1}) && prefix == prefixWaiting {
			for low, end := range s.retried() {
				s.compact([]byte(low), end)
			}
		}
	}
	s.emptyLogs(missing)
}

// retried are the ranges of keys below which nothing waits in a lane any more.
func (s *Store) retried() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	ranges := map[string][]byte{}
	for name, q := range s.queues {
		q.lanes(name, func(l store.Lane, state *lane) { ranges[string(lanePrefix(l))] = state.low })
	}
	return ranges
}

// compact rewrites a range of keys without what was deleted, unless it is larger than what
// is free: until it is done both are on the disk.
func (s *Store) compact(low, end []byte) (done bool) {
	used, err := s.db.EstimateDiskUsage(low, end)
	free, _, failed := s.Free()
	if err != nil || failed != nil || used > free {
		return false
	}
	return used == 0 || string(low) >= string(end) || s.db.Compact(context.Background(), low, end, false) == nil
}
