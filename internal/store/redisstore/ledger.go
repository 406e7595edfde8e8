package redisstore

import (
	"context"
	"strings"

	"github.com/redrive-mq/redrive/internal/store"
)

// columns are the letters of the ledger's columns, in the keys.
const columns = "iwpdrfgmhxn"

// Ledger implements store.Bookkeeper. Its lines balance, being written in the step of
// their records.
func (s *Store) Ledger(ctx context.Context) ([]store.LedgerLine, error) { return s.lines(ctx, "0") }

// Recount implements store.Bookkeeper. What is kept is counted by where it is to be
// found, in one moment.
func (s *Store) Recount(ctx context.Context) ([]store.LedgerLine, error) { return s.lines(ctx, "1") }

func (s *Store) lines(ctx context.Context, recount string) ([]store.LedgerLine, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.flushUnstored(ctx); err != nil {
		return nil, err
	}
	list, err := texts(s.do(ctx, scriptLedger, recount))
	if err != nil {
		return nil, err
	}
	by := unstored{}
	for i := 0; i+1 < len(list); i += 2 {
		by.of(list[i][1:])[strings.Index(columns, list[i][:1])] += score(list[i+1])
	}
	return store.Lines(by), nil
}

// unstored is what was counted of messages that were never kept, and is not in Redis
// yet.
type unstored map[string]*store.Sums

// CountUnstored implements store.Bookkeeper. It is written within a second.
func (s *Store) CountUnstored(queue string, as store.Column, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sums := s.unstored.of(queue)
	sums[store.In] += n
	sums[as] += n
}

func (p unstored) of(queue string) *store.Sums {
	if p[queue] == nil {
		p[queue] = new(store.Sums)
	}
	return p[queue]
}

// flushUnstored writes what was counted of those. When the answer is lost it may be counted
// twice, on both sides at once.
func (s *Store) flushUnstored(ctx context.Context) error {
	s.mu.Lock()
	took := s.unstored
	s.unstored = unstored{}
	s.mu.Unlock()
	var args []string
	for queue, sums := range took {
		for as, n := range sums {
			if n != 0 {
				args = append(args, columns[as:as+1]+queue, itoa(n))
			}
		}
	}
	if len(args) == 0 {
		return nil
	}
	_, err := s.do(ctx, scriptAddSums, append([]string{itoa(len(args) / 2)}, args...)...)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for queue, sums := range took {
			s.unstored.of(queue).Add(sums)
		}
	}
	return err
}
