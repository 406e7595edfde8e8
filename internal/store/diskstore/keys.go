package diskstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// Keys, all in one Pebble database. Numbers are big endian, so that keys are ordered by
// queue, due time and arrival:
//
//	w len(queue) queue due seq   a waiting record that goes back to its queue
//	t len(queue) queue len(exchange) exchange len(key) key due seq
//	                             one that goes to a forward target
//	p len(queue) queue due seq   a parked record; due: when it was parked
//	d len(queue) queue due seq   a discarded record; due: until when it can be restored
//	i id seq                     the key of the record with that id
//	g group state due seq        the key of that parked or discarded record of the group
//	x name                       a value of the side table
//	c state queue                how many records: merged, never read to write
//	l column queue               the other columns of the ledger: merged, never read to write
//	o                            numbers less records when the store was opened: see loadLedger
//	m group                      what the members of a group share
//	k group                      its tally: merged, never read to write
//	R batch                      the receipts of one Add
//	s                            the next seq
//	n                            how many commits: merged, never read to write
//	f                            the format
const (
	prefixWaiting    = 'w'
	prefixForward    = 't'
	prefixParked     = 'p'
	prefixDiscarded  = 'd'
	prefixID         = 'i'
	prefixGroupIndex = 'g'
	prefixEntry      = 'x'
	prefixCount      = 'c'
	prefixLedger     = 'l'
	prefixGroupInfo  = 'm'
	prefixTally      = 'k'
	prefixReceipt    = 'R'
)

var (
	keySeq     = []byte("s")
	keyOpened  = []byte("o")
	keyFormat  = []byte("f")
	keyCommits = []byte("n")
)

// prefixes has the prefix of each state's records, except forwarded ones.
var prefixes = [...]byte{store.Waiting: prefixWaiting, store.Parked: prefixParked, store.Discarded: prefixDiscarded}

// stateOf returns the state of the records with a prefix; 0: it is no prefix of records.
func stateOf(prefix byte) store.State {
	if prefix == prefixForward {
		return store.Waiting
	}
	return store.State(max(0, bytes.IndexByte(prefixes[:], prefix)))
}

// queuePrefix is the prefix of a queue's records in a state. A queue's name has at most
// 255 bytes; its length comes first because it may contain any byte.
func queuePrefix(state store.State, queue string) []byte {
	k := make([]byte, 0, 2+len(queue)+16)
	return append(append(k, prefixes[state], byte(len(queue))), queue...)
}

func forwardPrefix(queue string) []byte {
	k := queuePrefix(store.Waiting, queue)
	k[0] = prefixForward
	return k
}

func lanePrefix(l store.Lane) []byte {
	if !l.Forwards() {
		return queuePrefix(store.Waiting, l.Queue)
	}
	return store.AppendTexts(forwardPrefix(l.Queue), l.Forward.Exchange, l.Forward.RoutingKey)
}

func keyOf(r *store.Record, seq uint64) []byte {
	if r.State == store.Waiting {
		return append(lanePrefix(r.Lane()), place(r.Due, seq)...)
	}
	return append(queuePrefix(r.State, r.Queue), place(r.Due, seq)...)
}

func isWaiting(key []byte) bool { return key[0] == prefixWaiting || key[0] == prefixForward }

func isRecord(key []byte) bool {
	return stateOf(key[0]) != 0 && len(key) >= 2+placeSize && len(key) >= 2+int(key[1])+placeSize
}

var recordPrefixes = []byte{prefixWaiting, prefixForward, prefixParked, prefixDiscarded}

func queueOf(key []byte) string { return string(key[2 : 2+int(key[1])]) }

func laneOf(key []byte) (l store.Lane) {
	l.Queue = queueOf(key)
	if key[0] == prefixForward {
		rest := key[2+len(l.Queue) : len(key)-placeSize]
		// A damaged key is in no lane.
		_, _ = store.ReadTexts(rest, &l.Forward.Exchange, &l.Forward.RoutingKey)
	}
	return l
}

// place orders records by due and arrival: the end of a record's key.
func place(due time.Time, seq uint64) []byte {
	p := binary.BigEndian.AppendUint64(make([]byte, 0, placeSize), orderedMicros(due))
	return binary.BigEndian.AppendUint64(p, seq)
}

const placeSize = 16

func placeOf(key []byte) []byte { return key[len(key)-placeSize:] }

// orderedMicros orders times before 1970, too.
func orderedMicros(t time.Time) uint64 { return uint64(t.UnixMicro()) ^ 1<<63 }

func dueOf(key []byte) time.Time {
	return time.UnixMicro(int64(binary.BigEndian.Uint64(placeOf(key)) ^ 1<<63))
}

func seqOf(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(key)-8:]) }

func idKey(id uuid.UUID, seq uint64) []byte {
	k := append(append(make([]byte, 0, 25), prefixID), id[:]...)
	return binary.BigEndian.AppendUint64(k, seq)
}

func idsAfter(id uuid.UUID) []byte { return after(append([]byte{prefixID}, id[:]...)) }

// indexOf returns the idKey of a record; nil for an invalid key.
func indexOf(key store.Key) []byte {
	id, seq, ok := key.Parts()
	if !ok {
		return nil
	}
	return idKey(id, seq)
}

func groupIndexPrefix(id errorgroup.ID, state store.State) []byte {
	k := append(make([]byte, 0, 2+len(id)+placeSize), prefixGroupIndex)
	return append(append(k, id[:]...), byte(state))
}

func groupIndexKey(id errorgroup.ID, state store.State, key []byte) []byte {
	return append(groupIndexPrefix(id, state), placeOf(key)...)
}

func groupInfoKey(id errorgroup.ID) []byte { return append([]byte{prefixGroupInfo}, id[:]...) }

func tallyKey(id errorgroup.ID) []byte { return append([]byte{prefixTally}, id[:]...) }

func entryKey(name string) []byte { return append([]byte{prefixEntry}, name...) }

func sumKey(as store.Column, queue string) []byte {
	prefix := byte(prefixLedger)
	if as.Kept() {
		prefix = prefixCount
	}
	return append([]byte{prefix, byte(as)}, queue...)
}

func receiptKey(batch uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixReceipt}, batch)
}

func after(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// adder adds up counters: writers merge differences, so that concurrent batches need not read each other, and opening
// needs no scan. Its name is in each folder.
var adder = &pebble.Merger{
	Name: "redrive.sum.v1",
	Merge: func(key, value []byte) (pebble.ValueMerger, error) {
		var m pebble.ValueMerger = new(sum)
		if key[0] == prefixTally {
			m = new(tally)
		}
		return m, m.MergeNewer(value)
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

type tally struct{ store.Tally }

func (t *tally) MergeNewer(v []byte) error { return t.AddFrom(v) }
func (t *tally) MergeOlder(v []byte) error { return t.AddFrom(v) }

func (t *tally) Finish(bool) ([]byte, io.Closer, error) { return t.Append(nil), nil, nil }
