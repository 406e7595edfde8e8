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
//	:format           the format's version
//	:seq              the largest number of a record
//	:none             never exists: see lua/store.lua
//	:m:NUMBER         a record: see value
//	:w:LANE           sorted set: waiting and unclaimed; Due in µs → number
//	:c:LANE           the same for waiting records that are claimed, or locked by a Change
//	:p: :d:QUEUE      the same for parked, discarded records
//	:to:QUEUE         set of the lanes of its forward targets, see laneText
//	:g:p: :g:d:GROUP  the same for a group's parked, discarded records
//	:wq :queues       sets of the lanes with waiting records, of the queues with any record
//	:lease :locks     sorted sets: until when (ms, Redis's clock) → number that is claimed, locked
//	:token            number → "token lane" of that claim or lock
//	:i:BUCKET         id → its numbers
//	:groups :groups:kept :groups:seen  group → what its members share; state and group → how many; group → when
//	:sums             column and queue → how many: the ledger
//	:past :past:BUCKET  stream of past failures; lists of ids and their places in it
//	:receipts:PROCESS list of the newest
//	:receipts:n       process → how many it has written
//	:receipts:by      sorted set: when it wrote its newest (ms, Redis's clock) → process
//	:added:PROCESS    position → token and last number of the batch it added last: see add.go
//	:t:TOKEN :undone:TOKEN  a Change that was done; one that is forbidden
//	:identity         which store this is, and its generation: see connect.go
//	:wrote            written when there is nothing else to write: see lua/store.lua
//	:e :en            the side table: name → value, and the names in order
//	:replicas :replicas:about :leader:WHAT :terms  who is alive, and leads
func (s *Store) key(name string) string { return "{" + s.Prefix + "}:" + name }

const letters = "-wpd"

func place(r *store.Record) string {
	if r.State == store.Waiting {
		return "w" + laneText(r.Lane())
	}
	return letters[r.State:r.State+1] + r.Queue
}

const maxQueueName = 255

// laneText names a lane in keys: a work queue's by the queue; a forward target's by a text
// longer than any queue's name, so that they cannot collide.
func laneText(l store.Lane) string {
	if !l.Forwards() {
		return l.Queue
	}
	b := store.AppendTexts(nil, l.Queue, l.Forward.Exchange, l.Forward.RoutingKey)
	return string(append(b, make([]byte, max(0, maxQueueName+1-len(b)))...))
}

func laneOf(text string) (l store.Lane) {
	if len(text) <= maxQueueName {
		return store.Lane{Queue: text}
	}
	// A damaged text names no lane.
	_, _ = store.ReadTexts([]byte(text), &l.Queue, &l.Forward.Exchange, &l.Forward.RoutingKey)
	return l
}

func member(number uint64) string { return fmt.Sprintf("%014d", number) }

type groupID = errorgroup.ID

const groupSize = len(groupID{})

// value returns a record as it is stored: after the group that it was first counted in.
func value(g groupID, r *store.Record) ([]byte, error) {
	b := append(make([]byte, 0, groupSize+512+len(r.Message.Body)), g[:]...)
	b, err := store.AppendRecord(b, r)
	if err != nil {
		return nil, fmt.Errorf("message %s of queue %q: %w", r.ID, r.Queue, err)
	}
	return b, nil
}

func micros(r *store.Record) string { return itoa(r.Due.UnixMicro()) }

// number parses a number; 0 when text is none.
func number(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// score parses a Due in µs as Redis writes it.
func score(text string) int64 {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	f, _ := strconv.ParseFloat(text, 64) // beyond 2⁵³, in the year 2255
	return int64(f)
}

func checkPrefix(prefix string) error {
	if prefix == "" || strings.ContainsAny(prefix, "{} \t\r\n") {
		return fmt.Errorf("redis: the prefix %q is empty or has braces or spaces: expected a name such as redrive",
			prefix)
	}
	return nil
}

func idText(id [16]byte) string { return string(id[:]) }
