package diskstore

import (
	"context"

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
