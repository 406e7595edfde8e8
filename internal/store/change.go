package store

import (
	"context"
	"time"
)

// ChangeMost is how many keys a Change takes, and ChangeBytes how much of bodies.
const (
	ChangeMost  = 1000
	ChangeBytes = 64 << 20
)

// Changer is how people's actions change what is kept.
type Changer interface {
	// Change gives each record to edit and keeps what edit makes of it, all in one
	// step that survives a crash. A record that is claimed (on its way back now), not
	// kept any more or named before is given to edit as nil. edit may change the
	// record it is given but for its ID and its Message's shared parts (it replaces
	// Body and Headers, never writes into them), and returns what to do. Records it
	// adds are kept too. One that is kept and cannot be read is given to it with
	// Unreadable alone, and stays as it is whatever edit returns.
	// entries, when not nil, is called once, last, after all edits, and what it
	// returns is written in the same step: so an operation's account of what it did
	// can never differ from what was done. Neither may change the store. Nothing is
	// changed on an error, unless a server's answer was lost: then Entry tells, by what
	// entries wrote, since it answers only once the change is done or never will be.
	// ErrFull when there is no room: adding needs as much as Add
	// does, whereas moving may use half of what is kept in reserve, and deleting all
	// of it.
	// A batch of at most 1,000 keys; bodies of at most 64 MiB together are in
	// memory at once, or fewer records are taken: n tells how many of keys, from
	// the first on, were dealt with (entries is called for those).
	Change(ctx context.Context, keys []Key, edit func(Key, *Record) Edit, entries func(n int) []Entry) (n int, err error)

	// Entry reads a value of the side table; nil when there is none.
	Entry(ctx context.Context, name string) ([]byte, error)
	// Entries visits the side table in the order of names, those that begin with
	// prefix and come after the name after, as they were at one moment.
	Entries(ctx context.Context, prefix, after string, visit func(Entry) (more bool, err error)) error
	// PutEntries writes the side table, all or none, durably. A nil Value deletes.
	// ErrFull when there is no room. A quarter of what is kept in reserve may be
	// used, so that an operation which makes room can begin, and 4 KiB may be
	// written always, so that it can be paused.
	PutEntries(ctx context.Context, entries []Entry) error
	// DeleteEntries forgets all names with a prefix, in one step.
	DeleteEntries(ctx context.Context, prefix string) error

	// NewestKey bounds what has been added so far: see Range.Upto. What is being
	// added while it is called is kept and counted in when it returns, or it is
	// added after.
	NewestKey(ctx context.Context) (uint64, error)

	// Forget deletes discarded records with Due (until when they can be restored) ≤
	// now, in batches that are each durable, and returns how many, also on an error.
	Forget(ctx context.Context, now time.Time) (int, error)
}

// Edit is what becomes of a record.
type Edit struct {
	// Keep writes the record as edit left it (in its new state, at its new Due),
	// Delete takes it away for good; neither leaves it as it was, and Keep wins.
	Keep, Delete bool
	// Add are new records to keep besides.
	Add []*Record
}

// Entry is a value of a store's side table, which holds what belongs to the kept
// messages without being one: operations, holds, notes. Names are paths such as
// "operation/7/outcome/000012".
type Entry struct {
	Name  string
	Value []byte
}

// PausePrefix and a queue's name is the entry that says that a person has paused its
// retries. It is here because the console and the scheduler share nothing but the store.
const PausePrefix = "pause/"

// BreakerPrefix and a queue's name is the entry that says that a person has set its
// circuit breaker.
const BreakerPrefix = "breaker/"

// OwnerEntry is the entry that says which virtual host the messages are of, as the first
// service that used the store has written it.
const OwnerEntry = "vhost"
