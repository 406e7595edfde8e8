package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// Bookkeeper accounts for every message since the ledger began: when the store was made or, on
// a disk that has lost a part of the counts, when the store was opened after that.
type Bookkeeper interface {
	// Ledger returns what was counted, a line for each queue, ordered by name. Messages are
	// counted in the same step as their record is written, so each line balances at every
	// moment, also after a crash.
	Ledger(ctx context.Context) ([]LedgerLine, error)

	// Recount returns the Ledger of one moment, with the records that are kept counted again,
	// one by one. A line that does not balance shows a message lost, or one too many. It reads
	// all keys, which takes long.
	Recount(ctx context.Context) ([]LedgerLine, error)

	// CountUnstored counts n messages that arrived for queue and were never stored: they are In,
	// and out as Delayed or DiscardedAtOnce. It is durable with the next change; a crash
	// may forget it, on both sides at once.
	CountUnstored(queue string, as Column, n int64)
}

// Column is one of a ledger's: In, or what became of a message. Their numbers are on disk.
type Column uint8

// Columns. 1 to 3 are the numbers of State (record.go), of what is kept. Discarded messages can be
// restored for a while and are Forgotten then; what a policy discards is DiscardedAtOnce, and
// called "dropped" on the outside.
const (
	In              Column = 0
	Retried         Column = 4 // RabbitMQ confirmed it in its work queue
	Forwarded       Column = 5 // RabbitMQ confirmed it where its policy, or a person, sent it
	Forgotten       Column = 6 // discarded for good
	Moved           Column = 7 // another queue's now, and counted in In there: no action does that yet
	Delayed         Column = 8 // it waits in RabbitMQ
	DiscardedAtOnce Column = 9 // its policy discarded it at once
	// EverParked counts messages that were parked when they failed, or instead of a retry, whatever became of
	// them. It only grows, and is no part of the balance.
	EverParked Column = 10
	columns    Column = 11
)

// Flows are the columns of the balance that only grow: all but what is kept.
var Flows = [...]Column{In, Retried, Forwarded, Forgotten, Moved, Delayed, DiscardedAtOnce}

// columnNames are for metrics and people.
var columnNames = [columns]string{In: "in", Column(Waiting): "waiting", Column(Parked): "parked", Column(Discarded): "discarded",
	Retried: "retried", Forwarded: "forwarded", Forgotten: "forgotten", Moved: "moved", Delayed: "delayed", DiscardedAtOnce: "dropped", EverParked: "ever parked"}

// Kept tells whether the column is of what is kept: its number is that of a state.
func (c Column) Kept() bool { return c != In && c <= Column(Discarded) }

func (c Column) String() string {
	if int(c) < len(columnNames) {
		return columnNames[c]
	}
	return fmt.Sprintf("column %d", uint8(c))
}

// Sums is how many messages a ledger has in each column.
type Sums [columns]int64

// Off is how many more messages arrived than are accounted for; negative: fewer. 0 is right.
func (s *Sums) Off() int64 {
	off := s[In]
	for _, n := range s[In+1 : EverParked] {
		off -= n
	}
	return off
}

// Add adds o.
func (s *Sums) Add(o *Sums) {
	for as, n := range o {
		s[as] += n
	}
}

// Kept is how many are kept, in whatever state.
func (s *Sums) Kept() int64 { return s[Waiting] + s[Parked] + s[Discarded] }

// Records is how many records were ever added.
func (s *Sums) Records() int64 { return s[In] - s[Moved] - s[Delayed] - s[DiscardedAtOnce] }

// LedgerLine counts the messages of one queue by what became of them.
type LedgerLine struct {
	Queue string
	Sums
}

// EmptyLinesKept is how many queues that nothing is kept for have a line of their own in the
// ledger. Beyond it those that nothing happened to for longest are added to the line of
// OtherQueues: invented names must not use memory for ever.
const EmptyLinesKept = 1000

// OtherQueues is the line in the ledger of queues that were forgotten.
const OtherQueues = "(other)"

// Lines returns a ledger's lines in order, without those of queues for which nothing arrived.
func Lines(by map[string]*Sums) []LedgerLine {
	lines := make([]LedgerLine, 0, len(by))
	for queue, sums := range by {
		if *sums != (Sums{}) {
			lines = append(lines, LedgerLine{queue, *sums})
		}
	}
	slices.SortFunc(lines, func(a, b LedgerLine) int { return cmp.Compare(a.Queue, b.Queue) })
	return lines
}
