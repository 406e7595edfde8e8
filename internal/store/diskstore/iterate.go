package diskstore

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// isDamage reports whether an error is about a block that cannot be read, now or ever.
func isDamage(err error) bool { return pebble.IsCorruptionError(err) || errors.Is(err, syscall.EIO) }

// walk is a Pebble iterator that continues after unreadable blocks: they cost only the
// records in them. It passes what it leaves out to skipped.
type walk struct {
	*pebble.Iterator
	low, high []byte
	at        []byte                       // the current or last key
	over      bool                         // it ended in damage
	skipped   func(from []byte, err error) // nil: damage is an error
}

func newWalk(db pebble.Reader, low, high []byte, skipped func(from []byte, err error)) (*walk, error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: high})
	if err != nil {
		return nil, err
	}
	return &walk{Iterator: it, low: low, high: high, skipped: skipped}, nil
}

func (s *Store) walk(db pebble.Reader, low, high []byte) (*walk, error) {
	return newWalk(db, low, high, s.damage.skipped)
}

func (s *Store) walkNoting(db pebble.Reader, low, high []byte, leavesOut func()) (*walk, error) {
	return newWalk(db, low, high, func(from []byte, err error) {
		leavesOut()
		s.damage.skipped(from, err)
	})
}

// walkAll returns a walk that leaves nothing out: it only retries a read after a flipped bit or
// a single disk error. Damage is its Error.
func walkAll(db pebble.Reader, prefix []byte) (*walk, error) {
	return newWalk(db, prefix, after(prefix), nil)
}

// eachIn visits all keys with a prefix, and leaves nothing out: see walkAll.
func eachIn(db pebble.Reader, prefix byte, visit func(key, value []byte) error) error {
	it, err := walkAll(db, []byte{prefix})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if err := visit(it.Key(), it.Value()); err != nil {
			return err
		}
	}
	return it.Error()
}

// within sets other bounds. The walk must be moved then.
func (w *walk) within(low, high []byte) {
	w.low, w.high, w.over = low, high, false
	w.SetBounds(low, high)
}

func (w *walk) First() bool { return w.moved(w.Iterator.First(), w.low, true) }

func (w *walk) Last() bool { return w.moved(w.Iterator.Last(), w.high, false) }

func (w *walk) Next() bool {
	if w.Iterator.Next() {
		return w.here()
	}
	return w.moved(false, append(w.at, 0), true)
}

func (w *walk) Prev() bool { return w.moved(w.Iterator.Prev(), w.at, false) }

func (w *walk) SeekGE(key []byte) bool { return w.moved(w.Iterator.SeekGE(key), key, true) }

func (w *walk) here() bool {
	w.over = false
	w.at = append(w.at[:0], w.Key()...)
	return true
}

// moved ends a move from a key on, which met damage if there is an error.
func (w *walk) moved(valid bool, from []byte, forward bool) bool {
	if valid {
		return w.here()
	}
	w.over = false
	err := w.Error()
	if err == nil || !isDamage(err) {
		return false
	}
	from = bytes.Clone(from)
	if w.seek(from, forward) || w.Error() == nil { // this time it could be read
		return w.Valid() && w.here()
	}
	if w.skipped == nil {
		return false
	}
	found := w.behind(from, forward)
	if !forward {
		found = w.closer(from)
	}
	w.skipped(from, err)
	w.over = !found
	return found && w.here()
}

// Error returns nil when damage reaches up to the end.
func (w *walk) Error() error {
	if w.over {
		return nil
	}
	return w.Iterator.Error()
}

func (w *walk) Close() error {
	err := w.Iterator.Close()
	if w.over {
		return nil
	}
	return err
}

// ValueAndErr seeks the key again when its value cannot be read: Pebble would end there.
func (w *walk) ValueAndErr() ([]byte, error) {
	value, err := w.Iterator.ValueAndErr()
	if err != nil && isDamage(err) && w.skipped != nil {
		w.seek(bytes.Clone(w.at), true)
	}
	return value, err
}

// seek moves to the first key from a key on or, backward, to the last key before it.
func (w *walk) seek(key []byte, forward bool) bool {
	// After an error Pebble's next seek in the same direction would start at its place and
	// fail again: a clone, which reads the same moment, does not.
	if w.Iterator.Error() != nil {
		if again, err := w.Iterator.Clone(pebble.CloneOptions{}); err == nil {
			_ = w.Iterator.Close()
			w.Iterator = again
		}
	}
	if forward {
		return w.Iterator.SeekGE(key)
	}
	return w.Iterator.SeekLT(key)
}

// atEdge reports whether the place just before the current one, in the direction of the move,
// cannot be read. It leaves the walk where it was.
func (w *walk) atEdge(forward bool) bool {
	if !w.Valid() {
		if forward {
			w.Iterator.Last()
		} else {
			w.Iterator.First()
		}
		edge := w.Error() != nil
		w.seek(map[bool][]byte{true: w.high, false: w.low}[forward], forward)
		return edge
	}
	key := bytes.Clone(w.Key())
	if forward {
		w.Iterator.Prev()
	} else {
		w.Iterator.Next()
	}
	edge := w.Error() != nil
	if !forward {
		key = append(key, 0)
	}
	w.seek(key, forward)
	return edge
}

// behind moves to the first key that can be read after the damage at from. Pebble does not
// say where a damaged block ends, so behind searches for it: it takes keys as numbers, steps
// ahead by growing powers of two until a key can be read, then bisects.
func (w *walk) behind(from []byte, forward bool) bool {
	end := w.high
	if !forward {
		end = w.low
	}
	size := max(len(from), len(end)) + placeSize + 1 // either may be a prefix of keys
	bad, limit := asNumber(from, size), asNumber(end, size)
	good := new(big.Int).Set(limit)
	for step := uint(0); ; step += 2 {
		next := new(big.Int).Lsh(big.NewInt(1), step)
		if forward {
			next.Add(bad, next)
		} else {
			next.Sub(bad, next)
		}
		if beyond := next.Cmp(limit); beyond == 0 || beyond > 0 == forward {
			break
		}
		w.seek(asKey(next, size), forward)
		if w.Error() == nil {
			good = next
			break
		}
		bad = next
	}
	for {
		w.seek(asKey(good, size), forward)
		// The end of the bounds may itself be in a damaged block.
		if w.Error() == nil && w.atEdge(forward) {
			return w.Valid()
		}
		for { // bisect until another key can be read
			middle := new(big.Int).Add(bad, good)
			middle.Rsh(middle, 1)
			if middle.Cmp(bad) == 0 || middle.Cmp(good) == 0 {
				w.seek(asKey(good, size), forward)
				return w.Valid()
			}
			w.seek(asKey(middle, size), forward)
			if w.Error() == nil {
				good = middle
				break
			}
			bad = middle
		}
	}
}

// closer moves, after behind went backward, to the last key before from that can be read.
// Backward, Pebble does not find a key next to a damaged block, since it first reads on to
// the key before.
func (w *walk) closer(from []byte) bool {
	best := []byte(nil)
	next := w.low
	for {
		if w.Valid() {
			best = bytes.Clone(w.Key())
			next = append(bytes.Clone(best), 0)
		}
		w.Iterator.SeekGE(next)
		if w.Error() != nil {
			w.behind(next, true)
		}
		if !w.Valid() || bytes.Compare(w.Key(), from) >= 0 {
			break
		}
	}
	return best != nil && w.Iterator.SeekGE(best) || w.Iterator.SeekLT(w.low)
}

func asNumber(key []byte, size int) *big.Int {
	b := make([]byte, size)
	copy(b, key)
	return new(big.Int).SetBytes(b)
}

func asKey(n *big.Int, size int) []byte { return n.FillBytes(make([]byte, size)) }

// merged reads many ranges of keys, each ordered, in one order: that of their places. It
// has an iterator for each range that it has reached, and only the first place of the
// others: with iterators for 100,000 queues a first page took minutes.
type merged struct {
	sources   []*source // a heap: the first has what comes next
	newest    bool
	low, high []byte          // bounds of places; high nil: no end
	queues    map[string]bool // nil: all
	open      func(low, end []byte) (*walk, error)
}

// source is one range: a queue's records in a state, those of one of its forward targets,
// or a group's in the index.
type source struct {
	prefix []byte
	place  []byte // of its current key
	it     *walk  // nil: not reached yet
	index  bool
}

// merge finds the sources of a range that have records, each at its start.
func (s *Store) merge(snap *pebble.Snapshot, r store.Range) (m *merged, err error) {
	m = &merged{newest: r.NewestFirst, open: func(low, end []byte) (*walk, error) { return s.walk(snap, low, end) }}
	if m.low, m.high, err = bounds(r); err != nil {
		return nil, err
	}
	if r.Queues != nil {
		m.queues = make(map[string]bool, len(r.Queues))
		for _, q := range r.Queues {
			m.queues[q] = true
		}
	}
	heads, err := m.open(nil, nil)
	if err != nil {
		return nil, err
	}
	open := func(prefix []byte, index bool) error {
		heads.within(m.stretch(prefix))
		if !m.first(heads) {
			return heads.Error()
		}
		m.sources = append(m.sources, &source{prefix: prefix, place: bytes.Clone(placeOf(heads.Key())), index: index})
		return nil
	}
	defer func() { err = errors.Join(err, heads.Close()) }()
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	for i, id := range r.Groups {
		for _, state := range []store.State{store.Parked, store.Discarded} {
			if r.Of(state) && !slices.Contains(r.Groups[:i], id) {
				if err := open(groupIndexPrefix(id, state), true); err != nil {
					return m, err
				}
			}
		}
	}
	queues := m.queues // whose records are read, not those of the index
	if r.Groups != nil {
		if queues, err = m.waitingOf(snap, r.Groups); err != nil {
			return m, err
		}
	}
	if r.Of(store.Waiting) {
		if err := s.mergeForwards(snap, queues, open); err != nil {
			return m, err
		}
	}
	err = counters(snap, func(state store.State, queue string, n int64) error {
		if n == 0 || !r.Of(state) || queues != nil && !queues[queue] ||
			r.Groups != nil && state != store.Waiting {
			return nil
		}
		return open(queuePrefix(state, queue), false)
	})
	heap.Init(m)
	return m, err
}

// mergeForwards opens the sources of the forward targets of queues; nil: of all.
func (s *Store) mergeForwards(
	snap *pebble.Snapshot, queues map[string]bool, open func(prefix []byte, index bool) error,
) error {
	within := [][]byte{{prefixForward}}
	if queues != nil {
		within = nil
	}
	for queue := range queues {
		within = append(within, forwardPrefix(queue))
	}
	for _, prefix := range within {
		targets, _, err := s.forwards(snap, prefix)
		if err != nil {
			return err
		}
		for _, l := range targets {
			if err := open(lanePrefix(l), false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *merged) of(queue string) bool { return m.queues == nil || m.queues[queue] }

func (m *merged) stretch(prefix []byte) (low, end []byte) {
	if end = after(prefix); m.high != nil {
		end = slices.Concat(prefix, m.high)
	}
	return slices.Concat(prefix, m.low), end
}

func (m *merged) first(it *walk) bool {
	if m.newest {
		return it.Last()
	}
	return it.First()
}

// top returns the source with what comes next; nil: nothing does.
func (m *merged) top() (*source, error) {
	for len(m.sources) > 0 {
		s := m.sources[0]
		if s.it != nil {
			return s, nil
		}
		it, err := m.open(m.stretch(s.prefix))
		if err != nil {
			return nil, err
		}
		if s.it = it; m.first(it) {
			return s, nil
		}
		if err := m.end(); err != nil { // it could be read before, and cannot now
			return nil, err
		}
	}
	return nil, nil
}

func (m *merged) end() error {
	it := m.sources[0].it
	heap.Pop(m)
	return it.Close()
}

// waitingOf returns the queues in which a message of the groups waits: waiting records are
// not in the index, so all those of these queues must be read.
func (m *merged) waitingOf(snap *pebble.Snapshot, ids []errorgroup.ID) (map[string]bool, error) {
	queues := map[string]bool{}
	for _, id := range ids {
		var t store.Tally
		if err := withValue(snap, tallyKey(id), t.AddFrom); err != nil {
			return nil, err
		}
		if t.Kept[store.Waiting] == 0 {
			continue
		}
		err := withValue(snap, groupInfoKey(id), func(value []byte) error {
			g, err := store.ReadGroup(id, value)
			if m.of(g.Queue) {
				queues[g.Queue] = true
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return queues, nil
}

func counters(db pebble.Reader, visit func(state store.State, queue string, n int64) error) error {
	return eachIn(db, prefixCount, func(key, value []byte) error {
		n, _ := binary.Varint(value)
		return visit(store.State(key[1]), string(key[2:]), n)
	})
}

// bounds returns the bounds of a range's places: from low on and, unless it is nil, before
// high.
func bounds(r store.Range) (low, high []byte, err error) {
	if !r.From.IsZero() {
		low = placeFrom(r.From)
	}
	if !r.To.IsZero() {
		high = placeFrom(r.To)
	}
	if r.After == "" {
		return low, high, nil
	}
	at, err := hex.DecodeString(r.After)
	if err != nil || len(at) != placeSize {
		return nil, nil, fmt.Errorf("%.100q is %w", r.After, store.ErrCursor)
	}
	switch {
	case !r.NewestFirst && bytes.Compare(at, low) >= 0:
		low = append(at, 0)
	case r.NewestFirst && (high == nil || bytes.Compare(at, high) < 0):
		high = at
	}
	return low, high, nil
}

// placeFrom returns a place before all places from t on, and after the others. A store keeps microseconds: what is due
// before a time is due before the next whole microsecond.
func placeFrom(t time.Time) []byte { return place(t.Add(time.Microsecond-time.Nanosecond), 0) }

func cursor(key []byte) string { return hex.EncodeToString(placeOf(key)) }

func (m *merged) next() error {
	s, found := m.sources[0], false
	if m.newest {
		found = s.it.Prev()
	} else {
		found = s.it.Next()
	}
	if !found {
		return m.end()
	}
	s.place = append(s.place[:0], placeOf(s.it.Key())...)
	heap.Fix(m, 0)
	return nil
}

func (m *merged) close() {
	for _, s := range m.sources {
		if s.it != nil {
			_ = s.it.Close()
		}
	}
}

func (m *merged) Len() int { return len(m.sources) }

func (m *merged) Less(i, j int) bool {
	c := bytes.Compare(m.sources[i].place, m.sources[j].place)
	return c < 0 != m.newest
}

func (m *merged) Swap(i, j int) { m.sources[i], m.sources[j] = m.sources[j], m.sources[i] }

// Push is not used: all sources are there from the start.
func (m *merged) Push(any) {}

func (m *merged) Pop() any {
	last := m.sources[len(m.sources)-1]
	m.sources = m.sources[:len(m.sources)-1]
	return last
}

func (s *Store) Scan(ctx context.Context, r store.Range, visit func(store.Listed) (bool, error)) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	snap := s.db.NewSnapshot()
	defer snap.Close()
	m, err := s.merge(snap, r)
	if err != nil {
		return err
	}
	defer m.close()
	for more := true; more; {
		at, err := m.top()
		if at == nil || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		l, ok, err := s.show(snap, m, at, r)
		if err = s.damage.unreadable(at.it.Key(), err); err == nil && ok {
			more, err = visit(l)
		}
		if err == nil {
			err = m.next()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// show returns the record that a source is at; ok is false when it is not in the range.
func (s *Store) show(snap *pebble.Snapshot, m *merged, at *source, r store.Range) (l store.Listed, ok bool, err error) {
	key, value := at.it.Key(), at.it.Value()
	if !r.Has(seqOf(key)) {
		return l, false, nil
	}
	if at.index {
		key = slices.Clone(value)
		if !m.of(queueOf(key)) {
			return l, false, nil
		}
		return s.listed(snap, key, r.Body)
	}
	l, err = s.decode(key, value, r.Body)
	return l, err == nil && (r.Groups == nil || slices.Contains(r.Groups, s.GroupOf(l.Record))), err
}

// listed reads the record under key; ok is false when there is none.
func (s *Store) listed(snap *pebble.Snapshot, key []byte, body bool) (l store.Listed, ok bool, err error) {
	err = withValue(snap, key, func(value []byte) error {
		ok = true
		l, err = s.decode(key, value, body)
		return err
	})
	return l, ok && err == nil, err
}

func (s *Store) decode(key, value []byte, body bool) (store.Listed, error) {
	r, size, err := store.DecodeRecord(value, body)
	if err != nil {
		return store.Listed{}, fmt.Errorf("data folder %s, key %x: %w", s.path, key, err)
	}
	return store.Listed{Key: store.MakeKey(r.ID, seqOf(key)), Cursor: cursor(key), Record: r, BodySize: size}, nil
}

func (s *Store) Find(ctx context.Context, id uuid.UUID) ([]store.Listed, error) {
	return s.index(ctx, idKey(id, 0), idsAfter(id))
}

func (s *Store) Get(ctx context.Context, key store.Key) (store.Listed, error) {
	at := indexOf(key)
	if at == nil {
		return store.Listed{}, store.ErrNotFound
	}
	found, err := s.index(ctx, at, append(at, 0))
	if err == nil && len(found) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Listed{}, err
	}
	return found[0], nil
}

func (s *Store) index(ctx context.Context, low, end []byte) (found []store.Listed, err error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	snap := s.db.NewSnapshot()
	defer snap.Close()
	it, err := s.walk(snap, low, end)
	if err != nil {
		return nil, err
	}
	defer it.Close()
	lost := s.damage.lostKey(low)
	for it.First(); it.Valid(); it.Next() {
		l, ok, err := s.listed(snap, it.Value(), true)
		lost = lost || err != nil || s.damage.lostKey(it.Value())
		if err = s.damage.unreadable(it.Value(), err); err != nil {
			return nil, err
		}
		if ok {
			found = append(found, l)
		}
	}
	if err := it.Error(); err != nil || len(found) > 0 || !lost {
		return found, err
	}
	return nil, store.ErrUnreadable
}
