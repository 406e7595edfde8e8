// Package memstore keeps messages in memory: the model that other stores are
// compared with, and the store of tests that turn the clock.
package memstore

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// Store implements store.Store. Nothing survives it.
type Store struct {
	*state
	changed chan struct{}
	closed  bool
}

// state is what is kept; all stores of one Replicas share it.
type state struct {
	mu       sync.Mutex
	seq      uint64
	kept     map[store.Key]*entry
	values   map[string][]byte // the side table
	groups   map[errorgroup.ID]*groupState
	ordinary int // groups that are not a queue's other errors
	past     []store.PastFailure
	receipts []store.Receipt
	sums     map[string]*store.Sums // the ledger, without what is kept
	used     map[string]uint64      // when something was last counted of a queue: counted then
	counted  uint64
	opened   []*Store
	terms    map[string]lead // of what there is a leader, see Lead
}

type entry struct {
	seq     uint64
	rec     store.Record
	claimed *Store // by whom; nil: none
}

// New makes an empty store.
func New() *Store { return open(newState()) }

func newState() *state {
	return &state{kept: map[store.Key]*entry{}, values: map[string][]byte{}, groups: map[errorgroup.ID]*groupState{}, sums: map[string]*store.Sums{}, used: map[string]uint64{}, terms: map[string]lead{}}
}

func open(of *state) *Store {
	s := &Store{state: of, changed: make(chan struct{}, 1)}
	of.mu.Lock()
	defer of.mu.Unlock()
	of.opened = append(of.opened, s)
	return s
}

func (s *Store) lock() (unlock func(), err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return func() {}, store.ErrClosed
	}
	return s.mu.Unlock, nil
}

func (s *state) signal() {
	for _, o := range s.opened {
		select {
		case o.changed <- struct{}{}:
		default:
		}
	}
}

func (s *Store) Add(_ context.Context, records []*store.Record) error {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return err
	}
	for _, r := range records {
		if err := r.Validate(); err != nil {
			return err
		}
	}
	s.add(records)
	for _, r := range records {
		s.groupOf(r).failed(r.FailedAt)
		if r.NewlyParked() {
			s.sum(store.EverParked, r.Queue, 1)
		}
	}
	s.remember(store.ReceiptsOf(records)...)
	s.signal()
	return nil
}

func (s *Store) add(records []*store.Record) {
	for _, r := range records {
		s.seq++
		s.count(r, 1)
		s.sum(store.In, r.Queue, 1)
		e := &entry{seq: s.seq, rec: *r}
		e.rec.Imported = false
		s.kept[store.MakeKey(r.ID, s.seq)] = e
	}
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

// sorted are the keys that keep says yes to, by state, queue, due and arrival.
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

func (s *Store) Claim(_ context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	var claims []store.Claim
	for _, k := range s.sorted(func(e *entry) bool {
		return e.rec.State == store.Waiting && e.rec.Lane() == lane && e.claimed == nil && !e.rec.Due.After(upTo)
	}) {
		e := s.kept[k]
		if len(claims) == n || len(claims) > 0 && len(e.rec.Message.Body) > maxBytes {
			break
		}
		maxBytes -= len(e.rec.Message.Body)
		e.claimed = s
		r := e.rec
		claims = append(claims, store.Claim{Key: k, Record: &r})
	}
	return claims, nil
}

func (s *Store) Finish(_ context.Context, outcomes []store.Outcome) (int, error) {
	unlock, err := s.lock()
	defer unlock()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, o := range outcomes {
		e := s.kept[o.Claim.Key]
		if e == nil || e.claimed != s {
			continue
		}
		n++
		s.count(&e.rec, -1)
		if o.Park == "" {
			delete(s.kept, o.Claim.Key)
			how, as := e.rec.Ended()
			s.sum(as, e.rec.Queue, 1)
			s.passed(&e.rec, o.At, how)
			continue
		}
		e.claimed = nil
		e.rec.State, e.rec.ParkedFor, e.rec.Due = store.Parked, o.Park, o.At
		s.count(&e.rec, 1)
		s.sum(store.EverParked, e.rec.Queue, 1)
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
		if e := s.kept[c.Key]; e != nil && e.claimed == s {
			e.claimed = nil
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
	due := map[store.Lane]time.Time{}
	for _, e := range s.kept {
		if e.rec.State != store.Waiting || e.claimed != nil {
			continue
		}
		lane := e.rec.Lane()
		if first, ok := due[lane]; !ok || e.rec.Due.Before(first) {
			due[lane] = e.rec.Due
		}
	}
	var next []store.NextDue
	for lane, at := range due {
		next = append(next, store.NextDue{Lane: lane, Due: at})
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
		switch r.State {
		case store.Parked:
			c.Parked++
		case store.Discarded:
			c.Discarded++
		case store.Waiting:
			if c.Waiting++; c.NextDue.IsZero() {
				c.NextDue, c.NextFailed = r.Due, r.FailedAt
			}
		}
	}
	return counts, nil
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
