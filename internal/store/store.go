// Package store is the contract of keeping waiting and parked messages. The
// disk engine, the in-memory one and any later one pass storetest.
//
// A store knows nothing of policies, brokers or time: its callers say what is due.
package store

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrFull: there is no room to keep more safely. Nothing of the batch was
	// kept. Adding works again by itself when there is room.
	ErrFull = errors.New("the store is full")
	// ErrLocked: another process owns the data folder.
	ErrLocked = errors.New("the data folder is in use by another process")
	// ErrSnapshotFolder: a snapshot cannot be written to that folder.
	ErrSnapshotFolder = errors.New("it cannot be written there")
	// ErrFormat: the data was written by a version this one cannot read.
	ErrFormat = errors.New("it has a format this version cannot read")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
	// ErrOwner: what is kept is another virtual host's; see OwnerEntry.
	ErrOwner = errors.New("keeps the messages of the virtual host")
	// ErrUnreadable: a record is kept where the store is damaged.
	ErrUnreadable = errors.New("it cannot be read: the store is damaged there")
	// ErrNotFound: no record with that ID.
	ErrNotFound = errors.New("no such message")
)

// ReceiptsKept is how many of the newest receipts of each process a store keeps. It
// must be at least the number of deliveries RabbitMQ may have outstanding to the intakes
// of one. They are kept by process, and not by age alone: what RabbitMQ delivers again
// are the newest of one that ended, however much others have stored since, and however
// long it took until they were delivered again.
const ReceiptsKept = 8192

// A shared store forgets the receipts of a process that has written none for
// ReceiptsAge when ReceiptsOwners others have written since. RabbitMQ delivers what a
// vanished process held again within 31 s (measured); a process's receipts take about
// half a MB, in the store and in each process that reads them.
const (
	ReceiptsAge    = 10 * time.Minute
	ReceiptsOwners = 4
)

// Store keeps records. All methods may be called at once from many goroutines,
// and an error from one leaves the others usable.
type Store interface {
	// Add keeps records, all or none. When it returns nil they survive a crash
	// of the process and a power cut. It may be called twice with the same
	// records: they are then kept twice. On a cancelled context they may or may
	// not be kept. ErrFull when there is no room.
	Add(ctx context.Context, records []*Record) error

	// Claim hands out waiting records of one lane with Due ≤ upTo, earliest
	// first, at most n of them and at most maxBytes of body (but always one).
	// A claimed record is not claimed again until it is settled, released,
	// or its owner dies (disk: the process; a shared engine: the lease).
	Claim(ctx context.Context, lane Lane, upTo time.Time, n, maxBytes int) ([]Claim, error)

	// Settle ends claims, each in one atomic step, and when it returns nil they
	// survive a crash. A claim whose lease was lost meanwhile is left alone and
	// not counted; the number of claims that were settled is returned.
	Settle(ctx context.Context, outcomes []Outcome) (int, error)

	// Release gives claims back unchanged.
	Release(ctx context.Context, claims []Claim) error

	// Next tells, for each lane with waiting records that are not claimed, when
	// the earliest of them is due. The order is not defined.
	Next(ctx context.Context) ([]NextDue, error)

	// Changed receives a value after something may have become due earlier than
	// the last Next said. Values are not queued: one stands for many.
	Changed() <-chan struct{}

	// Counts tells how many records each queue has in each state, claimed ones
	// included, and the waiting record of any of its lanes that is earliest due.
	Counts(ctx context.Context) ([]QueueCount, error)

	Searcher
	Changer
	Bookkeeper

	// List is Scan a page at a time, by Due.
	List(ctx context.Context, f Filter) (Page, error)

	// Remember keeps receipts of messages that are kept elsewhere. When it returns
	// nil they survive a crash. ErrFull when there is no room.
	Remember(ctx context.Context, receipts []Receipt) error

	// Receipts returns the newest ReceiptsKept receipts of each process, oldest first.
	Receipts(ctx context.Context) ([]Receipt, error)

	// Close waits for calls under way, then frees everything.
	Close() error
}

// Claim is a record on loan. Token proves the loan to engines that lease.
type Claim struct {
	Key    Key
	Token  string
	Record *Record
}

// Outcome is how a claim ends.
type Outcome struct {
	Claim Claim
	// Park, when not empty, parks the record with that reason; otherwise it is
	// deleted, and its passage kept.
	Park string
	At   time.Time // when it ended
}

// NextDue is the earliest due time among a lane's unclaimed waiting records.
type NextDue struct {
	Lane
	Due time.Time
}

// QueueCount is what a store holds for one queue.
type QueueCount struct {
	Queue                      string
	Waiting, Parked, Discarded int64

	// NextDue is the earliest Due of the waiting records, and NextFailed when
	// that one failed; zero when none wait.
	NextDue    time.Time
	NextFailed time.Time
}

// Listed is a record as shown, with its size even when the body is left out.
type Listed struct {
	Key Key
	// Cursor is its place in a Scan, for Range.After.
	Cursor   string
	Record   *Record
	BodySize int
}

// Damageable is a store that goes on when a part of it cannot be read.
type Damageable interface {
	// Damage tells which parts cannot be read, as far as that was met since the store
	// was opened, and how.
	Damage() map[string]string
}

// Snapshotter is a store that can be copied while it is used.
type Snapshotter interface {
	// Snapshot writes the store as it is at one moment to a folder that is absent or
	// empty, where it can be opened by itself, and counts the messages in it.
	Snapshot(ctx context.Context, folder string) (messages int64, err error)
}
