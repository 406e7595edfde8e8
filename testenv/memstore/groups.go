package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// groupState is a group, and when it failed.
type groupState struct {
	errorgroup.Group
	kept        [store.Discarded + 1]int64
	first, last time.Time       // to the minute
	hours       map[int64]int64 // failures by hour since 1970
	reasons     store.Reasons
}

// groupOf is the group that a record counts in.
func (s *Store) groupOf(r *store.Record) *groupState {
	of := store.GroupFor(r.Group(), s.findGroup, s.ordinary < store.GroupsKept)
	if s.groups[of.ID] == nil {
		s.groups[of.ID] = &groupState{Group: of, hours: map[int64]int64{}}
		if of.ID != errorgroup.Other(of.Queue, 0).ID {
			s.ordinary++
		}
	}
	return s.groups[of.ID]
}

func (s *Store) findGroup(id errorgroup.ID) (known, inUse bool) {
	t := s.groups[id]
	return t != nil, t != nil && t.kept != [len(t.kept)]int64{}
}

// count counts a record in its group; again with n = -1 when it is taken away.
func (s *Store) count(r *store.Record, n int64) {
	t := s.groupOf(r)
	t.kept[r.State] += n
	t.reasons |= store.ReasonsOf(r.Reason)
}

// failed counts a failure.
func (t *groupState) failed(at time.Time) {
	if now := time.Now(); at.After(now) {
		at = now
	}
	if at.Unix() <= 0 {
		return
	}
	t.hours[at.Unix()/3600]++
	at = time.Unix(at.Unix()/60*60, 0)
	if t.first.IsZero() || at.Before(t.first) {
		t.first = at
	}
	if at.After(t.last) {
		t.last = at
	}
}

// GroupOf implements store.Searcher.
func (s *Store) GroupOf(r *store.Record) errorgroup.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groupID(r)
}

func (s *Store) groupID(r *store.Record) errorgroup.ID {
	return store.GroupFor(r.Group(), s.findGroup, true).ID
}

// Groups implements store.Searcher.
func (s *Store) Groups(context.Context) ([]store.GroupCount, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var counts []store.GroupCount
	for id, t := range s.groups {
		if t.kept == [len(t.kept)]int64{} && now.Sub(t.last) >= 24*time.Hour {
			continue
		}
		c := store.GroupCount{Group: t.Group, Waiting: t.kept[store.Waiting], Parked: t.kept[store.Parked], Discarded: t.kept[store.Discarded],
			First: t.first, Last: t.last, Reasons: t.reasons, Note: string(s.values["group/"+id.String()+"/note"])}
		for i := range c.Hours {
			c.Hours[i] = t.hours[now.Unix()/3600-23+int64(i)]
		}
		counts = append(counts, c)
	}
	return counts, nil
}

func (s *Store) passed(r *store.Record, ended time.Time, how store.Ending) {
	s.past = append(s.past, store.PastFailureOf(r, ended, how))
	if len(s.past) > 2*store.PastFailuresKept {
		s.past = slices.Clone(s.past[store.PastFailuresKept:])
	}
}

// PastFailures implements store.Searcher.
func (s *Store) PastFailures(_ context.Context, id uuid.UUID) (found []store.PastFailure, err error) {
	unlock, err := s.lock()
	defer unlock()
	for _, p := range s.past {
		if p.ID == id {
			found = append(found, p)
		}
	}
	return found, err
}

// EachPastFailure implements store.Searcher.
func (s *Store) EachPastFailure(ctx context.Context, visit func(store.PastFailure) (bool, error)) error {
	unlock, err := s.lock()
	past := slices.Clone(s.past)
	unlock()
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(past) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if more, err := visit(p); err != nil || !more {
			return err
		}
	}
	return nil
}
