package inspect

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

// searchIDs finds messages by id, by an index: stored ones, and of others the last past failure.
func (s *search) searchIDs(ctx context.Context, ids []uuid.UUID) error {
	n := s.query.Narrow(s.Now(), nil, nil)
	n.GroupOf = s.Store.GroupOf
	var kept []store.Listed
	for _, id := range ids {
		all, err := s.Store.Find(ctx, id)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(l store.Listed) bool { return !s.by.Sees(l.Record.Queue) })
		if len(all) == 0 {
			last, err := s.lastOf(ctx, s.by, id)
			if err != nil {
				return err
			}
			all = append(all, last...)
		}
		s.page.Looked += int64(len(all))
		kept = append(kept, all...)
	}
	slices.SortStableFunc(kept, func(a, b store.Listed) int { return b.Record.Due.Compare(a.Record.Due) })
	for _, l := range kept {
		if !s.full() && n.Match(&l, s.decoded(ctx, &l)) {
			s.add(s.Shown(l))
		}
	}
	return nil
}

// lastOf returns the last past failure of a message that the caller may see, or nothing.
func (in *Inspector) lastOf(ctx context.Context, by auth.Caller, id uuid.UUID) ([]store.Listed, error) {
	past, err := in.Store.PastFailures(ctx, id)
	for _, p := range slices.Backward(past) {
		if by.Sees(p.Queue) {
			return []store.Listed{recordOf(p)}, nil
		}
	}
	return nil, err
}

// retried finds the messages of eachRetried.
func (s *search) retried(ctx context.Context, after string) error {
	last, more := "", false
	err := s.eachRetried(ctx, s.by, s.query, after, func(l store.Listed, place string) bool {
		if more = s.full(); more {
			return false
		}
		s.add(s.Shown(l))
		s.page.Looked++
		last = place
		return true
	})
	if more {
		s.page.After = last
	}
	return err
}

// eachRetried visits messages that are in their queue again and have not failed since: those after a
// place, newest first, each with its own place.
func (in *Inspector) eachRetried(ctx context.Context, by auth.Caller, q *query.Query, after string, visit func(l store.Listed, place string) (more bool)) error {
	n := q.Narrow(in.Now(), nil, nil)
	n.GroupOf = in.Store.GroupOf
	seen := map[uuid.UUID]bool{}
	skip := after != ""
	return in.Store.EachPastFailure(ctx, func(p store.PastFailure) (bool, error) {
		if err := ctx.Err(); err != nil || seen[p.ID] {
			return true, err
		}
		seen[p.ID] = true
		place := pastFailurePlace(p)
		if skip {
			// The one the page ended at may be forgotten by now; many end at once, in
			// any order.
			skip = place != after && place[:placeTime] >= after[:min(placeTime, len(after))]
			if skip || place == after {
				return true, nil
			}
		}
		l := recordOf(p)
		if p.Ending != store.EndedRetried || !by.Sees(p.Queue) || !n.Match(&l, withoutBody) {
			return true, nil
		}
		if again, err := in.Store.Find(ctx, p.ID); err != nil || len(again) > 0 {
			return true, err
		}
		return visit(l, place), nil
	})
}

func withoutBody() *decode.Result { return &decode.Result{} }

// recordOf is a past failure as a record without a body, in a state that no record has.
func recordOf(p store.PastFailure) store.Listed {
	return store.Listed{Record: &store.Record{ID: p.ID, Queue: p.Queue, State: query.Retried, Due: p.Ended, Failures: p.Failures,
		Reason: p.Reason, Error: p.Error, Policy: p.Policy, FailedAt: p.FailedAt}}
}

// placeTime is how much of a place is the time.
const placeTime = 16

// pastFailurePlace begins with when it ended.
func pastFailurePlace(p store.PastFailure) string {
	return fmt.Sprintf("%016x-%s", p.Ended.UnixMicro(), p.ID)
}
