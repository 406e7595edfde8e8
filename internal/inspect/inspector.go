package inspect

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// Errors of what a caller asks for, besides those of packages auth, query and store.
var (
	// ErrNotFound: no message, plan or operation of that name that the caller may
	// see.
	ErrNotFound = hint.New("not_found", "not found")
	// ErrPrecondition: what the caller expected is not so: another count, a plan
	// that is too old, a queue that is not there, an operation in another state.
	ErrPrecondition = hint.New("precondition", "not as expected")
	// ErrInvalid: the request makes no sense; the error says which part.
	ErrInvalid = hint.New("invalid", "invalid")
)

// Store is what an Inspector reads. It writes only what a recount has found.
type Store interface {
	store.Searcher
	NewestNumber(ctx context.Context) (uint64, error)
	Counts(ctx context.Context) ([]store.QueueCount, error)
	Ledger(ctx context.Context) ([]store.LedgerLine, error)
	Recount(ctx context.Context) ([]store.LedgerLine, error)
	Entry(ctx context.Context, name string) ([]byte, error)
	PutEntries(ctx context.Context, entries []store.Entry) error
	settings
}

// Broker asks RabbitMQ about queues. An error means that it does not answer; that a queue does not
// exist is an answer.
type Broker interface {
	Queue(ctx context.Context, name string) (AtBroker, error)
}

// Audit reads the audit log: see package audit.
type Audit interface {
	// Before visits entries from the newest on, those with a number below n.
	Before(ctx context.Context, n int64, visit func(audit.Entry) (more bool, err error)) error
}

// Config is what an Inspector works with. What it leaves out is not shown.
type Config struct {
	Store    Store
	Broker   Broker
	Audit    Audit
	Policies func() policy.Set
	Log      *slog.Logger

	Version   string
	Since     time.Time     // when the service started
	BrokerURL func() string // where RabbitMQ is, without the password; nil: not known
	ReadOnly  bool
	Activity  Activity
	// Conditions are what is wrong now, Notices what a person should look at though
	// it stops nothing.
	Conditions func() []condition.Condition
	Notices    func() []string
	// Ready tells whether the service is ready, which it may be with problems of single
	// queues. Where Ready is nil, it is ready when there are no problems.
	Ready func() bool
	// Way is how the messages of a policy wait in RabbitMQ; nil: they wait in the store.
	Way func(policy string) delay.Way
	// Limits says how a policy limits its retries, in words; nil: not at all.
	Limits func(policy string) string
	// Unreachable is why messages cannot be published to a queue now, or "".
	Unreachable func(queue string) string
	// Decoder reads bodies; nil: without any schema.
	Decoder *decode.Decoder
	// Throttle is how the retries of a queue are limited; nil, as a function and as its
	// result: not at all.
	Throttle func(queue string) *ThrottleView
	// Recounted receives the queues whose ledger is off, and by how much, each time
	// that was looked for.
	Recounted func(off map[string]int64)
	// Busy reports whether messages are being retried, for which searches make way; nil: never.
	Busy func() bool
	// Replicas are the services that share the store, and are alive. Changed makes the others
	// read again soon: these operations or, without any, the rest of the side table. Both are
	// nil where a store cannot be shared, on disk.
	Replicas func() []Replica
	Changed  func(operations ...string)
	// Now is the time, for tests; nil: time.Now.
	Now func() time.Time
}

// Activity is what happened to messages lately.
type Activity interface {
	// Minute is what happened to a queue in the last minute.
	Minute(queue string, now time.Time) Flow
	// Hour is what happened in each of the last 60 minutes, the current one last,
	// to the queues that sees says yes to.
	Hour(now time.Time, sees func(queue string) bool) []Flow
	// Queues are those that anything happened to since the start, and Failed how many
	// messages failed since then in those that sees says yes to.
	Queues() []string
	Failed(sees func(queue string) bool) int64
}

// Inspector shows what a person may see. Its methods may be called at once from many
// goroutines.
type Inspector struct {
	Config
	queues      queueCache
	queueCounts queueCounts
	calendar    calendarCache
	recounts    recounts
	// searching bounds the searches in bodies: each reads and decodes all that it looks at.
	searching background.Places
}

// New makes an Inspector.
func New(c Config) *Inspector {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Decoder == nil {
		c.Decoder, _ = decode.New(decode.Options{}) // without files nothing can fail
	}
	return &Inspector{Config: c, searching: background.Places{What: "searches in bodies", All: 2, Own: 1, Wait: 20 * time.Second}}
}

// Run does until ctx ends what each replica does and, where the store cannot be shared, Lead.
func (in *Inspector) Run(ctx context.Context) {
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { in.queues.keepFresh(ctx, in.Broker) })
	if in.Changed == nil {
		in.Lead(ctx)
	}
}
