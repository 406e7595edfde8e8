package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Scan implements store.Scanner. It copies all first, so that visit may call s.
func (s *Store) Scan(ctx context.Context, r store.Range, visit func(store.Listed) (bool, error)) error {
	var after entry
	if r.After != "" {
		var micros int64
		if _, err := fmt.Sscanf(r.After, "%d.%d", &micros, &after.seq); err != nil {
			return fmt.Errorf("%.100q is %w", r.After, store.ErrCursor)
		}
		after.rec.Due = time.UnixMicro(micros)
	}
	order := inTime
	if r.NewestFirst {
		order = func(a, b *entry) int { return inTime(b, a) }
	}
	found, err := s.find(r.Body, order, func(e *entry) bool {
		m := &e.rec
		return (r.State == 0 || r.State == m.State) &&
			(r.Queues == nil || slices.Contains(r.Queues, m.Queue)) &&
			(r.Groups == nil || slices.Contains(r.Groups, s.groupID(m))) &&
			(r.From.IsZero() || !m.Due.Before(r.From)) &&
			(r.To.IsZero() || m.Due.Before(r.To)) &&
			r.Has(e.seq) &&
			(r.After == "" || order(e, &after) > 0)
	})
	for _, l := range found {
		if err := ctx.Err(); err != nil {
			return err
		}
		if more, err := visit(l); err != nil || !more {
			return err
		}
	}
	return err
}

// CountDue implements store.Searcher.
func (s *Store) CountDue(_ context.Context, queues []string, edges []time.Time, most int64) ([]int64, error) {
	unlock, err := s.lock()
	defer unlock()
	counts := make([]int64, len(edges))
	for _, e := range s.kept {
		i := slices.IndexFunc(edges, func(edge time.Time) bool { return e.rec.Due.Before(edge) })
		if i >= 0 && e.rec.State == store.Waiting && slices.Contains(queues, e.rec.Queue) {
			counts[i] = min(most, counts[i]+1)
		}
	}
	return counts, err
}

func inTime(a, b *entry) int {
	return cmp.Or(a.rec.Due.Compare(b.rec.Due), cmp.Compare(a.seq, b.seq))
}

// find copies what keep says yes to.
func (s *Store) find(body bool, order func(a, b *entry) int, keep func(*entry) bool) ([]store.Listed, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	keys := s.sorted(keep)
	slices.SortFunc(keys, func(a, b store.Key) int { return order(s.kept[a], s.kept[b]) })
	var found []store.Listed
	for _, k := range keys {
		e := s.kept[k]
		r := e.rec
		if !body {
			r.Message.Body = nil
		}
		found = append(found, store.Listed{Key: k, Record: &r, BodySize: len(e.rec.Message.Body), Cursor: fmt.Sprintf("%d.%d", r.Due.UnixMicro(), e.seq)})
	}
	return found, nil
}

// Find implements store.Scanner.
func (s *Store) Find(_ context.Context, id uuid.UUID) ([]store.Listed, error) {
	arrival := func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) }
	return s.find(true, arrival, func(e *entry) bool { return e.rec.ID == id })
}

// Get implements store.Scanner.
func (s *Store) Get(_ context.Context, key store.Key) (store.Listed, error) {
	found, err := s.find(true, inTime, func(e *entry) bool { return store.MakeKey(e.rec.ID, e.seq) == key })
	if err == nil && len(found) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Listed{}, err
	}
	return found[0], nil
}
