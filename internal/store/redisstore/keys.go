package redisstore

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// Keys, all behind {prefix}, which puts a store in one slot of a cluster:
//
//	:format           the version of what is here
//	:seq              the largest number of a record
//	:none             never exists: see lua/store.lua
//	:m:NUMBER         a record: see value
//	:w:LANE           sorted set: waiting and unclaimed; Due in µs → number
//	:c:LANE           the same of what waits and is claimed, or locked by a Change
//	:p: :d:QUEUE      the same of what is parked, discarded
//	:to:QUEUE         set of the lanes of its forward targets, see laneText
//	:g:p: :g:d:GROUP  sorted sets too: a group's parked, discarded
//	:wq :queues       sets of the lanes that have something waiting, of the queues that have anything
//	:lease :locks     sorted sets: until when (ms, Redis's clock) → number that is claimed, locked
//	:token            number → "token lane" of that claim or lock
//	:i:BUCKET         id → its numbers
//	:groups :groups:kept :groups:seen  group → what its members share; state and group → how many; group → when
//	:sums             column and queue → how many: the ledger
//	:past :past:BUCKET  stream of what ended; lists of ids and their places in it
//	:receipts:PROCESS list of the newest
//	:receipts:n       process → how many it has written
//	:receipts:by      sorted set: when it wrote its newest (ms, Redis's clock) → process
//	:added:PROCESS    position → token and last number of the batch it added last: see add.go
//	:t:TOKEN :undone:TOKEN  a Change that was done; one that must not be
//	:identity         which store this is, and its generation: see connect.go
//	:wrote            what is written where there is nothing to write: see lua/store.lua
//	:e :en            the side table: name → value, and the names in order
//	:replicas :replicas:about :leader:WHAT :terms  who is alive, and leads
func (s *Store) key(name string) string { return "{" + s.Prefix + "}:" + name }

// letters of states, in the keys.
const letters = "-wpd"

// place is a state's letter, and the lane or queue that a record is kept in.
func place(r *store.Record) string {
	if r.State == store.Waiting {
		return "w" + laneText(r.Lane())
	}
	return letters[r.State:r.State+1] + r.Queue
}

// longestQueue is how long a queue's name is at most.
const longestQueue = 255

// laneText is how a lane is named in keys. That of a work queue is the queue; that of a
// forward target is longer than any queue's name, so that none is taken for it.
func laneText(l store.Lane) string {
	if !l.Forwards() {
		return l.Queue
	}
	b := store.AppendTexts(nil, l.Queue, l.Forward.Exchange, l.Forward.RoutingKey)
	return string(append(b, make([]byte, max(0, longestQueue+1-len(b)))...))
}

// laneOf reads a laneText.
func laneOf(text string) (l store.Lane) {
	if len(text) <= longestQueue {
		return store.Lane{Queue: text}
	}
	_, _ = store.ReadTexts([]byte(text), &l.Queue, &l.Forward.Exchange,
		&l.Forward.RoutingKey) // what is damaged is no lane of anything
	return l
}

// member is how a number stands in sorted sets.
func member(number uint64) string { return fmt.Sprintf("%014d", number) }

// groupID is as it is in keys.
type groupID = errorgroup.ID

const groupSize = len(groupID{})

// value is a record as it is kept: the group it counts in, which is what its content
// was first judged to be, and itself.
func value(g groupID, r *store.Record) ([]byte, error) {
	b := append(make([]byte, 0, groupSize+512+len(r.Message.Body)), g[:]...)
	b, err := store.AppendRecord(b, r)
	if err != nil {
		return nil, fmt.Errorf("message %s of queue %q: %w", r.ID, r.Queue, err)
	}
	return b, nil
}

// micros is a Due as text.
func micros(r *store.Record) string { return itoa(r.Due.UnixMicro()) }

// number reads one; 0 when it is none.
func number(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// score reads a Due in µs as Redis writes it.
func score(text string) int64 {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	f, _ := strconv.ParseFloat(text, 64) // beyond 2⁵³, in the year 2255
	return int64(f)
}

// checkPrefix says what is wrong with one.
func checkPrefix(prefix string) error {
	if prefix == "" || strings.ContainsAny(prefix, "{} \t\r\n") {
		return fmt.Errorf("redis: the prefix %q is empty or has braces or spaces: expected a name such as redrive",
			prefix)
	}
	return nil
}

func idText(id [16]byte) string { return string(id[:]) }
