// Package memstore keeps messages in memory: the model that other stores are
// compared with, and the store of tests that turn the clock.
package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

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

	// Of Replicas.
	terms     map[string]lead // of what there is a leader
	beats     map[string]beat
	listeners []*listener
}

type entry struct {
	seq     uint64
	key     store.Key
	rec     store.Record
	claimed *Store // by whom; nil: none
}

// groupState is a group, and when it failed.
type groupState struct {
	errorgroup.Group
	kept        [store.Discarded + 1]int64
	first, last time.Time       // to the minute
	hours       map[int64]int64 // failures by hour since 1970
	reasons     store.Reasons
}

// New makes an empty store.
func New() *Store { return newState().open() }

func newState() *state {
	return &state{kept: map[store.Key]*entry{}, values: map[string][]byte{}, groups: map[errorgroup.ID]*groupState{},
		sums: map[string]*store.Sums{}, used: map[string]uint64{}, terms: map[string]lead{}, beats: map[string]beat{}}
}

func (s *state) open() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	opened := &Store{state: s, changed: make(chan struct{}, 1)}
	s.opened = append(s.opened, opened)
	return opened
}

// do does something with the state, unless the store is closed.
func (s *Store) do(something func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	return something()
}

// get is do for what has an answer.
func get[T any](s *Store, read func() T) (answer T, err error) {
	err = s.do(func() error { answer = read(); return nil })
	return answer, err
}

// doInTerm is do for what a leader may do only as long as it is one.
func (s *Store) doInTerm(ctx context.Context, something func() error) error {
	return s.do(func() error {
		if what, term, ok := store.TermOf(ctx); ok && s.terms[what].term != term {
			return store.ErrDeposed
		}
		return something()
	})
}

// signal tells whoever waits for news.
func signal(news chan struct{}) {
	select {
	case news <- struct{}{}:
	default:
	}
}

// signal tells all stores that something changed.
func (s *state) signal() {
	for _, o := range s.opened {
		signal(o.changed)
	}
}

func (s *Store) Add(_ context.Context, records []*store.Record) error {
	return s.do(func() error {
		for _, r := range records {
			if err := r.Validate(); err != nil {
				return err
			}
		}
		s.add(records)
		for _, r := range records {
			s.groupOf(r).failed(r.FailedAt)
			if r.NewlyParked() {
				s.sum(r.EverParked(), r.Queue, 1)
			}
		}
		s.remember(store.ReceiptsOf(records))
		s.signal()
		return nil
	})
}

func (s *state) add(records []*store.Record) {
	for _, r := range records {
		s.seq++
		s.count(r, 1)
		s.sum(store.In, r.Queue, 1)
		e := &entry{seq: s.seq, key: store.MakeKey(r.ID, s.seq), rec: *r}
		e.rec.Imported = false
		s.kept[e.key] = e
	}
}

// Remember implements store.Store.
func (s *Store) Remember(_ context.Context, receipts []store.Receipt) error {
	return s.do(func() error {
		s.remember(receipts)
		return nil
	})
}

func (s *state) remember(receipts []store.Receipt) {
	s.receipts = append(s.receipts, receipts...)
	s.receipts = s.receipts[max(0, len(s.receipts)-store.ReceiptsKept):]
}

// find finds what keep says yes to, in an order.
func (s *state) find(order func(a, b *entry) int, keep func(*entry) bool) (found []*entry) {
	for _, e := range s.kept {
		if keep(e) {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, order)
	return found
}

func inTime(a, b *entry) int { return cmp.Or(a.rec.Due.Compare(b.rec.Due), byArrival(a, b)) }

func byArrival(a, b *entry) int { return cmp.Compare(a.seq, b.seq) }

func (s *Store) Claim(_ context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	return get(s, func() (claims []store.Claim) {
		for _, e := range s.find(inTime, func(e *entry) bool {
			return e.free() && e.rec.Lane() == lane && !e.rec.Due.After(upTo)
		}) {
			if len(claims) == n || len(claims) > 0 && len(e.rec.Message.Body) > maxBytes {
				break
			}
			maxBytes -= len(e.rec.Message.Body)
			e.claimed = s
			r := e.rec
			claims = append(claims, store.Claim{Key: e.key, Record: &r})
		}
		return claims
	})
}

// free reports whether it may be claimed when it is due.
func (e *entry) free() bool { return e.rec.State == store.Waiting && e.claimed == nil }

func (s *Store) Finish(_ context.Context, outcomes []store.Outcome) (int, error) {
	return get(s, func() (n int) {
		for _, o := range outcomes {
			e := s.kept[o.Claim.Key]
			if e == nil || e.claimed != s {
				continue
			}
			n++
			s.count(&e.rec, -1)
			if o.Park == "" {
				delete(s.kept, e.key)
				how, as := e.rec.Ended()
				s.sum(as, e.rec.Queue, 1)
				s.passed(&e.rec, o.At, how)
				continue
			}
			e.claimed = nil
			e.rec.State, e.rec.ParkedFor, e.rec.Due = store.Parked, o.Park, o.At
			s.count(&e.rec, 1)
			s.sum(e.rec.EverParked(), e.rec.Queue, 1)
		}
		return n
	})
}

func (s *Store) Release(_ context.Context, claims []store.Claim) error {
	return s.do(func() error {
		for _, c := range claims {
			if e := s.kept[c.Key]; e != nil && e.claimed == s {
				e.claimed = nil
			}
		}
		s.signal()
		return nil
	})
}

func (s *Store) Next(context.Context) ([]store.NextDue, error) {
	return get(s, func() (next []store.NextDue) {
		seen := map[store.Lane]bool{}
		for _, e := range s.find(inTime, (*entry).free) {
			if lane := e.rec.Lane(); !seen[lane] {
				seen[lane] = true
				next = append(next, store.NextDue{Lane: lane, Due: e.rec.Due})
			}
		}
		return next
	})
}

func (s *Store) Changed() <-chan struct{} { return s.changed }

func (s *Store) Counts(context.Context) ([]store.QueueCount, error) {
	return get(s, func() (counts []store.QueueCount) {
		at := map[string]int{}
		for _, e := range s.find(inTime, func(*entry) bool { return true }) {
			i, ok := at[e.rec.Queue]
			if !ok {
				i, at[e.rec.Queue] = len(counts), len(counts)
				counts = append(counts, store.QueueCount{Queue: e.rec.Queue})
			}
			c := &counts[i]
			switch e.rec.State {
			case store.Parked:
				c.Parked++
			case store.Discarded:
				c.Discarded++
			case store.Waiting:
				if c.Waiting++; c.NextDue.IsZero() {
					c.NextDue, c.NextFailed = e.rec.Due, e.rec.FailedAt
				}
			}
		}
		return counts
	})
}

func (s *Store) Receipts(context.Context) ([]store.Receipt, error) {
	return get(s, func() []store.Receipt { return slices.Clone(s.receipts) })
}

func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

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
	found, err := s.list(r.Body, order, func(e *entry) bool {
		m := &e.rec
		return r.Of(m.State) &&
			(r.Queues == nil || slices.Contains(r.Queues, m.Queue)) &&
			(r.Groups == nil || slices.Contains(r.Groups, s.groupID(m))) &&
			(r.From.IsZero() || !m.Due.Before(r.From)) &&
			(r.To.IsZero() || m.Due.Before(r.To)) &&
			r.Has(e.seq) &&
			(r.After == "" || order(e, &after) > 0)
	})
	if err != nil {
		return err
	}
	return each(ctx, found, visit)
}

// each visits all, until visit has seen enough or ctx ends.
func each[T any](ctx context.Context, all []T, visit func(T) (bool, error)) error {
	for _, one := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		if more, err := visit(one); err != nil || !more {
			return err
		}
	}
	return nil
}

// list copies what keep says yes to.
func (s *Store) list(body bool, order func(a, b *entry) int, keep func(*entry) bool) ([]store.Listed, error) {
	return get(s, func() (listed []store.Listed) {
		for _, e := range s.find(order, keep) {
			r := e.rec
			if !body {
				r.Message.Body = nil
			}
			listed = append(listed, store.Listed{Key: e.key, Record: &r, BodySize: len(e.rec.Message.Body),
				Cursor: fmt.Sprintf("%d.%d", r.Due.UnixMicro(), e.seq)})
		}
		return listed
	})
}

// Find implements store.Scanner.
func (s *Store) Find(_ context.Context, id uuid.UUID) ([]store.Listed, error) {
	return s.list(true, byArrival, func(e *entry) bool { return e.rec.ID == id })
}

// Get implements store.Scanner.
func (s *Store) Get(_ context.Context, key store.Key) (store.Listed, error) {
	found, err := s.list(true, inTime, func(e *entry) bool { return e.key == key })
	if err == nil && len(found) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Listed{}, err
	}
	return found[0], nil
}

// CountDue implements store.Searcher.
func (s *Store) CountDue(_ context.Context, queues []string, edges []time.Time, most int64) ([]int64, error) {
	return get(s, func() []int64 {
		counts := make([]int64, len(edges))
		for _, e := range s.kept {
			i := slices.IndexFunc(edges, func(edge time.Time) bool { return e.rec.Due.Before(edge) })
			if i >= 0 && e.rec.State == store.Waiting && slices.Contains(queues, e.rec.Queue) {
				counts[i] = min(most, counts[i]+1)
			}
		}
		return counts
	})
}

// Change implements store.Changer.
func (s *Store) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit,
	entries func(int) []store.Entry) (n int, err error) {
	err = s.doInTerm(ctx, func() error {
		seen := map[store.Key]bool{}
		var edits []func() // none before all are checked
		var added []*store.Record
		taken, size := 0, 0
		for _, key := range keys[:min(len(keys), store.MaxChange)] {
			var r *store.Record
			e := s.kept[key]
			if e != nil && e.claimed == nil && !seen[key] {
				if size > 0 && size+len(e.rec.Message.Body) > store.MaxChangeBytes {
					break
				}
				size += len(e.rec.Message.Body)
				rec := e.rec
				r = &rec
			}
			taken++
			seen[key] = true
			does := edit(key, r)
			added = append(added, does.Add...)
			switch {
			case r == nil:
			case does.Keep:
				if err := r.ValidateEdit(&e.rec); err != nil {
					return err
				}
				edits = append(edits, func() { s.replace(e, r) })
			case does.Delete:
				edits = append(edits, func() { s.forget(e, does.Forwarded) })
			}
		}
		for _, r := range added {
			if err := r.Validate(); err != nil {
				return err
			}
		}
		if entries != nil {
			s.put(entries(taken))
		}
		for _, do := range edits {
			do()
		}
		s.add(added)
		s.signal()
		n = taken
		return nil
	})
	return n, err
}

// replace writes what a Change made of a record.
func (s *state) replace(e *entry, r *store.Record) {
	s.count(&e.rec, -1)
	if r.Queue != e.rec.Queue {
		s.sum(store.Moved, e.rec.Queue, 1)
		s.sum(store.In, r.Queue, 1)
	}
	e.rec = *r
	s.count(r, 1)
}

// forget deletes a record for a Change; forwarded is zero when it is discarded for good.
func (s *state) forget(e *entry, forwarded time.Time) {
	s.count(&e.rec, -1)
	if !forwarded.IsZero() {
		s.passed(&e.rec, forwarded, store.EndedForwarded)
		s.sum(store.Forwarded, e.rec.Queue, 1)
		delete(s.kept, e.key)
		return
	}
	if e.rec.State == store.Discarded {
		s.passed(&e.rec, e.rec.Due, store.EndedDiscarded)
	}
	s.sum(store.Forgotten, e.rec.Queue, 1)
	delete(s.kept, e.key)
}

func (s *state) put(entries []store.Entry) {
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
	return get(s, func() []byte { return bytes.Clone(s.values[name]) })
}

// Entries implements store.Changer.
func (s *Store) Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (bool, error)) error {
	found, err := get(s, func() (found []store.Entry) {
		for _, name := range slices.Sorted(maps.Keys(s.values)) {
			if strings.HasPrefix(name, prefix) && (after == "" || name > after) {
				found = append(found, store.Entry{Name: name, Value: s.values[name]})
			}
		}
		return found
	})
	if err != nil {
		return err
	}
	return each(ctx, found, visit)
}

// PutEntries implements store.Changer.
func (s *Store) PutEntries(ctx context.Context, entries []store.Entry) error {
	return s.doInTerm(ctx, func() error {
		s.put(entries)
		return nil
	})
}

// DeleteEntries implements store.Changer.
func (s *Store) DeleteEntries(ctx context.Context, prefix string) error {
	return s.doInTerm(ctx, func() error {
		maps.DeleteFunc(s.values, func(name string, _ []byte) bool { return strings.HasPrefix(name, prefix) })
		delete(s.terms, prefix)
		return nil
	})
}

// NewestNumber implements store.Changer.
func (s *Store) NewestNumber(context.Context) (uint64, error) {
	return get(s, func() uint64 { return s.seq })
}

// Forget implements store.Changer.
func (s *Store) Forget(ctx context.Context, now time.Time) (int, error) {
	n, err := store.Forget(ctx, s, now)
	if err != nil {
		return n, err
	}
	return n, s.do(s.forgetQueues)
}

// groupOf is the group that a record counts in.
func (s *state) groupOf(r *store.Record) *groupState {
	of := store.GroupFor(r.Group(), s.findGroup, s.ordinary < store.GroupsKept)
	if s.groups[of.ID] == nil {
		s.groups[of.ID] = &groupState{Group: of, hours: map[int64]int64{}}
		if of.ID != errorgroup.Other(of.Queue, 0).ID {
			s.ordinary++
		}
	}
	return s.groups[of.ID]
}

func (s *state) findGroup(id errorgroup.ID) (known, inUse bool) {
	t := s.groups[id]
	return t != nil, t != nil && t.kept != [len(t.kept)]int64{}
}

// count counts a record in its group; again with n = -1 when it is taken away.
func (s *state) count(r *store.Record, n int64) {
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
	at = at.Truncate(time.Second)
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

func (s *state) groupID(r *store.Record) errorgroup.ID {
	return store.GroupFor(r.Group(), s.findGroup, true).ID
}

// Groups implements store.Searcher.
func (s *Store) Groups(context.Context) ([]store.GroupCount, error) {
	return get(s, func() (counts []store.GroupCount) {
		now := time.Now()
		for id, t := range s.groups {
			if t.kept == [len(t.kept)]int64{} && now.Sub(t.last) >= 24*time.Hour {
				continue
			}
			c := store.GroupCount{Group: t.Group, Waiting: t.kept[store.Waiting], Parked: t.kept[store.Parked],
				Discarded: t.kept[store.Discarded], First: t.first, Last: t.last, Reasons: t.reasons,
				Note: string(s.values["group/"+id.String()+"/note"])}
			for i := range c.Hours {
				c.Hours[i] = t.hours[now.Unix()/3600-23+int64(i)]
			}
			counts = append(counts, c)
		}
		return counts
	})
}

func (s *state) passed(r *store.Record, ended time.Time, how store.Ending) {
	s.past = append(s.past, store.PastFailureOf(r, ended, how))
	if len(s.past) > 2*store.PastFailuresKept {
		s.past = slices.Clone(s.past[store.PastFailuresKept:])
	}
}

// PastFailures implements store.Searcher.
func (s *Store) PastFailures(_ context.Context, id uuid.UUID) ([]store.PastFailure, error) {
	return get(s, func() (found []store.PastFailure) {
		for _, p := range s.past {
			if p.ID == id {
				found = append(found, p)
			}
		}
		return found
	})
}

// EachPastFailure implements store.Searcher.
func (s *Store) EachPastFailure(ctx context.Context, visit func(store.PastFailure) (bool, error)) error {
	past, err := get(s, func() []store.PastFailure { return slices.Clone(s.past) })
	if err != nil {
		return err
	}
	slices.Reverse(past)
	return each(ctx, past, visit)
}

func (s *state) sum(as store.Column, queue string, n int64) {
	if s.sums[queue] == nil {
		s.sums[queue] = new(store.Sums)
	}
	s.sums[queue][as] += n
	s.counted++
	s.used[queue] = s.counted
}

// forgetQueues forgets queues that nothing is kept for: see the disk engine's.
func (s *state) forgetQueues() error {
	kept := map[string]bool{store.OtherQueues: true}
	for _, e := range s.kept {
		kept[e.rec.Queue] = true
	}
	var empty []string
	for queue := range s.sums {
		if !kept[queue] {
			empty = append(empty, queue)
		}
	}
	slices.SortFunc(empty, func(a, b string) int { return cmp.Compare(s.used[a], s.used[b]) })
	for _, queue := range empty[:max(0, len(empty)-store.EmptyLinesKept)] {
		for as, n := range s.sums[queue] {
			s.sum(store.Column(as), store.OtherQueues, n)
		}
		delete(s.sums, queue)
		delete(s.used, queue)
	}
	return nil
}

// Ledger implements store.Bookkeeper.
func (s *Store) Ledger(ctx context.Context) ([]store.LedgerLine, error) { return s.Recount(ctx) }

// Recount implements store.Bookkeeper.
func (s *Store) Recount(context.Context) ([]store.LedgerLine, error) {
	return get(s, func() []store.LedgerLine {
		by := map[string]*store.Sums{}
		for queue, sums := range s.sums {
			line := *sums
			by[queue] = &line
		}
		for _, e := range s.kept {
			by[e.rec.Queue][e.rec.State]++
		}
		return store.Lines(by)
	})
}

// CountUnstored implements store.Bookkeeper.
func (s *Store) CountUnstored(queue string, as store.Column, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum(store.In, queue, n)
	s.sum(as, queue, n)
}

// Replicas is one store in memory that several services use at once, for tests of what
// replicas do together. Its time is that of package time, which testing/synctest
// turns.
type Replicas struct{ *state }

type beat struct {
	about []byte
	until time.Time
}

type lead struct {
	replica string
	until   time.Time
	term    uint64
}

type listener struct {
	member   *Member
	topic    string
	messages [][]byte
	news     chan struct{}
}

// NewReplicas makes an empty store.
func NewReplicas() *Replicas { return &Replicas{newState()} }

// Join opens the store for one more service.
func (f *Replicas) Join() *Member { return &Member{f.open()} }

// Member implements store.Shared.
type Member struct{ *Store }

// Kill ends a member as if its process was killed: what it still calls does nothing,
// it neither leaves nor resigns, and what it has claimed is there for the others.
func (m *Member) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, e := range m.kept {
		if e.claimed == m.Store {
			e.claimed = nil
		}
	}
	m.signal()
}

// Beat implements store.Shared.
func (m *Member) Beat(_ context.Context, replica string, about []byte, ttl time.Duration) ([]store.Replica, error) {
	return get(m.Store, func() (all []store.Replica) {
		now := time.Now()
		maps.DeleteFunc(m.beats, func(_ string, b beat) bool { return !now.Before(b.until) })
		m.beats[replica] = beat{slices.Clone(about), now.Add(ttl)}
		for _, id := range slices.Sorted(maps.Keys(m.beats)) {
			all = append(all, store.Replica{ID: id, About: m.beats[id].about})
		}
		return all
	})
}

// Leave implements store.Shared.
func (m *Member) Leave(_ context.Context, replica string) error {
	return m.do(func() error {
		delete(m.beats, replica)
		return nil
	})
}

// Lead implements store.Shared.
func (m *Member) Lead(_ context.Context, what, replica string, ttl time.Duration) (term uint64, leads bool,
	err error) {
	err = m.do(func() error {
		now, is := time.Now(), m.terms[what]
		if !now.Before(is.until) {
			is.replica, is.term = replica, is.term+1
		}
		if term, leads = is.term, is.replica == replica; leads {
			is.until = now.Add(ttl)
			m.terms[what] = is
		}
		return nil
	})
	return term, leads, err
}

// Resign implements store.Shared.
func (m *Member) Resign(_ context.Context, what, replica string) error {
	return m.do(func() error {
		if is := m.terms[what]; is.replica == replica {
			is.until = time.Time{}
			m.terms[what] = is
		}
		return nil
	})
}

// Send implements store.Shared.
func (m *Member) Send(_ context.Context, topic string, message []byte) error {
	return m.do(func() error {
		for _, l := range m.listeners {
			if l.topic == topic && !l.member.closed {
				l.messages = append(l.messages, slices.Clone(message))
				signal(l.news)
			}
		}
		return nil
	})
}

// Listen implements store.Shared.
func (m *Member) Listen(ctx context.Context, topic string, receive func([]byte)) error {
	l := &listener{member: m, topic: topic, news: make(chan struct{}, 1)}
	if err := m.do(func() error {
		m.listeners = append(m.listeners, l)
		return nil
	}); err != nil {
		return err
	}
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.listeners = slices.DeleteFunc(m.listeners, func(o *listener) bool { return o == l })
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.news:
		}
		m.mu.Lock()
		messages := l.messages
		l.messages = nil
		m.mu.Unlock()
		for _, b := range messages {
			receive(b)
		}
	}
}
