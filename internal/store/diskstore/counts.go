package diskstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// loadQueues reads what was counted, and when the first waiting record of each lane is due.
func (s *Store) loadQueues() error {
	err := eachSum(s.db, func(as store.Column, queue string, n int64) {
		if n != 0 {
			s.queue(queue).kept[as] += n
		}
	})
	if err != nil {
		return err
	}
	var starts []start
	for name, q := range s.queues {
		if q.kept[store.Waiting] == 0 {
			continue
		}
		starts = append(starts, start{lane: store.Lane{Queue: name}, low: q.low})
	}
	targets, someLeftOut, err := s.forwards(s.db, []byte{prefixForward})
	if err != nil {
		return err
	}
	if someLeftOut {
		s.targetsAgain = time.Now().Add(eioKept)
	}
	for _, l := range targets {
		starts = append(starts, start{lane: l, low: lanePrefix(l)})
	}
	leftOut, err := s.firsts(starts, func(at start, key, _ []byte) error {
		l := s.lane(at.lane)
		l.low, l.next = bytes.Clone(key), dueOf(key)
		return nil
	})
	for _, at := range starts {
		if leftOut { // of one of them: it may be read later
			s.lane(at.lane).leftOut()
		}
	}
	return err
}

// forwards are the lanes of forward targets that have something, among the keys with a
// prefix. leftOut tells that something could not be read.
func (s *Store) forwards(db pebble.Reader, prefix []byte) (all []store.Lane, leftOut bool, err error) {
	it, err := s.walkNoting(db, prefix, after(prefix), func() { leftOut = true })
	if err != nil {
		return nil, false, err
	}
	for more := it.First(); more; {
		key := it.Key()
		all = append(all, laneOf(key))
		more = it.SeekGE(after(key[:len(key)-placeSize]))
	}
	return all, leftOut, errors.Join(it.Error(), it.Close())
}

// lookForTargets finds the lanes of forward targets that could not be read when the store
// was opened, once the disk may read them. The caller holds mu.
func (s *Store) lookForTargets() error {
	now := time.Now()
	if s.targetsAgain.IsZero() || now.Before(s.targetsAgain) {
		return nil
	}
	targets, _, err := s.forwards(s.db, []byte{prefixForward})
	if err == nil {
		s.targetsAgain = time.Time{}
	}
	for _, l := range targets {
		if q := s.queue(l.Queue); q.forwards[l.Forward] == nil {
			s.lane(l).again = now // a claim finds what it has
		}
	}
	return err
}

// start is from where to look for the first waiting record of a lane.
type start struct {
	lane store.Lane
	low  []byte
	at   int
}

// firsts visits the first record of each start, with one iterator for all: there may be
// many thousand queues. leftOut tells that something could not be read.
func (s *Store) firsts(starts []start, visit func(at start, key, value []byte) error) (leftOut bool, err error) {
	slices.SortFunc(starts, func(a, b start) int { return bytes.Compare(a.low, b.low) })
	it, err := s.walkNoting(s.db, []byte{prefixForward}, []byte{prefixWaiting + 1}, func() { leftOut = true })
	if err != nil {
		return false, err
	}
	for _, at := range starts {
		if !it.SeekGE(at.low) {
			if it.Error() != nil {
				break
			}
			continue
		}
		if !bytes.HasPrefix(it.Key(), lanePrefix(at.lane)) {
			continue
		}
		value, err := it.ValueAndErr() // nil where it cannot be read
		if err = s.damage.unreadable(it.Key(), err); err == nil {
			err = visit(at, it.Key(), value)
		}
		if err != nil {
			return leftOut, errors.Join(err, it.Close())
		}
	}
	return leftOut, errors.Join(it.Error(), it.Close())
}

// Counts implements store.Store.
func (s *Store) Counts(ctx context.Context) ([]store.QueueCount, error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var counts []store.QueueCount
	var starts []start
	s.mu.Lock()
	for name, q := range s.queues {
		if q.kept[store.Waiting]|q.kept[store.Parked]|q.kept[store.Discarded] == 0 {
			continue
		}
		if q.kept[store.Waiting] > 0 {
			q.lanes(name, func(at store.Lane, l *lane) { // claimed ones count as waiting still
				starts = append(starts, start{lane: at, low: l.lowest(), at: len(counts)})
			})
		}
		counts = append(counts, store.QueueCount{Queue: name, Waiting: q.kept[store.Waiting], Parked: q.kept[store.Parked], Discarded: q.kept[store.Discarded]})
	}
	s.mu.Unlock()
	first := make([][]byte, len(counts)) // places
	_, err = s.firsts(starts, func(at start, key, value []byte) error {
		c, place := &counts[at.at], placeOf(key)
		if was := first[at.at]; was != nil && bytes.Compare(was, place) <= 0 {
			return nil
		}
		first[at.at], c.NextDue = bytes.Clone(place), dueOf(key)
		if r, _, err := store.DecodeRecord(value, false); err == nil {
			c.NextFailed = r.FailedAt
		}
		return nil
	})
	return counts, err
}

// tally is what is counted of a group, or how much a batch adds to that: tallies
// are merged, never read to be written.
type tally struct {
	kept        [store.Discarded + 1]int64
	first, last int64 // minutes since 1970 of failures; 0 when there was none
	hours       hours
	reasons     store.Reasons
}

// hours are failures in each of 24 hours, up to the newest; n is indexed by the
// hour modulo 24.
type hours struct {
	newest int64
	n      [24]int64
}

func (h *hours) add(hour, n int64) {
	if n == 0 || hour <= h.newest-24 {
		return
	}
	for ; h.newest < hour; h.newest++ {
		if h.newest < hour-24 {
			h.newest = hour - 24
		}
		h.n[(h.newest+1)%24] = 0
	}
	h.n[hour%24] += n
}

// upTo are the failures in the 24 hours that end with the hour now.
func (h *hours) upTo(now int64) (n [24]int64) {
	for i := range n {
		if hour := now - 23 + int64(i); hour <= h.newest && hour > h.newest-24 {
			n[i] = h.n[hour%24]
		}
	}
	return n
}

func (t *tally) add(o *tally) {
	for state, n := range o.kept {
		t.kept[state] += n
	}
	t.seen(o.first)
	t.seen(o.last)
	t.reasons |= o.reasons
	for i, n := range o.hours.n {
		hour := o.hours.newest - (o.hours.newest-int64(i)+24)%24
		t.hours.add(hour, n)
	}
}

func (t *tally) seen(minute int64) {
	if minute != 0 && (t.first == 0 || minute < t.first) {
		t.first = minute
	}
	if minute != 0 && (t.last == 0 || minute > t.last) {
		t.last = minute
	}
}

// nothing tells whether adding it changes nothing.
func (t *tally) nothing() bool { return !t.any() && t.last == 0 && t.reasons == 0 }

// any tells whether something is kept.
func (t *tally) any() bool { return t.kept != [len(t.kept)]int64{} }

func (t *tally) append(b []byte) []byte {
	for _, n := range t.kept[1:] {
		b = binary.AppendVarint(b, n)
	}
	b = binary.AppendVarint(b, t.first)
	b = binary.AppendVarint(b, t.last)
	if t.reasons != 0 { // in the place of an hour that is none
		b = binary.AppendUvarint(append(b, 0), uint64(t.reasons))
	}
	for hour := t.hours.newest; hour > t.hours.newest-24 && hour > 0; hour-- {
		if n := t.hours.n[hour%24]; n != 0 {
			b = binary.AppendUvarint(b, uint64(hour))
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return b
}

var errTally = errors.New("the counts of a group are damaged")

// addFrom adds what append wrote.
func (t *tally) addFrom(b []byte) error {
	d := store.Decode(b)
	for state := range t.kept[1:] {
		t.kept[state+1] += d.Varint()
	}
	t.seen(d.Varint())
	t.seen(d.Varint())
	for d.More() {
		hour, n := d.Uvarint(), d.Uvarint()
		switch {
		case d.Torn() || hour > 1<<40:
			return errTally
		case hour == 0:
			t.reasons |= store.Reasons(n)
		default:
			t.hours.add(int64(hour), int64(n))
		}
	}
	if d.Torn() {
		return errTally
	}
	return nil
}

func (t *tally) MergeNewer(v []byte) error { return t.addFrom(v) }
func (t *tally) MergeOlder(v []byte) error { return t.addFrom(v) }

func (t *tally) Finish(bool) ([]byte, io.Closer, error) { return t.append(nil), nil, nil }
