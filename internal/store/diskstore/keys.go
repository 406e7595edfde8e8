package diskstore

import (
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Keys, all in one Pebble database. Numbers are big endian, so that the order of
// keys is the order of queues, due times and arrival:
//
//	w len(queue) queue due seq   a waiting record
//	p len(queue) queue due seq   a parked record, due being when it was parked
//	i id seq                     the key of the record with that id
//	c state queue                how many records: merged, never read to write
//	r batch                      the receipts of one Add
//	s                            the next seq
//	f                            the format
const (
	prefixWaiting = 'w'
	prefixParked  = 'p'
	prefixID      = 'i'
	prefixCount   = 'c'
	prefixReceipt = 'r'
)

var (
	keySeq    = []byte("s")
	keyFormat = []byte("f")
)

const formatVersion = 1

func prefixOf(state store.State) byte {
	if state == store.Parked {
		return prefixParked
	}
	return prefixWaiting
}

// queuePrefix leads all records of a queue in a state. A queue's name has at
// most 255 bytes; its length comes first because it may hold any of them.
func queuePrefix(state store.State, queue string) []byte {
	k := make([]byte, 0, 2+len(queue)+16)
	return append(append(k, prefixOf(state), byte(len(queue))), queue...)
}

func recordKey(state store.State, queue string, due time.Time, seq uint64) []byte {
	k := binary.BigEndian.AppendUint64(queuePrefix(state, queue), orderedMicros(due))
	return binary.BigEndian.AppendUint64(k, seq)
}

// orderedMicros keeps times before 1970 in order too.
func orderedMicros(t time.Time) uint64 { return uint64(t.UnixMicro()) ^ 1<<63 }

func dueOf(key []byte) time.Time {
	return time.UnixMicro(int64(binary.BigEndian.Uint64(key[len(key)-16:]) ^ 1<<63))
}

func seqOf(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(key)-8:]) }

func idKey(id uuid.UUID, seq uint64) []byte {
	k := append(append(make([]byte, 0, 25), prefixID), id[:]...)
	return binary.BigEndian.AppendUint64(k, seq)
}

func countKey(state store.State, queue string) []byte {
	return append([]byte{prefixCount, byte(state)}, queue...)
}

func receiptKey(batch uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixReceipt}, batch)
}

// after is the first key that does not begin with prefix.
func after(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// adder makes counters sums: writers only say how much more or less, so that
// concurrent batches need not read each other, and opening needs no scan.
var adder = &pebble.Merger{
	Name: "redrive.sum.v1",
	Merge: func(_, value []byte) (pebble.ValueMerger, error) {
		s := new(sum)
		return s, s.MergeNewer(value)
	},
}

type sum int64

func (s *sum) MergeNewer(v []byte) error {
	n, size := binary.Varint(v)
	if size <= 0 {
		return errors.New("a counter is damaged")
	}
	*s += sum(n)
	return nil
}

func (s *sum) MergeOlder(v []byte) error { return s.MergeNewer(v) }

func (s *sum) Finish(bool) ([]byte, io.Closer, error) {
	return binary.AppendVarint(nil, int64(*s)), nil, nil
}
