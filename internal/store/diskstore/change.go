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

// beginChange counts a call, and keeps other changes out until done is called.
func (s *Store) beginChange(ctx context.Context) (done func(), err error) {
	end, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	s.changing.Lock()
	return func() { s.changing.Unlock(); end() }, nil
}

// Change implements store.Changer.
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
	keys = keys[:min(len(keys), store.ChangeMost)]
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

// change is a Change under way.
type change struct {
	*writeBatch
	// ids and records are of one moment, and go on from where they are: an action on
	// many meets their keys in order, or nearly, where looking each up again costs the
	// most of all that Change does.
	ids, records *pebble.Iterator

	seen      map[store.Key]bool
	held      [][]byte // waiting records that Claim is kept away from
	put       [][]byte // keys of what was written
	added     []*store.Record
	bodies    int // bytes that were read, and
	moved     int // to be written
	committed bool
}

// editOne passes a record to edit, and does what that returns; more is false when enough
// is in memory.
func (m *change) editOne(name store.Key, edit func(store.Key, *store.Record) store.Edit) (more bool, err error) {
	var key []byte
	var r *store.Record
	if !m.seen[name] {
		if key, r, err = m.readHeld(name); err != nil {
			return false, err
		}
	}
	if r != nil {
		size := len(r.Message.Body)
		if m.bodies > 0 && m.bodies+size > store.ChangeBytes {
			return false, nil
		}
		m.bodies += size
	}
	m.seen[name] = true
	if r != nil && r.Unreadable != nil {
		edit(name, r)
		return true, nil
	}
	var was store.Record
	if r != nil {
		was = *r
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
	case e.Delete && !e.Forwarded.IsZero():
		p := store.PastFailureOf(&was, e.Forwarded, store.EndedForwarded)
		m.past.add(&p)
		m.count(store.Forwarded, was.Queue, 1)
		return true, m.remove(key, &was, false)
	case e.Delete:
		if was.State == store.Discarded {
			p := store.PastFailureOf(&was, was.Due, store.EndedDiscarded)
			m.past.add(&p)
		}
		m.count(store.Forgotten, was.Queue, 1)
		return true, m.remove(key, &was, false)
	}
	return true, nil
}

// open opens what m reads by; end closes it.
func (m *change) open() (err error) {
	if m.ids, err = m.s.db.NewIter(nil); err == nil {
		m.records, err = m.ids.Clone(pebble.CloneOptions{})
	}
	return err
}

// at is the value of a key when m was opened; nil when there was none. It is the
// iterator's. After an error Pebble's next seek would begin where that was, and fail
// again: a clone, which is of the same moment, does not.
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

// readResting reads a record that is parked or discarded: from there none but a Change
// takes it, and there is one at a time. known is false for any other.
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
// not kept, or claimed.
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
		// Between the two reads it was finished: it is gone, or parked.
	}
}

// hold keeps Claim away from a waiting record, as a claim that is being finished
// does; it says no when it is claimed.
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

// end lets Claim have what is waiting now.
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
	taken := map[store.Lane]bool{} // lanes of which something is perhaps gone
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

// findFirst finds the first record of a lane that may be claimed, after some were
// taken away that may have been it. When it cannot be read, next stays earlier
// than it could be, and Claim looks again. The caller holds mu.
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

// NewestNumber implements store.Changer.
func (s *Store) NewestNumber(context.Context) (uint64, error) {
	s.adding.Lock()
	defer s.adding.Unlock()
	return s.seq.Load(), nil
}

// Forget implements store.Changer.
func (s *Store) Forget(ctx context.Context, now time.Time) (int, error) {
	n, err := store.Forget(ctx, s, now)
	if err != nil {
		return n, err
	}
	return n, s.forgetQueues(ctx)
}

// smallEntries is how much of entries may be written when the disk is full.
const smallEntries = 4 << 10

// entry writes a value of the side table.
func (c *writeBatch) entry(e store.Entry) error {
	if e.Value == nil {
		return c.batch.Delete(entryKey(e.Name), nil)
	}
	return c.batch.Set(entryKey(e.Name), e.Value, nil)
}

// Entry implements store.Changer.
func (s *Store) Entry(ctx context.Context, name string) ([]byte, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.get(entryKey(name))
}

// Entries implements store.Changer.
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

// PutEntries implements store.Changer.
func (s *Store) PutEntries(ctx context.Context, entries []store.Entry) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	c := s.newWriteBatch(0)
	defer c.close()
	for _, e := range entries {
		if err := c.entry(e); err != nil {
			return err
		}
	}
	if n := c.batch.Len(); n > smallEntries {
		if err := s.checkSpace(n, s.reserve/4*3); err != nil {
			return err
		}
	}
	return c.commit()
}

// DeleteEntries implements store.Changer.
func (s *Store) DeleteEntries(ctx context.Context, prefix string) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	c := s.newWriteBatch(0)
	defer c.close()
	if err := c.batch.DeleteRange(entryKey(prefix), after(entryKey(prefix)), nil); err != nil {
		return err
	}
	return c.commit()
}

// forgetStep is how many queues are forgotten in one commit.
const forgetStep = 1000

// forgetQueues forgets queues that nothing is kept for, but for the EmptyLinesKept that
// something happened to last: what was counted of them moves to the line of OtherQueues,
// so that the ledger of the store balances as before. Counters are merged, so one that
// has a message just now is counted right all the same.
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

// emptyQueues are those that nothing is kept for, the one that was idle longest first.
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

// hasClaims tells whether something of the queue is claimed, or held by a Change.
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
			continue // something came for it since
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

// dropZeros deletes the counters that are 0 from now on: those of queues that were
// forgotten. It is for the opening, when nothing merges. (A merger that says so itself,
// pebble.DeletableValueMerger, panics in compactions of Pebble 2.1.7.)
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
