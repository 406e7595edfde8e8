// Package memstore keeps messages in memory: the model that other stores are
// compared with, and the store of tests that turn the clock.
package memstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Store implements store.Store. Nothing survives it.
type Store struct {
	mu       sync.Mutex
	seq      int64
	kept     map[store.Key]*entry
	receipts []store.Receipt
	changed  chan struct{}
	closed   bool
}

type entry struct {
	seq     int64
	rec     store.Record
	claimed bool
}

// New makes an empty store.
func New() *Store {
	return &Store{kept: map[store.Key]*entry{}, changed: make(chan struct{}, 1)}
}

func (s *Store) lock() (unlock func(), err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return func() {}, store.ErrClosed
	}
	return s.mu.Unlock, nil
}

func (s *Store) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Store) Add(_ context.Context, records []*store.Record) error {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return err
	}
	for _, r := range records {
		s.seq++
		s.kept[store.Key(strconv.FormatInt(s.seq, 10))] = &entry{seq: s.seq, rec: *r}
		if r.Fingerprint != ([16]byte{}) {
			s.remember(store.Receipt{Fingerprint: r.Fingerprint, ID: r.ID})
		}
	}
	s.signal()
	return nil
}

// Remember implements store.Store.
func (s *Store) Remember(_ context.Context, receipts []store.Receipt) error {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return err
	}
	s.remember(receipts...)
	return nil
}

func (s *Store) remember(receipts ...store.Receipt) {
	s.receipts = append(s.receipts, receipts...)
	s.receipts = s.receipts[max(0, len(s.receipts)-store.ReceiptsKept):]
}

// sorted are the keys that keep says yes to, in listing order.
func (s *Store) sorted(keep func(*entry) bool) []store.Key {
	var keys []store.Key
	for k, e := range s.kept {
		if keep(e) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b store.Key) int { return compare(s.kept[a], s.kept[b]) })
	return keys
}

func compare(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.rec.State, b.rec.State), cmp.Compare(a.rec.Queue, b.rec.Queue), a.rec.Due.Compare(b.rec.Due), cmp.Compare(a.seq, b.seq))
}

func (s *Store) Claim(_ context.Context, queue string, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	var claims []store.Claim
	for _, k := range s.sorted(func(e *entry) bool {
		return e.rec.State == store.Waiting && e.rec.Queue == queue && !e.claimed && !e.rec.Due.After(upTo)
	}) {
		e := s.kept[k]
		if len(claims) == n || len(claims) > 0 && len(e.rec.Message.Body) > maxBytes {
			break
		}
		maxBytes -= len(e.rec.Message.Body)
		e.claimed = true
		r := e.rec
		claims = append(claims, store.Claim{Key: k, Record: &r})
	}
	return claims, nil
}

func (s *Store) Settle(_ context.Context, outcomes []store.Outcome) (int, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, o := range outcomes {
		e := s.kept[o.Claim.Key]
		if e == nil || !e.claimed {
			continue
		}
		n++
		if o.Park == "" {
			delete(s.kept, o.Claim.Key)
			continue
		}
		e.claimed = false
		e.rec.State, e.rec.ParkedFor, e.rec.Due = store.Parked, o.Park, o.At
	}
	return n, nil
}

func (s *Store) Release(_ context.Context, claims []store.Claim) error {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return err
	}
	for _, c := range claims {
		if e := s.kept[c.Key]; e != nil {
			e.claimed = false
		}
	}
	s.signal()
	return nil
}

func (s *Store) Next(context.Context) ([]store.NextDue, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	var next []store.NextDue
	for _, k := range s.sorted(func(e *entry) bool { return e.rec.State == store.Waiting && !e.claimed }) {
		r := &s.kept[k].rec
		if len(next) == 0 || next[len(next)-1].Queue != r.Queue {
			next = append(next, store.NextDue{Queue: r.Queue, Due: r.Due})
		}
	}
	return next, nil
}

func (s *Store) Changed() <-chan struct{} { return s.changed }

func (s *Store) Counts(context.Context) ([]store.QueueCount, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	var counts []store.QueueCount
	for _, k := range s.sorted(func(*entry) bool { return true }) {
		r := &s.kept[k].rec
		i, ok := at[r.Queue]
		if !ok {
			i, at[r.Queue] = len(counts), len(counts)
			counts = append(counts, store.QueueCount{Queue: r.Queue})
		}
		c := &counts[i]
		if r.State == store.Parked {
			c.Parked++
			continue
		}
		c.Waiting++
		if c.NextDue.IsZero() {
			c.NextDue, c.NextFailed = r.Due, r.FailedAt
		}
	}
	return counts, nil
}

func (s *Store) List(_ context.Context, f store.Filter) (store.Page, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return store.Page{}, err
	}
	var after *entry
	var page store.Page
	for _, k := range s.sorted(func(e *entry) bool {
		return (f.State == 0 || f.State == e.rec.State) && (f.Queue == "" || f.Queue == e.rec.Queue) && (f.ID == uuid.Nil || f.ID == e.rec.ID)
	}) {
		if after = s.kept[store.Key(f.After)]; after != nil && compare(s.kept[k], after) <= 0 {
			continue
		}
		if len(page.Records) == f.Max() {
			page.After = string(page.Records[len(page.Records)-1].Key)
			break
		}
		r := s.kept[k].rec
		l := store.Listed{Key: k, Record: &r, BodySize: len(r.Message.Body)}
		if !f.Body {
			r.Message.Body = nil
		}
		page.Records = append(page.Records, l)
	}
	return page, nil
}

func (s *Store) Replay(_ context.Context, sel store.Selection, due time.Time, progress func(int)) (int, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return 0, err
	}
	keys := s.sorted(func(e *entry) bool {
		return e.rec.State == store.Parked && (len(sel.IDs) > 0 && slices.Contains(sel.IDs, e.rec.ID) || len(sel.IDs) == 0 && e.rec.Queue == sel.Queue)
	})
	for _, k := range keys {
		s.kept[k].rec.Replay(due)
	}
	if progress != nil && len(keys) > 0 {
		progress(len(keys))
	}
	s.signal()
	return len(keys), nil
}

func (s *Store) Receipts(context.Context) ([]store.Receipt, error) {
	unlock, err := s.lock()
	defer unlock()
	return slices.Clone(s.receipts), err
}

func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
