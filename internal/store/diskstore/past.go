package diskstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// PastFailures implements store.Searcher.
func (s *Store) PastFailures(ctx context.Context, id uuid.UUID) (found []store.PastFailure, err error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	// A message that is kept has failed again since its past failures, so these are in the
	// history. Those of any other may be on their way there, for as long as a disk syncs.
	kept, err := s.keeps(id)
	if err != nil {
		return nil, err
	}
	if !kept {
		s.awaitHistory()
	}
	var data []byte
	for _, name := range s.history.namesFor(id) {
		if data, err = s.historyIn(ctx, name, data); err != nil {
			return nil, err
		}
		for c := range chunks(data) {
			ids, _, err := splitPastFailures(c)
			if err == nil && !hasID(ids, id) {
				continue
			}
			all, err := s.pastFailuresIn(name, c)
			if err != nil {
				return nil, err
			}
			for _, p := range all {
				if p.ID == id {
					found = append(found, p)
				}
			}
		}
	}
	return found, nil
}

// keeps tells whether a record with this id is kept.
func (s *Store) keeps(id uuid.UUID) (bool, error) {
	it, err := s.walk(s.db, idKey(id, 0), idsAfter(id))
	if err != nil {
		return false, err
	}
	return it.First(), it.Close()
}

func hasID(ids []byte, id uuid.UUID) bool {
	for ; len(ids) > 0; ids = ids[idSize:] {
		if [idSize]byte(ids) == id {
			return true
		}
	}
	return false
}

// EachPastFailure implements store.Searcher.
func (s *Store) EachPastFailure(ctx context.Context, visit func(store.PastFailure) (bool, error)) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.awaitHistory()
	for _, name := range slices.Backward(s.history.names()) {
		data, err := s.historyIn(ctx, name, nil)
		if err != nil {
			return err
		}
		for _, c := range slices.Backward(slices.Collect(chunks(data))) {
			all, err := s.pastFailuresIn(name, c)
			if err != nil {
				return err
			}
			for _, p := range slices.Backward(all) {
				if err := ctx.Err(); err != nil {
					return err
				}
				if more, err := visit(p); err != nil || !more {
					return err
				}
			}
		}
	}
	return ctx.Err()
}

func (s *Store) historyIn(ctx context.Context, name uint64, buf []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	data, err := s.history.read(name, buf)
	if err != nil {
		return nil, fmt.Errorf("data folder %s, past failures from %d on: %w", s.path, name, err)
	}
	return data, nil
}

func (s *Store) pastFailuresIn(name uint64, chunk []byte) ([]store.PastFailure, error) {
	all, err := decodePastFailures(chunk)
	if err != nil {
		return nil, fmt.Errorf("data folder %s, past failures from %d on: %w", s.path, name, err)
	}
	return all, nil
}
