// Package console is what a person may see and do: one core for the page, the HTTP API and
// the command line. Each action has one permission check, one entry in the audit log and one
// event. Read it in this order:
//
//	console.go      what it needs
//	message.go      messages as they are shown
//	search.go       a query answered page by page; find.go: what the store is asked; past.go:
//	                messages that are no longer kept
//	detail.go       one message in full; envelope.go: its properties and headers
//	act.go          actions on named messages; change.go: what an action makes of a record
//	edit.go         a message replaced by an edited one
//	pause.go        pauses the retries of a queue; breaker.go: sets its circuit breaker
//	export.go       messages as lines of JSON; import.go reads them
//	plan.go         what an action would do to all that a query finds; frozen.go: its selection
//	operation.go    a plan's run and its progress; order.go: pausing it; outcomes.go: its results
//	operations.go   all operations; run.go: one step of one; targetqueue.go: whether its
//	                destination exists
//	replicas.go     with several replicas the leader runs operations; orderentry.go: requests
//	                reach it through the store
//	queue.go        a queue as it is shown; queues.go, policies.go, overview.go: lists
//	queuecounts.go  what a store counted, and its pages; brokerqueues.go: what RabbitMQ says
//	ledger.go       how many messages came, and what became of them
//	live.go         what has changed since a moment ago
package console

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// Errors of seeing and doing, besides those of packages auth, query and store.
var (
	// ErrNotFound: no message, plan or operation of that name that the caller may
	// see.
	ErrNotFound = errors.New("not found")
	// ErrPrecondition: what the caller expected is not so: another count, a plan
	// that is too old, a queue that is not there, an operation in another state.
	ErrPrecondition = errors.New("not as expected")
	// ErrInvalid: the request makes no sense; the error says which part.
	ErrInvalid = errors.New("invalid")
	// ErrNoAudit: the audit log cannot be written, so nothing is done.
	ErrNoAudit = errors.New("the audit log cannot be written, and nothing is done without it")
)

// Store is what the console needs of a store.
type Store interface {
	store.Store
	store.Searcher
	store.Changer
	store.Bookkeeper
}

// Broker answers what RabbitMQ knows of a queue; an error is that it does not
// answer. A queue that is not there is no error.
type Broker interface {
	Queue(ctx context.Context, name string) (AtBroker, error)
}

// Audit writes the log: see package audit.
type Audit interface {
	// Begin writes that something is about to be done, and returns only when that
	// is durable; done writes what came of it.
	Begin(e audit.Entry) (done func(outcome string, count int64), err error)
	// Before visits entries from the newest on, those with a number below n.
	Before(ctx context.Context, n int64, visit func(audit.Entry) (more bool, err error)) error
}

// Config is what a console works with.
type Config struct {
	Store    Store
	Broker   Broker
	Audit    Audit
	Policies func() policy.Set
	Events   retry.Listener
	Log      *slog.Logger
	// Restorable is how long what was discarded can be restored.
	Restorable time.Duration

	Version  string
	Since    time.Time     // when the service started
	BrokerAt func() string // where RabbitMQ is, without the password; nil: not known
	ReadOnly bool
	Rates    Rates
	// Problems are what is wrong now, Notices what a person should look at though
	// it stops nothing.
	Problems, Notices func() []string
	// Ready tells whether the service is ready, which it may be with problems of single
	// queues; nil: it is without problems.
	Ready func() bool
	// Way is how the messages of a policy wait in RabbitMQ; nil: they wait in the store.
	Way func(policy string) delay.Way
	// Limits says how a policy limits its retries, in words; nil: not at all.
	Limits func(policy string) string
	// Blocked is why no message of a queue can be retried, or "".
	Blocked func(queue string) string
	// Decoder reads bodies, and writes edited ones; nil: without any schema.
	Decoder *decode.Decoder
	// SetPaused pauses the retries of a queue now, or resumes them. The store has it
	// already.
	SetPaused func(queue string, paused bool)
	// Throttle is how the retries of a queue are limited; nil, as a function and as its
	// result: not at all. Force sets the queue's breaker now; the store has it already.
	Throttle func(queue string) *Throttle
	Force    func(queue, to, by, why string)
	// Recounted receives the queues whose ledger is off, and by how much, each time
	// that was looked for.
	Recounted func(off map[string]int64)
	// Replicas are those that share the store; nil: there is but this service.
	Replicas Replicas
	// Now is the time, for tests; nil: time.Now.
	Now func() time.Time
}

// Rates is what happened lately.
type Rates interface {
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
