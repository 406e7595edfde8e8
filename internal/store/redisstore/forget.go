package redisstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// idle is what the ledger says of a queue that nothing is kept for, and since when.
type idle struct {
	sums  store.Sums
	since time.Time
}

// Forget implements store.Changer. Who stood still in it does no harm when it goes on:
// in a term it is refused, and in any case each record is locked and looked at again
// before it is deleted. One that was restored, or discarded anew, stays.
func (s *Store) Forget(ctx context.Context, now time.Time) (int, error) {
	n, err := store.Forget(ctx, s, now)
	if err != nil {
		return n, err
	}
	return n, s.forgetQueues(ctx)
}

// forgetQueues forgets the lines of queues that nothing is kept for, but for EmptyKept:
// see the disk engine's. Each shard moves its own in one step, and only where nothing is
// kept in it, so that what comes meanwhile is counted right.
func (s *Store) forgetQueues(ctx context.Context) error {
	lines, err := s.Ledger(ctx)
	if err != nil {
		return err
	}
	names := s.longestIdle(lines, time.Now())
	for some := range slices.Chunk(names[:max(0, len(names)-store.EmptyKept)], most) {
		if err := ctx.Err(); err != nil {
			return err
		}
		args := append([]string{columns[store.Waiting:store.Returned], columns[:store.Waiting] + columns[store.Returned:], store.OtherQueues}, some...)
		if err := s.each(func(shard int) error {
			_, err := s.do(ctx, shard, scriptUnqueue, args...)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// longestIdle are the queues that nothing is kept for, the one first that nothing was
// counted of for longest, as far as this process has looked.
func (s *Store) longestIdle(lines []store.LedgerLine, now time.Time) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.idle
	s.idle = map[string]idle{}
	for _, l := range lines {
		if l.Queue == store.OtherQueues || l.Kept() != 0 || l.Off() != 0 {
			continue
		}
		is, ok := was[l.Queue]
		if !ok || is.sums != l.Sums {
			is = idle{l.Sums, now}
		}
		s.idle[l.Queue] = is
		names = append(names, l.Queue)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(s.idle[a].since.Compare(s.idle[b].since), cmp.Compare(a, b))
	})
	return names
}
