package diskstore

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/group"
	"github.com/redrive-mq/redrive/internal/store"
)

// merged reads many stretches of keys, each in order by itself, in one order: that
// of their places. It holds one iterator for each stretch, and nothing else.
type merged struct {
	sources []*source // a heap: the first one is at what comes next
	newest  bool
}

// source is one stretch: a queue's records in a state, or a group's in the index.
type source struct {
	it    *walk
	index bool
}

// merge opens the stretches of a range that have something, each at its begin.
func (s *Store) merge(snap *pebble.Snapshot, r store.Range) (m *merged, err error) {
	m = &merged{newest: r.NewestFirst}
	low, high, err := bounds(r)
	if err != nil {
		return nil, err
	}
	open := func(prefix []byte, index bool) error {
		end := after(prefix)
		if high != nil {
			end = slices.Concat(prefix, high)
		}
		it, err := s.walk(snap, slices.Concat(prefix, low), end)
		if err != nil {
			return err
		}
		found := false
		if m.newest {
			found = it.Last()
		} else {
			found = it.First()
		}
		if !found {
			return it.Close()
		}
		m.sources = append(m.sources, &source{it, index})
		return nil
	}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	for i, id := range r.Groups {
		for _, state := range []store.State{store.Parked, store.Discarded} {
			if (r.State == 0 || r.State == state) && !slices.Contains(r.Groups[:i], id) {
				if err := open(groupPrefix(id, state), true); err != nil {
					return m, err
				}
			}
		}
	}
	var waiting []string
	if waiting, err = waitingOf(snap, r.Groups); err != nil {
		return m, err
	}
	err = counters(snap, func(state store.State, queue string, n int64) error {
		if n == 0 || r.State != 0 && r.State != state || r.Queues != nil && !slices.Contains(r.Queues, queue) ||
			r.Groups != nil && (state != store.Waiting || !slices.Contains(waiting, queue)) {
			return nil
		}
		return open(queuePrefix(state, queue), false)
	})
	heap.Init(m)
	return m, err
}

// waitingOf are the queues in which something of the groups waits: waiting records
// have no place in the index, so all of those queues' must be looked at.
func waitingOf(snap *pebble.Snapshot, ids []group.ID) (queues []string, err error) {
	for _, id := range ids {
		var t tally
		if err := with(snap, tallyKey(id), t.addFrom); err != nil {
			return nil, err
		}
		if t.kept[store.Waiting] == 0 {
			continue
		}
		err := with(snap, sharedKey(id), func(value []byte) error {
			g, err := readShared(id, value)
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
	it, err := wholly(db, []byte{prefixCount}, []byte{prefixCount + 1})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		n, _ := binary.Varint(it.Value())
		if err := visit(store.State(it.Key()[1]), string(it.Key()[2:]), n); err != nil {
			return err
		}
	}
	return it.Error()
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
	it, found := m.sources[0].it, false
	if m.newest {
		found = it.Prev()
	} else {
		found = it.Next()
	}
	if found {
		heap.Fix(m, 0)
		return nil
	}
	heap.Pop(m)
	return it.Close()
}

func (m *merged) close() {
	for _, s := range m.sources {
		_ = s.it.Close()
	}
}

func (m *merged) Len() int { return len(m.sources) }

func (m *merged) Less(i, j int) bool {
	c := bytes.Compare(placeOf(m.sources[i].it.Key()), placeOf(m.sources[j].it.Key()))
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
