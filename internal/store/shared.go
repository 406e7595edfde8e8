package store

import (
	"context"
	"errors"
	"time"
)

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
	// kept; and whatever was changed before is in the side table.
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
// a Shared store change something with it only while no one has begun a later term of
// what, and else return ErrDeposed. So a leader that was stopped for a while, and does
// not know yet that another leads, changes nothing.
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
