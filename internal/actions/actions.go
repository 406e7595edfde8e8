package actions

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// ErrNoAudit: the audit log cannot be written, so nothing is done.
var ErrNoAudit = hint.New("no_audit", "the audit log cannot be written, and nothing is done without it")

// Store is what actions need of a store. Where it is a store.Snapshotter too, it can be
// copied.
type Store interface {
	Add(ctx context.Context, records []*store.Record) error
	Find(ctx context.Context, id uuid.UUID) ([]store.Listed, error)
	PastFailures(ctx context.Context, id uuid.UUID) ([]store.PastFailure, error)
	Counts(ctx context.Context) ([]store.QueueCount, error)
	store.Changer
}

// Audit writes the audit log: see package audit.
type Audit interface {
	Begin(e audit.Entry) (done func(outcome string, count int64), err error)
	Forget(ctx context.Context, now time.Time) error
}

// Config is what actions work with. What needs a part that is left out is refused.
type Config struct {
	// Inspect finds what to act on. Its log, clock and decoder are used, too.
	Inspect *inspect.Inspector
	Store   Store
	Audit   Audit
	Events  retry.Listener
	// Restorable is how long what was discarded can be restored.
	Restorable time.Duration
	// SetPaused pauses the retries of a queue now, or resumes them. The store has it
	// already.
	SetPaused func(queue string, paused bool)
	// Force sets a queue's breaker now; the store has it already.
	Force func(queue, to, by, why string)
	// AuditShort says that what room is left is for the entries of administrators; nil: never.
	AuditShort func() error
	// Large bounds how many large bodies are exported and imported at once. The virtual hosts of a
	// process share it; nil: of these actions alone.
	Large *background.Places
}

// NewLarge makes Config.Large. An export takes one place, and an import all.
func NewLarge() *background.Places {
	return &background.Places{What: "transfers of large messages", All: 2, Own: 1, Wait: time.Minute}
}

// Actions does what a person asks for. Its methods may be called at once from many
// goroutines, and each checks its caller.
type Actions struct {
	Config
	// settings keeps pauses and breakers in the same order in store, scheduler and throttle. It is
	// held while the store is asked, so it is a lock that a caller can stop waiting for.
	settings *semaphore.Weighted
	// forcedEntries are the entries of the breakers that were set here or that ReadSettings has
	// found, by queue; settings guards them.
	forcedEntries map[string]string

	auditing sync.Mutex
	auditors map[string]*rate.Limiter // how much each caller adds to the audit log
}

// New makes Actions.
func New(c Config) *Actions {
	c.Large = cmp.Or(c.Large, NewLarge())
	return &Actions{Config: c, settings: semaphore.NewWeighted(1), auditors: map[string]*rate.Limiter{}}
}

func (a *Actions) now() time.Time { return a.Inspect.Now() }

// changed announces to the other replicas that the side table has changed.
func (a *Actions) changed() {
	if a.Inspect.Changed != nil {
		a.Inspect.Changed()
	}
}
