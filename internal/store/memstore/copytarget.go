package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// AddListed implements store.CopyTarget.
func (s *Store) AddListed(_ context.Context, records []store.Listed) error {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return err
	}
	for _, l := range records {
		if _, err := l.Number(); err != nil {
			return err
		}
	}
	for _, l := range records {
		if s.kept[l.Key] != nil {
			continue
		}
		_, seq, _ := l.Key.Parts()
		s.seq = max(s.seq, seq)
		s.count(l.Record, 1)
		s.sum(store.In, l.Record.Queue, 1)
		s.kept[l.Key] = &entry{seq: seq, rec: *l.Record}
	}
	s.signal()
	return nil
}

// SetMetadata implements store.CopyTarget.
func (s *Store) SetMetadata(_ context.Context, b store.Metadata) error {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return err
	}
	for _, l := range b.Ledger {
		for _, as := range store.Flows {
			s.sum(as, l.Queue, 0) // is there then
			s.sums[l.Queue][as] = l.Sums[as]
		}
	}
	hour := time.Now().Unix() / 3600
	for _, g := range b.Groups {
		t := s.groups[g.ID]
		if t == nil {
			t = &groupState{Group: g.Group, hours: map[int64]int64{}}
			s.groups[g.ID] = t
			s.ordinary++
		}
		t.first, t.last, t.reasons = g.First, g.Last, t.reasons|g.Reasons
		for i, n := range g.Hours {
			t.hours[hour-23+int64(i)] = n
		}
	}
	s.seq = max(s.seq, b.Newest)
	s.past = slices.Clone(b.Past)
	slices.Reverse(s.past)
	return nil
}
