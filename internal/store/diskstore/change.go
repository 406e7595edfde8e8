package diskstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// beginChange begins a call, and keeps other changes out until done is called.
func (s *Store) beginChange(ctx context.Context) (done func(), err error) {
	end, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	s.changing.Lock()
	return func() { s.changing.Unlock(); end() }, nil
}

func (s *Store) Change(
	ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit,
	entries func(int) []store.Entry,
) (n int, err error) {
	done, err := s.beginChange(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	c := s.newWriteBatch(0)
	defer c.close()
	m := &change{writeBatch: c, seen: map[store.Key]bool{}}
	defer m.end()
	if err := m.open(); err != nil {
		return 0, err
	}
	keys = keys[:min(len(keys), store.MaxChange)]
	for n < len(keys) {
		more, err := m.editOne(keys[n], edit)
		if err != nil {
			return 0, err
		}
		if !more {
			break
		}
		n++
	}
	if entries != nil {
		for _, e := range entries(n) {
			if err := c.entry(e); err != nil {
				return 0, err
			}
		}
	}
	if len(m.added) > 0 {
		if err := s.checkSpace(m.moved+sizeOf(m.added), s.reserve); err != nil {
			return 0, err
		}
		s.adding.RLock()
		defer s.adding.RUnlock()
		added, err := c.add(m.added)
		if err != nil {
			return 0, err
		}
		m.put = append(m.put, added...)
	} else if m.moved > 0 {
		if err := s.checkSpace(m.moved, s.reserve/2); err != nil {
			return 0, err
		}
	}
	if c.batch.Empty() {
		return n, nil
	}
	if err := c.commit(); err != nil {
		return 0, err
	}
	m.committed = true
	return n, nil
}

type change struct {
	*writeBatch
	// ids and records read one moment, and seek from where they are: an action on many records has their keys nearly in
	// order, and separate lookups would be the largest cost of Change.
	ids, records *pebble.Iterator

	seen      map[store.Key]bool
	held      [][]byte // waiting records that Claim must not claim
	put       [][]byte
	added     []*store.Record
	bodies    int
	moved     int
	committed bool
}

// editOne passes a record to edit, and applies the Edit; more is false when enough is in
// memory.
func (m *change) editOne(name store.Key, edit func(store.Key, *store.Record) store.Edit) (more bool, err error) {
	var key []byte
	var r *store.Record
	if !m.seen[name] {
		if key, r, err = m.readHeld(name); err != nil {
			return false, err
		}
	}
	var was store.Record
	if r != nil {
		was = *r
	}
	size := len(was.Message.Body)
	if r != nil && m.bodies > 0 && m.bodies+size > store.MaxChangeBytes {
		return false, nil
	}
	m.bodies += size
	m.seen[name] = true
	if was.Unreadable != nil {
		edit(name, r)
		return true, nil
	}
	e := edit(name, r)
	m.added = append(m.added, e.Add...)
	switch {
	case r == nil:
		return true, nil
	case e.Keep:
		if err := errors.Join(r.ValidateEdit(&was), m.remove(key, &was, true)); err != nil {
			return false, err
		}
		to := keyOf(r, seqOf(key))
		if r.Queue != was.Queue {
			m.count(store.Moved, was.Queue, 1)
			m.count(store.In, r.Queue, 1)
		}
		m.put = append(m.put, to)
		if err := m.writeBatch.put(to, r); err != nil {
			return false, err
		}
		m.moved += len(m.value)
		return true, nil
	case e.Delete && !e.Forwarded.IsZero():
		m.past.add(store.PastFailureOf(&was, e.Forwarded, store.EndedForwarded))
		m.count(store.Forwarded, was.Queue, 1)
	case e.Delete:
		if was.State == store.Discarded {
			m.past.add(store.PastFailureOf(&was, was.Due, store.EndedDiscarded))
		}
		m.count(store.Forgotten, was.Queue, 1)
	default:
		return true, nil
	}
	return true, m.remove(key, &was, false)
}

func (m *change) open() (err error) {
	if m.ids, err = m.s.db.NewIter(nil); err == nil {
		m.records, err = m.ids.Clone(pebble.CloneOptions{})
	}
	return err
}

// at returns the value of a key, in the iterator's memory; nil when there is none. After
// an error Pebble's next seek would start at its place and fail again: a clone, which
// reads the same moment, does not.
func at(it **pebble.Iterator, key []byte) (value []byte, err error) {
	if (*it).Error() != nil {
		again, err := (*it).Clone(pebble.CloneOptions{})
		if err != nil {
			return nil, err
		}
		_ = (*it).Close()
		*it = again
	}
	if (*it).SeekGE(key) && bytes.Equal((*it).Key(), key) {
		return (*it).ValueAndErr()
	}
	return nil, (*it).Error()
}

// readResting reads a parked or discarded record. Only Change modifies those, one at a time,
// so they need no hold. known is false for any other record.
func (m *change) readResting(index []byte) (key []byte, r *store.Record, known bool, err error) {
	if key, err = at(&m.ids, index); err != nil || key == nil || isWaiting(key) {
		return nil, nil, false, err
	}
	key = bytes.Clone(key)
	value, err := at(&m.records, key)
	if err != nil || value == nil {
		return nil, nil, false, err
	}
	r, _, err = store.DecodeRecord(value, true)
	return key, r, true, err
}

// readHeld reads a record and keeps Claim away from it until end; r is nil when it is
// claimed or not kept.
func (m *change) readHeld(name store.Key) (key []byte, r *store.Record, err error) {
	index := indexOf(name)
	if index == nil {
		return nil, nil, nil
	}
	key, r, known, err := m.readResting(index)
	if known && err == nil {
		return key, r, nil
	}
	if err == nil {
		key, r, err = m.find(name, index)
	}
	if err == nil && key == nil && m.s.damage.lostKey(index) {
		err = pebble.ErrCorruption
	}
	if key == nil {
		key = index
	}
	if err == nil {
		return key, r, nil
	}
	if err = m.s.damage.unreadable(key, err); err != nil {
		return nil, nil, err
	}
	return nil, &store.Record{Unreadable: store.ErrUnreadable}, nil
}

// find reads a record that may be waiting.
func (m *change) find(name store.Key, index []byte) (key []byte, r *store.Record, err error) {
	for {
		last := key
		if key, err = m.s.get(index); err != nil || key == nil || !m.hold(key) {
			return key, nil, err
		}
		value, err := m.s.get(key)
		switch {
		case err != nil:
			return key, nil, err
		case value != nil:
			r, _, err = store.DecodeRecord(value, true)
			return key, r, err
		case m.s.damage.lostKey(key):
			return key, nil, pebble.ErrCorruption
		case bytes.Equal(key, last):
			return nil, nil, fmt.Errorf("data folder %s: the record of message %s is not where its id says",
				m.s.path, name)
		}
		// It was finished between the two reads: it is gone, or parked.
	}
}

// hold keeps Claim away from a waiting record, like a claim that is being finished. It
// returns false when the record is claimed.
func (m *change) hold(key []byte) bool {
	if !isWaiting(key) {
		return true
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	claimed := m.s.lane(laneOf(key)).claimed
	if _, ok := claimed[string(key)]; ok {
		return false
	}
	claimed[string(key)] = false
	m.held = append(m.held, key)
	return true
}

func (m *change) end() {
	for _, it := range []*pebble.Iterator{m.ids, m.records} {
		if it != nil {
			_ = it.Close()
		}
	}
	ready := m.held
	if m.committed {
		ready = append(ready, m.put...)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	taken := map[store.Lane]bool{} // lanes whose first record may be gone
	for _, key := range m.held {
		l := laneOf(key)
		taken[l] = true
		delete(m.s.lane(l).claimed, string(key))
	}
	due := false
	for _, key := range ready {
		m.s.ready(key)
		due = due || isWaiting(key)
	}
	for l := range taken {
		m.s.findFirst(l)
	}
	if due {
		m.s.signal()
	}
}

// findFirst updates low and next of a lane, whose first record may be gone. When it
// cannot be read, next stays too early, and Claim looks again. The caller holds mu.
func (s *Store) findFirst(which store.Lane) {
	l := s.lane(which)
	end := after(lanePrefix(which))
	it, err := s.walkNoting(s.db, l.low, end, l.leftOut)
	if err != nil {
		return
	}
	low, next := end, time.Time{}
	for it.First(); it.Valid(); it.Next() {
		if _, ok := l.claimed[string(it.Key())]; !ok {
			low, next = bytes.Clone(it.Key()), dueOf(it.Key())
			break
		}
	}
	if it.Close() == nil {
		l.low, l.next = low, next
	}
}

func (s *Store) NewestNumber(context.Context) (uint64, error) {
	s.adding.Lock()
	defer s.adding.Unlock()
	return s.seq.Load(), nil
}

func (s *Store) Forget(ctx context.Context, now time.Time) (int, error) {
	n, err := store.Forget(ctx, s, now)
	if err != nil {
		return n, err
	}
	return n, s.forgetQueues(ctx)
}

// smallEntries is how many bytes of entries may be written even when the disk is full.
const smallEntries = 4 << 10

func (c *writeBatch) entry(e store.Entry) error {
	if e.Value == nil {
		return c.batch.Delete(entryKey(e.Name), nil)
	}
	return c.batch.Set(entryKey(e.Name), e.Value, nil)
}

func (s *Store) Entry(ctx context.Context, name string) ([]byte, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.get(entryKey(name))
}

func (s *Store) Entries(ctx context.Context, prefix, from string, visit func(store.Entry) (bool, error)) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	low := entryKey(prefix)
	if from != "" && from >= prefix {
		low = append(entryKey(from), 0)
	}
	it, err := s.walk(s.db, low, after(entryKey(prefix)))
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		more, err := visit(store.Entry{Name: string(it.Key()[1:]), Value: append([]byte{}, it.Value()...)})
		if err != nil || !more {
			return err
		}
	}
	return it.Error()
}

func (s *Store) PutEntries(ctx context.Context, entries []store.Entry) error {
	return s.write(ctx, func(c *writeBatch) error {
		for _, e := range entries {
			if err := c.entry(e); err != nil {
				return err
			}
		}
		if n := c.batch.Len(); n > smallEntries {
			return s.checkSpace(n, s.reserve/4*3)
		}
		return nil
	})
}

func (s *Store) DeleteEntries(ctx context.Context, prefix string) error {
	return s.write(ctx, func(c *writeBatch) error {
		return c.batch.DeleteRange(entryKey(prefix), after(entryKey(prefix)), nil)
	})
}

// forgetStep is how many queues are forgotten in one commit.
const forgetStep = 1000

// forgetQueues forgets queues without kept messages, except the EmptyLinesKept used last:
// their counts move to the line of OtherQueues, so that the store's ledger still balances.
// Counters are merged, so a message that arrives meanwhile is counted right.
func (s *Store) forgetQueues(ctx context.Context) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	for empty := s.emptyQueues(); len(empty) > store.EmptyLinesKept && ctx.Err() == nil; {
		n := min(forgetStep, len(empty)-store.EmptyLinesKept)
		if err := s.forgetNames(empty[:n]); err != nil {
			return err
		}
		empty = empty[n:]
	}
	return nil
}

// emptyQueues returns the queues without kept messages, the one idle for longest first.
func (s *Store) emptyQueues() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, q := range s.queues {
		if name != store.OtherQueues && q.empty() {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(s.queues[a].used.Compare(s.queues[b].used), cmp.Compare(a, b))
	})
	return names
}

func (q *queue) empty() bool {
	return q.kept[store.Waiting] == 0 && q.kept[store.Parked] == 0 && q.kept[store.Discarded] == 0 && !q.hasClaims()
}

// hasClaims reports whether a record of the queue is claimed, or held by a Change.
func (q *queue) hasClaims() (has bool) {
	q.lanes("", func(_ store.Lane, l *lane) { has = has || len(l.claimed) > 0 })
	return has
}

func (s *Store) forgetNames(names []string) error {
	c := s.newWriteBatch(64 * len(names))
	defer c.close()
	s.mu.Lock()
	for _, name := range names {
		q := s.queues[name]
		if q == nil || !q.empty() {
			continue // a message has arrived since
		}
		for as, n := range q.kept {
			if n != 0 {
				c.count(store.Column(as), name, -n)
				c.count(store.Column(as), store.OtherQueues, n)
			}
		}
	}
	s.mu.Unlock()
	if err := c.commit(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if q := s.queues[name]; q != nil && q.kept == (store.Sums{}) && !q.hasClaims() {
			delete(s.queues, name)
		}
	}
	return nil
}

// dropZeros deletes counters that are 0: those of forgotten queues. It runs while the store
// is opened, when nothing merges. (pebble.DeletableValueMerger, which would do this in
// compactions, panics there in Pebble 2.1.7.)
func (s *Store) dropZeros(b *pebble.Batch) error {
	for _, prefix := range []byte{prefixCount, prefixLedger} {
		err := eachIn(s.db, prefix, func(key, value []byte) error {
			if n, size := binary.Varint(value); n != 0 || size <= 0 {
				return nil
			}
			return b.Delete(key, nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
