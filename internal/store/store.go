// Package store is the contract of stores, which keep waiting and parked messages. Every
// engine passes package storetest. Read it in this order:
//
//	store.go   add, claim, finish: what the intake and the scheduler call; what replicas share; counts of all
//	           messages by what became of them
//	record.go  a failed message and what Redrive knows of it; its key and its lane
//	change.go  what people's actions call: records and the side table, in one step
//	scan.go    how records, groups and past failures are searched
//	codec.go   a record as bytes
//
// A store has no policies and no broker, and its callers pass what is due: the only clock in it
// is that of leases and terms.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
)

var (
	// ErrFull: there is not enough room for the batch and the reserve. None of the batch
	// was stored. Add works again when there is room.
	ErrFull = hint.New("full", "the store is full")
	// ErrLocked: another process owns the data folder.
	ErrLocked = errors.New("the data folder is in use by another process")
	// ErrSnapshotFolder: a snapshot cannot be written to that folder.
	ErrSnapshotFolder = errors.New("it cannot be written there")
	// ErrFormat: the data was written by a version this one cannot read.
	ErrFormat = errors.New("it has a format this version cannot read")
	// ErrClosed: the store was closed.
	ErrClosed = hint.New("stopping", "the store is closed")
	// ErrOwner: the store has the messages of another virtual host, whose name follows in
	// the error's text; see OwnerEntry.
	ErrOwner = errors.New("keeps the messages of the virtual host")
	// ErrUnreadable: a record is kept where the store is damaged.
	ErrUnreadable = errors.New("it cannot be read: the store is damaged there")
	// ErrNotFound: no record with that key.
	ErrNotFound = hint.New("not_found", "no such message")
)

// ReceiptsKept is how many of the newest receipts of each process a store keeps. It
// must be at least the number of unacknowledged deliveries of a process's intakes.
//
// They are kept for each process because RabbitMQ redelivers exactly what an ended process
// had stored last and not acknowledged. Neither what other processes have stored since, nor
// the time until the redelivery, may remove those receipts.
const ReceiptsKept = 8192

// A shared store forgets the receipts of a process that has written none for
// ReceiptsAge when ReceiptsOwners others have written since. RabbitMQ
// redelivers what a vanished process had not acknowledged within 31 s (measured). A
// process's receipts take about 0.5 MB, in the store and in each process that reads them.
const (
	ReceiptsAge    = 10 * time.Minute
	ReceiptsOwners = 4
)

// Store keeps records. Its methods may be called concurrently, and remain usable after an
// error of any of them.
type Store interface {
	// Add stores records, all or none. When it returns nil they survive a crash
	// of the process and a power cut. It is not idempotent: records added twice are
	// stored twice. When the context is cancelled they may or may not be stored.
	// ErrFull when there is no room.
	Add(ctx context.Context, records []*Record) error

	// Claim claims waiting records of one lane with Due ≤ upTo, earliest first: at
	// most n, with at most maxBytes of bodies (but always one). A claimed record is
	// not claimed again until it is released, or its owner stops (disk: the process
	// ends; a shared engine: the lease ends).
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

	// Changed receives a value when a record may be due earlier than the last Next
	// returned. Several changes may send one value.
	Changed() <-chan struct{}

	// Counts returns how many records each queue has in each state, claimed ones
	// included, and which waiting record of all its lanes is due first.
	Counts(ctx context.Context) ([]QueueCount, error)

	Searcher
	Changer
	Bookkeeper

	// Remember stores receipts of messages that are stored elsewhere, in RabbitMQ.
	// When it returns nil they survive a crash. ErrFull when there is no room.
	Remember(ctx context.Context, receipts []Receipt) error

	// Receipts returns the newest ReceiptsKept receipts of each process, oldest first.
	Receipts(ctx context.Context) ([]Receipt, error)

	// Close waits for running calls, then frees all resources.
	Close() error
}

// Claim is a claimed record. Token is the engine's own name for the claim.
type Claim struct {
	Key    Key
	Token  string
	Record *Record
}

// Outcome is how Finish ends a claim.
type Outcome struct {
	Claim Claim
	// Park, when not empty, parks the record with that reason; otherwise the record
	// is deleted, and a short history of it, its PastFailure, is stored.
	Park string
	At   time.Time // when it ended
}

// NextDue is when a lane's first waiting record is due, claimed ones left out.
type NextDue struct {
	Lane
	Due time.Time
}

// QueueCount counts the records of one queue.
type QueueCount struct {
	Queue                      string
	Waiting, Parked, Discarded int64

	// NextDue is the earliest Due of the waiting records, and NextFailed when
	// that one failed; zero when none wait, and where it is not known: the record may be
	// damaged, or have ended while it was counted.
	NextDue    time.Time
	NextFailed time.Time
}

// Listed is a record of a listing, with its body's size even where the body is left out.
type Listed struct {
	Key Key
	// Cursor is its place in a Scan, for Range.After.
	Cursor   string
	Record   *Record
	BodySize int
}

// Number is the number in the key of a record that is to be stored under it.
func (l *Listed) Number() (uint64, error) {
	id, n, ok := l.Key.Parts()
	if !ok || id != l.Record.ID {
		return 0, fmt.Errorf("message %s of queue %q cannot be kept under the key %q", l.Record.ID,
			l.Record.Queue, l.Key)
	}
	return n, l.Record.Validate()
}

// Damageable is a store that continues to work when a part of it cannot be read.
type Damageable interface {
	// Damage returns the parts that could not be read since the store was opened, each
	// with its error.
	Damage() map[string]string
}

// Snapshotter is a store that can be copied while it is used.
type Snapshotter interface {
	// Snapshot copies the store, as it is at one moment, to a folder that is absent or
	// empty, where it can be opened, and counts its messages.
	Snapshot(ctx context.Context, folder string) (messages int64, err error)
}

// OpenCalls counts the calls under way on a store, for which its Close waits. The zero value is
// ready for use.
type OpenCalls struct {
	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// Begin keeps the store open until done is called. After Close it fails with ErrClosed.
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

// Close refuses further calls and waits for those under way. first is true for the
// first call; only then is there something to close.
func (c *OpenCalls) Close() (first bool) {
	c.mu.Lock()
	first, c.closed = !c.closed, true
	c.mu.Unlock()
	if first {
		c.calls.Wait()
	}
	return first
}

// ErrDeposed is the error of a write by a replica that led, after another became the leader.
var ErrDeposed = errors.New("another replica leads by now")

// Shared is a store that several services use at once, with what makes them replicas of one
// service. Nothing of what it adds to Store is durable but the numbers of terms.
type Shared interface {
	Store

	// Beat records that a replica is alive until ttl from now, by the store's clock, and how
	// it describes itself, and returns all that are alive, itself included, in the order of
	// their ids.
	Beat(ctx context.Context, replica string, about []byte, ttl time.Duration) ([]Replica, error)
	// Leave makes a replica count as stopped at once.
	Leave(ctx context.Context, replica string) error

	// Lead makes replica the leader of something until ttl from now, when none is or
	// it is already. term grows with each new leader, so that writes of a former one can be
	// refused. leads is false when another is the leader. When Lead returns with leads, no
	// replica ever gets the number of the term again, as surely as a record that was added is
	// kept; whatever was changed before is in the side table; and nothing is locked by a Change in
	// an earlier term. DeleteEntries(what) forgets the terms of what, which end with it.
	Lead(ctx context.Context, what, replica string, ttl time.Duration) (term uint64, leads bool, err error)
	// Resign lets another replica become the leader at once. It does nothing when replica does not
	// lead.
	Resign(ctx context.Context, what, replica string) error

	// Send sends a message to all replicas that listen to a topic now. Nothing is kept for
	// others.
	Send(ctx context.Context, topic string, message []byte) error
	// Listen receives what is sent, in the order of each sender, until ctx ends; it
	// returns earlier with an error when something may have been missed.
	Listen(ctx context.Context, topic string, receive func(message []byte)) error
}

// ReceiptReader is a Shared store that can read only the receipts that are new.
type ReceiptReader interface {
	// NewReceipts returns the receipts that other processes have written since at was
	// returned, each with its process; all for the zero At.
	NewReceipts(ctx context.Context, at ReceiptsAt) ([]Receipt, ReceiptsAt, error)
}

// ReceiptsAt is up to where receipts were read, by process. Only the engine knows what it means.
type ReceiptsAt map[string]string

// Replica is a service that is alive.
type Replica struct {
	ID    string
	About []byte
}

// WithTerm returns a context for the work of a leader: PutEntries, DeleteEntries and Change of
// a Shared store change something with it only in that term of what, and else return ErrDeposed. So a
// leader that was stopped for a while, and does not know yet that another leads, changes nothing.
func WithTerm(ctx context.Context, what string, term uint64) context.Context {
	return context.WithValue(ctx, termKey{}, leaderTerm{what, term})
}

// TermOf returns what WithTerm put into a context, for engines.
func TermOf(ctx context.Context) (what string, term uint64, ok bool) {
	t, ok := ctx.Value(termKey{}).(leaderTerm)
	return t.what, t.term, ok
}

type termKey struct{}

type leaderTerm struct {
	what string
	term uint64
}

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
	// EverParkedUrgent and EverParkedQuietly are the same of messages whose Notify is Urgent or Never.
	EverParkedUrgent  Column = 11
	EverParkedQuietly Column = 12
	columns           Column = 13
)

// Flows are the columns of the balance that only grow: all but what is kept.
var Flows = [...]Column{In, Retried, Forwarded, Forgotten, Moved, Delayed, DiscardedAtOnce}

// columnNames are for metrics and people.
var columnNames = [columns]string{In: "in", Column(Waiting): "waiting", Column(Parked): "parked",
	Column(Discarded): "discarded",
	Retried:           "retried", Forwarded: "forwarded", Forgotten: "forgotten", Moved: "moved", Delayed: "delayed",
	DiscardedAtOnce: "dropped", EverParked: "ever parked",
	EverParkedUrgent: "ever parked, urgent", EverParkedQuietly: "ever parked, quietly"}

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
