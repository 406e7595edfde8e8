package memstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/redrive-mq/redrive/internal/store"
)

func (s *Store) sum(as store.Column, queue string, n int64) {
	if s.sums[queue] == nil {
		s.sums[queue] = new(store.Sums)
	}
	s.sums[queue][as] += n
	s.counted++
	s.used[queue] = s.counted
}

// forgetQueues forgets queues that nothing is kept for: see the disk engine's.
func (s *Store) forgetQueues() error {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return err
	}
	kept := map[string]bool{store.OtherQueues: true}
	for _, e := range s.kept {
		kept[e.rec.Queue] = true
	}
	var empty []string
	for queue := range s.sums {
		if !kept[queue] {
			empty = append(empty, queue)
		}
	}
	slices.SortFunc(empty, func(a, b string) int { return cmp.Compare(s.used[a], s.used[b]) })
	for _, queue := range empty[:max(0, len(empty)-store.EmptyLinesKept)] {
		for as, n := range s.sums[queue] {
			s.sum(store.Column(as), store.OtherQueues, n)
		}
		delete(s.sums, queue)
		delete(s.used, queue)
	}
	return nil
}

// Ledger implements store.Bookkeeper.
func (s *Store) Ledger(ctx context.Context) ([]store.LedgerLine, error) { return s.Recount(ctx) }

// Recount implements store.Bookkeeper.
func (s *Store) Recount(context.Context) ([]store.LedgerLine, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	by := map[string]*store.Sums{}
	for queue, sums := range s.sums {
		line := *sums
		by[queue] = &line
	}
	for _, e := range s.kept {
		by[e.rec.Queue][e.rec.State]++
	}
	return store.Lines(by), nil
}

// CountUnstored implements store.Bookkeeper.
func (s *Store) CountUnstored(queue string, as store.Column, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum(store.In, queue, n)
	s.sum(as, queue, n)
}
