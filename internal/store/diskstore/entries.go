package diskstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// smallEntries is how much of entries may be written when the disk is full.
const smallEntries = 4 << 10

// entry writes a value of the side table.
func (c *writeBatch) entry(e store.Entry) error {
	if e.Value == nil {
		return c.batch.Delete(entryKey(e.Name), nil)
	}
	return c.batch.Set(entryKey(e.Name), e.Value, nil)
}

// Entry implements store.Changer.
func (s *Store) Entry(ctx context.Context, name string) ([]byte, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.get(entryKey(name))
}

// Entries implements store.Changer.
func (s *Store) Entries(ctx context.Context, prefix, from string, visit func(store.Entry) (bool, error)) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	low := entryKey(prefix)
	if from != "" && from >= prefix {
		low = append(entryKey(from), 0)
	}
	it, err := s.walk(s.db, low, after(entryKey(prefix)))
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		more, err := visit(store.Entry{Name: string(it.Key()[1:]), Value: append([]byte{}, it.Value()...)})
		if err != nil || !more {
			return err
		}
	}
	return it.Error()
}

// PutEntries implements store.Changer.
func (s *Store) PutEntries(ctx context.Context, entries []store.Entry) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	c := s.newWriteBatch(0)
	defer c.close()
	for _, e := range entries {
		if err := c.entry(e); err != nil {
			return err
		}
	}
	if n := c.batch.Len(); n > smallEntries {
		if err := s.checkSpace(n, s.reserve/4*3); err != nil {
			return err
		}
	}
	return c.commit()
}

// DeleteEntries implements store.Changer.
func (s *Store) DeleteEntries(ctx context.Context, prefix string) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	c := s.newWriteBatch(0)
	defer c.close()
	if err := c.batch.DeleteRange(entryKey(prefix), after(entryKey(prefix)), nil); err != nil {
		return err
	}
	return c.commit()
}

// forgetStep is how many queues are forgotten in one commit.
const forgetStep = 1000

// forgetQueues forgets queues that nothing is kept for, but for the EmptyLinesKept that
// something happened to last: what was counted of them moves to the line of OtherQueues,
// so that the ledger of the store balances as before. Counters are merged, so one that
// has a message just now is counted right all the same.
func (s *Store) forgetQueues(ctx context.Context) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	for empty := s.emptyQueues(); len(empty) > store.EmptyLinesKept && ctx.Err() == nil; {
		n := min(forgetStep, len(empty)-store.EmptyLinesKept)
		if err := s.forgetNames(empty[:n]); err != nil {
			return err
		}
		empty = empty[n:]
	}
	return nil
}

// emptyQueues are those that nothing is kept for, the one that was idle longest first.
func (s *Store) emptyQueues() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, q := range s.queues {
		if name != store.OtherQueues && q.empty() {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(s.queues[a].used.Compare(s.queues[b].used), cmp.Compare(a, b))
	})
	return names
}

func (q *queue) empty() bool {
	return q.kept[store.Waiting] == 0 && q.kept[store.Parked] == 0 && q.kept[store.Discarded] == 0 && !q.hasClaims()
}

// hasClaims tells whether something of the queue is claimed, or held by a Change.
func (q *queue) hasClaims() (has bool) {
	q.lanes("", func(_ store.Lane, l *lane) { has = has || len(l.claimed) > 0 })
	return has
}

func (s *Store) forgetNames(names []string) error {
	c := s.newWriteBatch(64 * len(names))
	defer c.close()
	s.mu.Lock()
	for _, name := range names {
		q := s.queues[name]
		if q == nil || !q.empty() {
			continue // something came for it since
		}
		for as, n := range q.kept {
			if n != 0 {
				c.count(store.Column(as), name, -n)
				c.count(store.Column(as), store.OtherQueues, n)
			}
		}
	}
	s.mu.Unlock()
	if err := c.commit(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if q := s.queues[name]; q != nil && q.kept == (store.Sums{}) && !q.hasClaims() {
			delete(s.queues, name)
		}
	}
	return nil
}

// dropZeros deletes the counters that are 0 from now on: those of queues that were
// forgotten. It is for the opening, when nothing merges. (A merger that says so itself,
// pebble.DeletableValueMerger, panics in compactions of Pebble 2.1.7.)
func (s *Store) dropZeros(b *pebble.Batch) error {
	for _, prefix := range []byte{prefixCount, prefixLedger} {
		err := eachIn(s.db, prefix, func(key, value []byte) error {
			if n, size := binary.Varint(value); n != 0 || size <= 0 {
				return nil
			}
			return b.Delete(key, nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
