// Package store is the contract of stores, which keep waiting and parked messages. Every engine passes package
// storetest. Read it in this order:
//
//	store.go   add, claim, finish, for intake and scheduler; what replicas share; the ledger
//	record.go  a failed message and what Redrive knows of it; its key and its lane
//	change.go  people's actions: records and the side table, in one step
//	scan.go    searches of records, groups and past failures
//	tally.go   the counts of a group, its failures by hour
//	carried.go what a message's next failure learns of people's actions
//	codec.go   a record as bytes
//
// A store knows no policies and no broker, and callers pass the time: its only clock is that of leases and terms.
package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
)

var (
	// ErrFull: there is no room for the batch beside the reserve. None of the batch was
	// stored. Add works again when there is room.
	ErrFull   = hint.New("full", "the store is full")
	ErrLocked = errors.New("the data folder is in use by another process")
	// ErrSnapshotFolder: a snapshot cannot be written to that folder.
	ErrSnapshotFolder = errors.New("it cannot be written there")
	// ErrFormat: the data was written by a version this one cannot read.
	ErrFormat = errors.New("it has a format this version cannot read")
	ErrClosed = hint.New("stopping", "the store is closed")
	// ErrOwner: the store belongs to another virtual host, whose name follows in the error's text; see OwnerEntry.
	ErrOwner = errors.New("keeps the messages of the virtual host")
	// ErrUnreadable: the record is in a damaged part of the store.
	ErrUnreadable = errors.New("it cannot be read: the store is damaged there")
	ErrNotFound   = hint.New("not_found", "no such message")
)

// ReceiptsKept is how many of its newest receipts a store keeps for each process. It
// must be at least the number of unacknowledged deliveries of a process's intakes.
//
// Receipts are kept for each process because RabbitMQ redelivers exactly what an ended process
// had stored last and not acknowledged. What other processes have stored since must not remove
// those receipts, however late the redelivery.
const ReceiptsKept = 8192

// A shared store forgets the receipts of a process that has written none for ReceiptsAge when ReceiptsOwners others
// have written since. RabbitMQ redelivers what a vanished process had not acknowledged within 31 s (measured). The
// receipts of a process take about 0.5 MB, in the store and in each process that reads them.
const (
	ReceiptsAge    = 10 * time.Minute
	ReceiptsOwners = 4
)

// Store keeps records. Its methods are safe for concurrent use, and remain usable after an
// error.
type Store interface {
	// Add stores records, all or none. When it returns nil they survive a crash
	// of the process and a power cut. It is not idempotent: records added twice are
	// stored twice. When the context is cancelled they may or may not be stored.
	// It returns ErrFull when there is no room.
	Add(ctx context.Context, records []*Record) error

	// Claim claims waiting records of one lane with Due ≤ upTo, earliest first: at most n, with at most maxBytes of
	// bodies (but always one). A claimed record is not claimed again until it is released, or its owner stops (disk:
	// the process ends; a shared engine: the lease ends).
	Claim(ctx context.Context, lane Lane, upTo time.Time, n, maxBytes int) ([]Claim, error)

	// Finish applies outcomes, each in one atomic step, and returns how many it
	// applied. When it returns nil they survive a crash. A claim whose lease has
	// ended is skipped and not counted.
	Finish(ctx context.Context, outcomes []Outcome) (int, error)

	// Release ends claims; their records are unchanged and can be claimed again.
	Release(ctx context.Context, claims []Claim) error

	// Next returns, for each lane with waiting records that are not claimed, when
	// the earliest of them is due, in any order.
	Next(ctx context.Context) ([]NextDue, error)

	// Changed returns a channel that receives a value when a record may be due earlier than
	// the last Next returned. Several changes may send one value.
	Changed() <-chan struct{}

	// Counts returns how many records each queue has in each state, claimed ones
	// included, and which waiting record of all its lanes is due first.
	Counts(ctx context.Context) ([]QueueCount, error)

	Searcher
	Changer
	Bookkeeper

	// Remember stores receipts of messages that wait in RabbitMQ. When it returns nil they
	// survive a crash. It returns ErrFull when there is no room.
	Remember(ctx context.Context, receipts []Receipt) error

	// Receipts returns the newest ReceiptsKept receipts of each process, oldest first.
	Receipts(ctx context.Context) ([]Receipt, error)

	// Close waits for running calls, then frees all resources.
	Close() error
}

type Claim struct {
	Key    Key
	Token  string
	Record *Record
}

type Outcome struct {
	Claim Claim
	// Park, when not empty, parks the record with that reason; otherwise the record is deleted, and its PastFailure is
	// stored.
	Park string
	At   time.Time // when it ended
}

type NextDue struct {
	Lane
	Due time.Time
}

type QueueCount struct {
	Queue                      string
	Waiting, Parked, Discarded int64

	// NextDue is the earliest Due of the waiting records, and NextFailed when that record failed. They are zero when
	// none waits, and when the record is damaged or ended while it was counted.
	NextDue    time.Time
	NextFailed time.Time
}

// Listed is a record in a listing, with the size of its body even without the body.
type Listed struct {
	Key Key
	// Cursor is its place in a Scan, for Range.After.
	Cursor   string
	Record   *Record
	BodySize int
}

func (l *Listed) Number() (uint64, error) {
	id, n, ok := l.Key.Parts()
	if !ok || id != l.Record.ID {
		return 0, fmt.Errorf("message %s of queue %q cannot be kept under the key %q", l.Record.ID,
			l.Record.Queue, l.Key)
	}
	return n, l.Record.Validate()
}

// Damageable is a store that keeps working when a part of it cannot be read.
type Damageable interface {
	// Damage returns the parts that could not be read since the store was opened, with their errors.
	Damage() map[string]string
}

// Snapshotter is a store that can be copied while in use.
type Snapshotter interface {
	// Snapshot copies the store of one moment to a folder that is absent or empty, where it can be opened, and returns
	// how many messages it has.
	Snapshot(ctx context.Context, folder string) (messages int64, err error)
}

// OpenCalls counts the running calls of a store, for which its Close waits. The zero value is ready for use.
type OpenCalls struct {
	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// Begin keeps the store open until done is called. After Close it returns ErrClosed.
func (c *OpenCalls) Begin(ctx context.Context) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	c.calls.Add(1)
	return c.calls.Done, nil
}

// Close refuses further calls and waits for running ones. Only the first Close returns
// true; only then is there something to close.
func (c *OpenCalls) Close() (first bool) {
	c.mu.Lock()
	first, c.closed = !c.closed, true
	c.mu.Unlock()
	if first {
		c.calls.Wait()
	}
	return first
}

// ErrDeposed is returned for a write by a former leader.
var ErrDeposed = errors.New("another replica leads by now")

// Shared is a store that several services share as replicas of one service. Of what it adds to Store, only the numbers
// of terms are durable.
type Shared interface {
	Store

	// Beat records that a replica is alive until ttl from now, by the store's clock, and its description of itself. It
	// returns all replicas alive, this one included, ordered by id.
	Beat(ctx context.Context, replica string, about []byte, ttl time.Duration) ([]Replica, error)
	// Leave counts a replica as stopped at once.
	Leave(ctx context.Context, replica string) error

	// Lead makes replica the leader of what until ttl from now, unless another leads; then leads is false. term grows
	// with each new leader, so that writes of a former one can be refused. When leads is true, no replica ever gets
	// this term again, as durably as records are kept; all earlier changes are in the side table; and no Change of an
	// earlier term locks anything. DeleteEntries(what) ends and forgets the terms of what.
	Lead(ctx context.Context, what, replica string, ttl time.Duration) (term uint64, leads bool, err error)
	// Resign lets another replica lead at once. It does nothing when replica does not lead.
	Resign(ctx context.Context, what, replica string) error

	// Send sends a message to all replicas that listen to a topic now, and keeps it for no
	// other.
	Send(ctx context.Context, topic string, message []byte) error
	// Listen receives messages, in the order of each sender, until ctx ends. It returns an error earlier when it may
	// have missed one.
	Listen(ctx context.Context, topic string, receive func(message []byte)) error
}

// ReceiptReader is a Shared store that can read new receipts alone.
type ReceiptReader interface {
	// NewReceipts returns the receipts that other processes have written since at was
	// returned, each with its process; all for the zero At.
	NewReceipts(ctx context.Context, at ReceiptsAt) ([]Receipt, ReceiptsAt, error)
}

// ReceiptsAt is the engine's position in the receipts of each process.
type ReceiptsAt map[string]string

// Replica is a service that is alive.
type Replica struct {
	ID    string
	About []byte
}

// WithTerm returns a context for a leader's work. With it, PutEntries, DeleteEntries and Change of a Shared store
// return ErrDeposed unless that term of what still runs: a leader that was suspended, and does not know yet that
// another leads, changes nothing.
func WithTerm(ctx context.Context, what string, term uint64) context.Context {
	return context.WithValue(ctx, termKey{}, leaderTerm{what, term})
}

func TermOf(ctx context.Context) (what string, term uint64, ok bool) {
	t, ok := ctx.Value(termKey{}).(leaderTerm)
	return t.what, t.term, ok
}

type termKey struct{}

type leaderTerm struct {
	what string
	term uint64
}

// Bookkeeper accounts for every message since the ledger began: when the store was made or, after a disk lost a part of
// the counts, when the store was next opened.
type Bookkeeper interface {
	// Ledger returns a line for each queue, ordered by name. A message is counted in the step that writes its record,
	// so each line balances at every moment, also after a crash.
	Ledger(ctx context.Context) ([]LedgerLine, error)

	// Recount returns the Ledger of one moment with the kept records counted one by one. A line
	// that does not balance shows a message lost, or one too many. It reads all keys, which
	// takes long.
	Recount(ctx context.Context) ([]LedgerLine, error)

	// CountUnstored counts n messages that arrived for queue and were never stored, as In and as Delayed or
	// DiscardedAtOnce. It is durable with the next change; a crash may lose both counts together.
	CountUnstored(queue string, as Column, n int64)
}

// Column is a column of the ledger: In, or what became of a message. The numbers are on disk.
type Column uint8

// Columns. 1 to 3 are the numbers of State, for kept messages. A Discarded message can be restored
// for a while and is Forgotten then; one that a policy discards is DiscardedAtOnce, which users see
// as "dropped".
const (
	In              Column = 0
	Retried         Column = 4 // RabbitMQ confirmed it in its work queue
	Forwarded       Column = 5 // RabbitMQ confirmed it where its policy, or a person, sent it
	Forgotten       Column = 6 // discarded for good
	Moved           Column = 7 // moved to another queue, and In there: no action does that yet
	Delayed         Column = 8 // it waits in RabbitMQ
	DiscardedAtOnce Column = 9 // its policy discarded it at once
	// EverParked counts messages that were parked when they failed or instead of a retry. It only grows, and is no part
	// of the balance.
	EverParked Column = 10
	// EverParkedUrgent and EverParkedQuietly count the same for messages with Notify Urgent or Never.
	EverParkedUrgent  Column = 11
	EverParkedQuietly Column = 12
	columns           Column = 13
)

// Flows are the columns of the balance that only grow: all but what is kept.
var Flows = [...]Column{In, Retried, Forwarded, Forgotten, Moved, Delayed, DiscardedAtOnce}

var columnNames = [columns]string{In: "in", Column(Waiting): "waiting", Column(Parked): "parked",
	Column(Discarded): "discarded",
	Retried:           "retried", Forwarded: "forwarded", Forgotten: "forgotten", Moved: "moved", Delayed: "delayed",
	DiscardedAtOnce: "dropped", EverParked: "ever parked",
	EverParkedUrgent: "ever parked, urgent", EverParkedQuietly: "ever parked, quietly"}

// Kept reports whether the column counts kept messages: its number is a State's.
func (c Column) Kept() bool { return c != In && c <= Column(Discarded) }

func (c Column) String() string {
	if int(c) < len(columnNames) {
		return columnNames[c]
	}
	return fmt.Sprintf("column %d", uint8(c))
}

type Sums [columns]int64

// Off returns how many more messages arrived than are accounted for: 0 when the ledger balances.
func (s *Sums) Off() int64 {
	off := s[In]
	for _, n := range s[In+1 : EverParked] {
		off -= n
	}
	return off
}

func (s *Sums) Add(o *Sums) {
	for as, n := range o {
		s[as] += n
	}
}

func (s *Sums) Kept() int64 { return s[Waiting] + s[Parked] + s[Discarded] }

// Records returns how many records were ever added.
func (s *Sums) Records() int64 { return s[In] - s[Moved] - s[Delayed] - s[DiscardedAtOnce] }

type LedgerLine struct {
	Queue string
	Sums
}

// EmptyLinesKept is how many queues without kept messages have a line in the ledger. Beyond it, those idle for longest
// are added to the line of OtherQueues: invented names must not use memory for ever.
const EmptyLinesKept = 1000

// OtherQueues names the ledger's line of forgotten queues.
const OtherQueues = "(other)"

type SumsBy map[string]*Sums

func (by SumsBy) Of(queue string) *Sums {
	if by[queue] == nil {
		by[queue] = new(Sums)
	}
	return by[queue]
}

// Lines returns a ledger's lines in order, without empty ones.
func Lines(by SumsBy) []LedgerLine {
	lines := make([]LedgerLine, 0, len(by))
	for queue, sums := range by {
		if *sums != (Sums{}) {
			lines = append(lines, LedgerLine{queue, *sums})
		}
	}
	slices.SortFunc(lines, func(a, b LedgerLine) int { return hint.Natural(a.Queue, b.Queue) })
	return lines
}
