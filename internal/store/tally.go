package store

import (
	"encoding/binary"
	"errors"
	"iter"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
)

// Tally counts the messages of a group, or what a change adds to them.
type Tally struct {
	Kept        [Discarded + 1]int64
	First, Last int64 // failures, in seconds since 1970; 0 when there was none
	Hours       Hours
	Reasons     Reasons
}

// Hours counts failures in each of the 24 hours up to the newest; n is indexed by the hour modulo 24.
type Hours struct {
	newest int64
	n      [24]int64
}

// Add counts n failures in an hour since 1970.
func (h *Hours) Add(hour, n int64) {
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

// All iterates over the hours with failures, the newest first.
func (h *Hours) All() iter.Seq2[int64, int64] {
	return func(yield func(hour, n int64) bool) {
		for hour := h.newest; hour > h.newest-24 && hour > 0; hour-- {
			if n := h.n[hour%24]; n != 0 && !yield(hour, n) {
				return
			}
		}
	}
}

func (t *Tally) Add(o *Tally) {
	for state, n := range o.Kept {
		t.Kept[state] += n
	}
	t.Seen(o.First)
	t.Seen(o.Last)
	t.Reasons |= o.Reasons
	for hour, n := range o.Hours.All() {
		t.Hours.Add(hour, n)
	}
}

// Seen extends First to Last by a second; 0 is none.
func (t *Tally) Seen(second int64) {
	if second < 1e9 { // in minutes, as stores kept them at first
		second *= 60
	}
	if second != 0 && (t.First == 0 || second < t.First) {
		t.First = second
	}
	if second != 0 && (t.Last == 0 || second > t.Last) {
		t.Last = second
	}
}

func (t *Tally) Failed(at, now time.Time) {
	if at.After(now) { // a wrong clock
		at = now
	}
	if at.Unix() <= 0 {
		return // unknown
	}
	t.Seen(at.Unix())
	t.Hours.Add(at.Unix()/3600, 1)
}

func (t *Tally) Any() bool { return t.Kept != [len(t.Kept)]int64{} }

// Listed reports whether Groups lists the group: a message is kept, or one failed within a day.
func (t *Tally) Listed(now time.Time) bool { return t.Any() || t.Last > ADayBefore(now) }

func ADayBefore(now time.Time) int64 { return now.Unix() - 24*60*60 }

func (t *Tally) Count(g errorgroup.Group, note string, now time.Time) GroupCount {
	c := GroupCount{Group: g, Note: note, Waiting: t.Kept[Waiting], Parked: t.Kept[Parked],
		Discarded: t.Kept[Discarded], First: second(t.First), Last: second(t.Last), Reasons: t.Reasons}
	for hour, n := range t.Hours.All() {
		if at := 23 - (now.Unix()/3600 - hour); at >= 0 && at < 24 {
			c.Hours[at] = n
		}
	}
	return c
}

// second converts seconds since 1970 to a time; 0 to the zero time.
func second(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(n, 0)
}

func (t *Tally) Append(b []byte) []byte {
	for _, n := range t.Kept[1:] {
		b = binary.AppendVarint(b, n)
	}
	b = binary.AppendVarint(b, t.First)
	b = binary.AppendVarint(b, t.Last)
	if t.Reasons != 0 { // as hour 0
		b = binary.AppendUvarint(append(b, 0), uint64(t.Reasons))
	}
	for hour, n := range t.Hours.All() {
		b = binary.AppendUvarint(b, uint64(hour))
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

func (t *Tally) AddFrom(b []byte) error {
	d := Decode(b)
	for state := range t.Kept[1:] {
		t.Kept[state+1] += d.Varint()
	}
	t.Seen(d.Varint())
	t.Seen(d.Varint())
	for d.More() {
		hour, n := d.Uvarint(), d.Uvarint()
		switch {
		case hour > 1<<40:
			d.take(-1)
		case hour == 0:
			t.Reasons |= Reasons(n)
		default:
			t.Hours.Add(int64(hour), int64(n))
		}
	}
	if d.torn {
		return errors.New("the counts of a group are damaged")
	}
	return nil
}
