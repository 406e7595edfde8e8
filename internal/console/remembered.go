package console

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

// named finds by id, which an index knows: kept ones, else how they ended.
func (s *search) named(ctx context.Context, ids []uuid.UUID) error {
	n := s.query.Narrow(s.Now(), nil, nil)
	n.GroupOf = s.Store.GroupOf
	var kept []store.Listed
	for _, id := range ids {
		all, err := s.Store.Find(ctx, id)
		if err != nil {
			return err
		}
		s.page.Looked += int64(len(all))
		kept = append(kept, all...)
		if len(all) > 0 {
			continue
		}
		past, err := s.Store.Past(ctx, id)
		if err != nil {
			return err
		}
		if len(past) > 0 {
			kept = append(kept, passed(past[len(past)-1]))
		}
	}
	slices.SortStableFunc(kept, func(a, b store.Listed) int { return b.Record.Due.Compare(a.Record.Due) })
	for _, l := range kept {
		if s.by.Sees(l.Record.Queue) && !s.full() && n.Match(&l, s.decoded(ctx, &l)) {
			s.add(s.shown(l))
		}
	}
	return nil
}

// returned finds messages that are back in their queue and were not seen since.
func (s *search) returned(ctx context.Context, after string) error {
	n := s.query.Narrow(s.Now(), nil, nil)
	n.GroupOf = s.Store.GroupOf
	seen := map[uuid.UUID]bool{}
	skip := after != ""
	return s.Store.Returned(ctx, func(p store.Passage) (bool, error) {
		at := passagePlace(p)
		if skip {
			// A page ends at a message that may be forgotten by now.
			skip = at != after && at > after
			seen[p.ID] = true
			return true, ctx.Err()
		}
		s.page.Looked++
		l := passed(p)
		if seen[p.ID] || p.Ending != store.EndedReturned || !s.by.Sees(p.Queue) || !n.Match(&l, nothing) {
			seen[p.ID] = true
			return true, ctx.Err()
		}
		seen[p.ID] = true
		if again, err := s.Store.Find(ctx, p.ID); err != nil || len(again) > 0 {
			return true, err
		}
		if s.full() {
			return false, nil
		}
		s.add(s.shown(l))
		s.page.After = at
		return true, nil
	})
}

func nothing() *decode.Result { return &decode.Result{} }

// passed is a passage as a record without a body, in a state that no record has.
func passed(p store.Passage) store.Listed {
	return store.Listed{Record: &store.Record{ID: p.ID, Queue: p.Queue, State: query.Returned, Due: p.Ended, Attempt: p.Attempt,
		Reason: p.Reason, Error: p.Error, Policy: p.Policy, FailedAt: p.FailedAt}}
}

// passagePlace orders passages by when they ended.
func passagePlace(p store.Passage) string {
	return fmt.Sprintf("%016x-%s", p.Ended.UnixMicro(), p.ID)
}
