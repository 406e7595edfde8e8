package diskstore

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// merged reads many stretches of keys, each in order by itself, in one order: that
// of their places. It holds an iterator for each stretch that it has been in, and of the
// others where they begin: with one for each of 100,000 queues a first page took minutes.
type merged struct {
	sources   []*source // a heap: the first one is at what comes next
	newest    bool
	low, high []byte          // the places it is between; high nil: no end
	queues    map[string]bool // nil: all
	open      func(low, end []byte) (*walk, error)
}

// source is one stretch: a queue's records in a state, those of one of its forward
// targets, or a group's in the index.
type source struct {
	prefix []byte
	place  []byte // of what it is at
	it     *walk  // nil: it was not visited
	index  bool
}

// merge finds the stretches of a range that have something, each at its begin.
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
			if (r.State == 0 || r.State == state) && !slices.Contains(r.Groups[:i], id) {
				if err := open(groupIndexPrefix(id, state), true); err != nil {
					return m, err
				}
			}
		}
	}
	var waiting []string
	if waiting, err = waitingOf(snap, r.Groups); err != nil {
		return m, err
	}
	if r.State == 0 || r.State == store.Waiting {
		if err := s.mergeForwards(m, snap, r, waiting, open); err != nil {
			return m, err
		}
	}
	err = counters(snap, func(state store.State, queue string, n int64) error {
		if n == 0 || r.State != 0 && r.State != state || !m.of(queue) ||
			r.Groups != nil && (state != store.Waiting || !slices.Contains(waiting, queue)) {
			return nil
		}
		return open(queuePrefix(state, queue), false)
	})
	heap.Init(m)
	return m, err
}

// mergeForwards opens the stretches of forward targets. waiting are the queues in which
// something of the range's groups waits.
func (s *Store) mergeForwards(m *merged, snap *pebble.Snapshot, r store.Range, waiting []string, open func(prefix []byte, index bool) error) error {
	within := [][]byte{{prefixForward}}
	switch {
	case r.Groups != nil:
		within = nil
		for _, queue := range slices.Compact(slices.Sorted(slices.Values(waiting))) {
			if m.of(queue) {
				within = append(within, forwardPrefix(queue))
			}
		}
	case m.queues != nil:
		within = nil
		for queue := range m.queues {
			within = append(within, forwardPrefix(queue))
		}
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

// stretch is where the keys with a prefix are between.
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

// top is the source that is at what comes next; nil: nothing does.
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
		if err := m.end(); err != nil { // it cannot be read any more
			return nil, err
		}
	}
	return nil, nil
}

// end leaves the first source out.
func (m *merged) end() error {
	it := m.sources[0].it
	heap.Pop(m)
	return it.Close()
}

// waitingOf are the queues in which something of the groups waits: waiting records
// have no place in the index, so all of those queues' must be looked at.
func waitingOf(snap *pebble.Snapshot, ids []errorgroup.ID) (queues []string, err error) {
	for _, id := range ids {
		var t tally
		if err := withValue(snap, tallyKey(id), t.addFrom); err != nil {
			return nil, err
		}
		if t.kept[store.Waiting] == 0 {
			continue
		}
		err := withValue(snap, groupInfoKey(id), func(value []byte) error {
			g, err := store.ReadGroup(id, value)
			queues = append(queues, g.Queue)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return queues, nil
}

// counters visits how many records each queue has in each state. They are of the
// same moment as db, as those in memory are not.
func counters(db pebble.Reader, visit func(state store.State, queue string, n int64) error) error {
	return eachIn(db, prefixCount, func(key, value []byte) error {
		n, _ := binary.Varint(value)
		return visit(store.State(key[1]), string(key[2:]), n)
	})
}

// bounds are the places between which a range is: from low on and, unless it is
// nil, before high.
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

// placeFrom is before every place from t on, and after the others. A store keeps
// microseconds: what is due before a time is due before the next whole one.
func placeFrom(t time.Time) []byte { return place(t.Add(time.Microsecond-time.Nanosecond), 0) }

// cursor is how bounds finds where a visit was.
func cursor(key []byte) string { return hex.EncodeToString(placeOf(key)) }

// next goes on to the next place.
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

// Push is not used: all stretches are there from the start.
func (m *merged) Push(any) {}

func (m *merged) Pop() any {
	last := m.sources[len(m.sources)-1]
	m.sources = m.sources[:len(m.sources)-1]
	return last
}
