package diskstore

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/redrive-mq/redrive/internal/store"
)

// tally is what is counted of a group, or how much a batch adds to that: tallies
// are merged, never read to be written.
type tally struct {
	kept        [store.Discarded + 1]int64
	first, last int64 // seconds since 1970 of failures; 0 when there was none
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

func (t *tally) seen(second int64) {
	second = store.Seconds(second)
	if second != 0 && (t.first == 0 || second < t.first) {
		t.first = second
	}
	if second != 0 && (t.last == 0 || second > t.last) {
		t.last = second
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
