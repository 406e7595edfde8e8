package operations

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// Store is what operations need of a store; Actions changes messages.
type Store interface {
	Find(ctx context.Context, id uuid.UUID) ([]store.Listed, error)
	PastFailures(ctx context.Context, id uuid.UUID) ([]store.PastFailure, error)
	NewestNumber(ctx context.Context) (uint64, error)
	Entry(ctx context.Context, name string) ([]byte, error)
	Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (more bool, err error)) error
	PutEntries(ctx context.Context, entries []store.Entry) error
	DeleteEntries(ctx context.Context, prefix string) error
}

// Config is what a Runner needs.
type Config struct {
	// Inspect finds the messages of a plan. Its log, clock and replicas are used, too.
	Inspect *inspect.Inspector
	// Actions changes the messages.
	Actions *actions.Actions
	Store   Store
	// Replica is the id of this replica where others can share the store, which is a store.Shared
	// then; "" where none can.
	Replica string
}

// Runner makes plans and runs operations. Its methods may be called at once from many
// goroutines, and each checks its caller.
type Runner struct {
	Config
	log *slog.Logger

	// mu is held while the operations are read, so it is a lock that a caller can stop waiting for.
	mu       *semaphore.Weighted
	loaded   bool
	all      map[string]*operation
	planning map[string]bool // plans whose selection is being written
	planners background.Places
	wake     chan struct{} // there is work

	staleMu sync.Mutex
	stale   map[string]bool // operations that other replicas have changed; "": perhaps all

	// canaryFailures are noted as they happen: no record shows those of messages that are not stored.
	canaryFailures canaryFailures
}

// New makes a Runner.
func New(c Config) *Runner {
	return &Runner{Config: c, log: c.Inspect.Log, mu: semaphore.NewWeighted(1), all: map[string]*operation{},
		planning: map[string]bool{}, stale: map[string]bool{}, planners: background.Places{What: "plans that are being made", All: 8, Own: 2}, wake: make(chan struct{}, 1)}
}

func (r *Runner) now() time.Time { return r.Inspect.Now() }

// lock takes mu where there is nothing to be done without it.
func (r *Runner) lock() { _ = r.mu.Acquire(context.Background(), 1) } // it never fails

// shared reports whether several replicas can share the store.
func (r *Runner) shared() bool { return r.Replica != "" }

// changed announces changed operations to the other replicas.
func (r *Runner) changed(ids ...string) {
	if r.shared() {
		r.Inspect.Changed(ids...)
	}
}

// beginPlanning registers a plan that is being made, so that its entries are not deleted as a
// crash's.
func (r *Runner) beginPlanning(id string) {
	r.lock()
	defer r.mu.Release(1)
	r.planning[id] = true
}

func (r *Runner) endPlanning(id string) {
	r.lock()
	defer r.mu.Release(1)
	delete(r.planning, id)
}

// Wake has the Runner look for work now.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
