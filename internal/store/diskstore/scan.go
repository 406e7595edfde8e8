package diskstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Scan implements store.Scanner.
func (s *Store) Scan(ctx context.Context, r store.Range, visit func(store.Listed) (bool, error)) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	snap := s.db.NewSnapshot()
	defer snap.Close()
	m, err := s.merge(snap, r)
	if err != nil {
		return err
	}
	defer m.close()
	for more := true; more; {
		at, err := m.top()
		if at == nil || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		l, ok, err := s.show(snap, m, at, r)
		if err = s.damage.unreadable(at.it.Key(), err); err == nil && ok {
			more, err = visit(l)
		}
		if err == nil {
			err = m.next()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// show is the record a source is at; ok is false when it is not of the range.
func (s *Store) show(snap *pebble.Snapshot, m *merged, at *source, r store.Range) (l store.Listed, ok bool, err error) {
	key, value := at.it.Key(), at.it.Value()
	if !r.Has(seqOf(key)) {
		return l, false, nil
	}
	if at.index {
		key = slices.Clone(value)
		if !m.of(queueOf(key)) {
			return l, false, nil
		}
		return s.listed(snap, key, r.Body)
	}
	l, err = s.decode(key, value, r.Body)
	return l, err == nil && (r.Groups == nil || slices.Contains(r.Groups, s.GroupOf(l.Record))), err
}

// listed reads the record kept under key, and says when there is none.
func (s *Store) listed(snap *pebble.Snapshot, key []byte, body bool) (l store.Listed, ok bool, err error) {
	err = withValue(snap, key, func(value []byte) error {
		ok = true
		l, err = s.decode(key, value, body)
		return err
	})
	return l, ok && err == nil, err
}

func (s *Store) decode(key, value []byte, body bool) (store.Listed, error) {
	r, size, err := store.DecodeRecord(value, body)
	if err != nil {
		return store.Listed{}, fmt.Errorf("data folder %s, key %x: %w", s.path, key, err)
	}
	return store.Listed{Key: store.MakeKey(r.ID, seqOf(key)), Cursor: cursor(key), Record: r, BodySize: size}, nil
}

// Find implements store.Scanner.
func (s *Store) Find(ctx context.Context, id uuid.UUID) ([]store.Listed, error) {
	return s.index(ctx, idKey(id, 0), idsAfter(id))
}

// Get implements store.Scanner.
func (s *Store) Get(ctx context.Context, key store.Key) (store.Listed, error) {
	at := indexOf(key)
	if at == nil {
		return store.Listed{}, store.ErrNotFound
	}
	found, err := s.index(ctx, at, append(at, 0))
	if err == nil && len(found) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Listed{}, err
	}
	return found[0], nil
}

// index is the records that the index of ids has from low on and before end.
func (s *Store) index(ctx context.Context, low, end []byte) (found []store.Listed, err error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	snap := s.db.NewSnapshot()
	defer snap.Close()
	it, err := s.walk(snap, low, end)
	if err != nil {
		return nil, err
	}
	defer it.Close()
	lost := s.damage.lostKey(low)
	for it.First(); it.Valid(); it.Next() {
		l, ok, err := s.listed(snap, it.Value(), true)
		lost = lost || err != nil || s.damage.lostKey(it.Value())
		if err = s.damage.unreadable(it.Value(), err); err != nil {
			return nil, err
		}
		if ok {
			found = append(found, l)
		}
	}
	if err := it.Error(); err != nil || len(found) > 0 || !lost {
		return found, err
	}
	return nil, store.ErrUnreadable
}
