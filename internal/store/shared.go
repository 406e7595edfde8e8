package store

import (
	"context"
	"errors"
	"time"
)

// ErrDeposed: who writes was a leader, and another has become it since.
var ErrDeposed = errors.New("another replica leads by now")

// Shared is what a store offers besides that several services use at once, to make
// replicas of one service of them. What is said here is soon forgotten, and kept no
// better than a cache: what must not be lost is a record, an entry, or a term's number.
type Shared interface {
	Store

	// Beat says that a replica is alive until ttl from now, by the store's clock, and
	// what it tells of itself, and returns all that are, itself included, in the order
	// of their ids.
	Beat(ctx context.Context, replica string, about []byte, ttl time.Duration) ([]Replica, error)
	// Leave ends that at once.
	Leave(ctx context.Context, replica string) error

	// Lead makes replica the leader of something until ttl from now, when none is or
	// it is already. term grows with each new leader: what a former one still does
	// can be known by it. leads is false when another is the leader. When Lead returns a
	// term that one leads, no replica ever gets its number again, as surely as a record
	// that was added is kept; and whatever was changed before is in the side table.
	Lead(ctx context.Context, what, replica string, ttl time.Duration) (term uint64, leads bool, err error)
	// Resign lets another be the leader at once; nothing when replica is not.
	Resign(ctx context.Context, what, replica string) error

	// Tell says something to all who listen to a topic now. Nothing is kept for those
	// who do not.
	Tell(ctx context.Context, topic string, said []byte) error
	// Listen receives what is sent, in the order of each sender, until ctx ends; it
	// returns earlier with an error when something may have been missed.
	Listen(ctx context.Context, topic string, hear func(said []byte)) error
}

// ReceiptReader is what a Shared store may offer besides, so that looking for what
// others wrote costs no more than what there is.
type ReceiptReader interface {
	// NewReceipts returns the receipts that other processes have written since at was
	// returned, each with its process; all for the zero At.
	NewReceipts(ctx context.Context, at ReceiptsAt) ([]Receipt, ReceiptsAt, error)
}

// ReceiptsAt is how many receipts were read, by process.
type ReceiptsAt map[string]string

// Replica is a service that is alive.
type Replica struct {
	ID    string
	About []byte
}

// WithTerm is a context of what a leader does: PutEntries, DeleteEntries and Change of
// a Shared store change something with it only while no one has begun a later term of
// what, and else return ErrDeposed. So a leader that was stopped for a while, and does
// not know yet that it is none any more, spoils nothing.
func WithTerm(ctx context.Context, what string, term uint64) context.Context {
	return context.WithValue(ctx, termKey{}, heldTerm{what, term})
}

// TermOf is what WithTerm put into a context, for engines.
func TermOf(ctx context.Context) (what string, term uint64, ok bool) {
	t, ok := ctx.Value(termKey{}).(heldTerm)
	return t.what, t.term, ok
}

type termKey struct{}

type heldTerm struct {
	what string
	term uint64
}
