package operations

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// Store is what operations need of a store: what they do to messages, they do by Actions.
type Store interface {
	Find(ctx context.Context, id uuid.UUID) ([]store.Listed, error)
	Past(ctx context.Context, id uuid.UUID) ([]store.Passage, error)
	NewestKey(ctx context.Context) (uint64, error)
	Entry(ctx context.Context, name string) ([]byte, error)
	Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (more bool, err error)) error
	PutEntries(ctx context.Context, entries []store.Entry) error
	DeleteEntries(ctx context.Context, prefix string) error
}

// Config is what operations work with.
type Config struct {
	// Inspect finds the messages of a plan. Its log, clock and replicas are used, too.
	Inspect *inspect.Inspector
	// Actions does to messages what an operation is to do.
	Actions *actions.Actions
	Store   Store
}

// Runner makes plans and runs operations. Its methods may be called at once from many
// goroutines, and each checks its caller.
type Runner struct {
	Config
	log *slog.Logger

	mu     sync.Mutex
	loaded bool
	leads  bool // this replica runs them
	all    map[string]*operation
	active map[string]bool // have begun, and not ended
	made   map[string]bool // plans that are being made
	wake   chan struct{}   // there is something to be done
	// canaries are noted as they fail: no record shows the failure of those that are not stored.
	canaries canaries
	lookups  sync.WaitGroup // goroutines that ask RabbitMQ about queues; Lead waits for them
}

// New makes a Runner.
func New(c Config) *Runner {
	return &Runner{Config: c, log: c.Inspect.Log, all: map[string]*operation{}, active: map[string]bool{}, made: map[string]bool{}, wake: make(chan struct{}, 1)}
}

func (r *Runner) now() time.Time { return r.Inspect.Now() }

// shared tells whether other replicas share the store: then one of them leads, and it alone
// runs operations.
func (r *Runner) shared() bool { return r.Inspect.Changed != nil }

// changed announces changed operations to the other replicas.
func (r *Runner) changed(ids ...string) {
	if r.shared() {
		r.Inspect.Changed(ids...)
	}
}

// making keeps what is written of a plan from being taken for a crash's.
func (r *Runner) making(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.made) >= mostMade {
		return fmt.Errorf("%w: %d plans are being made just now: try again in a moment", inspect.ErrPrecondition, mostMade)
	}
	r.made[id] = true
	return nil
}

func (r *Runner) isMade(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.made, id)
}

func (r *Runner) running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.active)
}

func (r *Runner) began(id string) {
	r.mu.Lock()
	r.active[id] = true
	r.mu.Unlock()
	r.Wake()
}

func (r *Runner) ended(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.active, id)
}

// Wake has the Runner look for work now, such as orders of another replica.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
