package memstore

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Change implements store.Changer.
func (s *Store) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (int, error) {
	unlock, err := s.lockIn(ctx)
	defer unlock()
	if err != nil {
		return 0, err
	}
	changed := map[store.Key]*store.Record{} // nil: deleted
	seen := map[store.Key]bool{}
	var added []*store.Record
	n, size := 0, 0
	for _, key := range keys[:min(len(keys), store.ChangeMost)] {
		var r *store.Record
		if e := s.kept[key]; e != nil && e.claimed == nil && !seen[key] {
			if size > 0 && size+len(e.rec.Message.Body) > store.ChangeBytes {
				break
			}
			size += len(e.rec.Message.Body)
			rec := e.rec
			r = &rec
		}
		n++
		seen[key] = true
		does := edit(key, r)
		added = append(added, does.Add...)
		switch {
		case r == nil:
		case does.Keep:
			if err := r.ValidateEdit(&s.kept[key].rec); err != nil {
				return 0, err
			}
			changed[key] = r
		case does.Delete:
			changed[key] = nil
		}
	}
	for _, r := range added {
		if err := r.Validate(); err != nil {
			return 0, err
		}
	}
	if entries != nil {
		s.put(entries(n))
	}
	for _, key := range keys[:n] {
		r, ok := changed[key]
		if !ok {
			continue
		}
		delete(changed, key)
		s.applyEdit(key, r)
	}
	s.add(added)
	s.signal()
	return n, nil
}

// applyEdit writes what a Change made of a record; nil deletes it.
func (s *Store) applyEdit(key store.Key, r *store.Record) {
	was := &s.kept[key].rec
	s.count(was, -1)
	if r == nil {
		if was.State == store.Discarded {
			s.passed(was, was.Due, store.EndedDiscarded)
		}
		s.sum(store.Forgotten, was.Queue, 1)
		delete(s.kept, key)
		return
	}
	if r.Queue != was.Queue {
		s.sum(store.Moved, was.Queue, 1)
		s.sum(store.In, r.Queue, 1)
	}
	*was = *r
	s.count(was, 1)
}

func (s *Store) put(entries []store.Entry) {
	for _, e := range entries {
		if e.Value == nil {
			delete(s.values, e.Name)
		} else {
			s.values[e.Name] = bytes.Clone(e.Value)
		}
	}
}

// Entry implements store.Changer.
func (s *Store) Entry(_ context.Context, name string) ([]byte, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	return bytes.Clone(s.values[name]), nil
}

// Entries implements store.Changer.
func (s *Store) Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (bool, error)) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	values := maps.Clone(s.values)
	unlock()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !strings.HasPrefix(name, prefix) || after != "" && name <= after {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if more, err := visit(store.Entry{Name: name, Value: values[name]}); err != nil || !more {
			return err
		}
	}
	return nil
}

// PutEntries implements store.Changer.
func (s *Store) PutEntries(ctx context.Context, entries []store.Entry) error {
	unlock, err := s.lockIn(ctx)
	defer unlock()
	if err == nil {
		s.put(entries)
	}
	return err
}

// DeleteEntries implements store.Changer.
func (s *Store) DeleteEntries(ctx context.Context, prefix string) error {
	unlock, err := s.lockIn(ctx)
	defer unlock()
	if err == nil {
		maps.DeleteFunc(s.values, func(name string, _ []byte) bool { return strings.HasPrefix(name, prefix) })
		delete(s.terms, prefix)
	}
	return err
}

// NewestNumber implements store.Changer.
func (s *Store) NewestNumber(context.Context) (uint64, error) {
	unlock, err := s.lock()
	defer unlock()
	return s.seq, err
}

// Forget implements store.Changer.
func (s *Store) Forget(ctx context.Context, now time.Time) (int, error) {
	n, err := store.Forget(ctx, s, now)
	if err != nil {
		return n, err
	}
	return n, s.forgetQueues()
}
