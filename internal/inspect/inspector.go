// Package inspect makes what a person sees: messages, groups of failures, queues, policies, the
// ledger and the audit log, for the page, the HTTP API and the command line. Each method
// that has a caller checks what they may see, and none changes a message. Read it in this order:
//
//	inspector.go  the Inspector and its parts
//	message.go    messages as they are shown, in lists and in full
//	search.go     a query answered page by page, also of messages that are no longer kept
//	masked.go     a message without what its caller's role may not see
//	columns.go    lists as tables and as CSV
//	queue.go      queues: what the store counted, and what RabbitMQ says
//	groups.go, policies.go, auditlog.go: the other lists
//	overview.go   the numbers of one moment, and what is due when
//	ledger.go     how many messages came, and what became of them; recount.go: counted one by one
package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/mask"
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

// Store is the part of a store that an Inspector reads. It writes only the findings of a recount.
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

// Config has the parts of an Inspector. It does not show what is left out.
type Config struct {
	Store    Store
	Broker   Broker
	Audit    Audit
	Policies func() policy.Set
	// Decisions counts what the policies decided; nil: not counted.
	Decisions *Decisions
	Log       *slog.Logger

	Version   string
	Since     time.Time     // when the service started
	BrokerURL func() string // where RabbitMQ is, without the password; nil: not known
	ReadOnly  bool
	Activity  Activity
	// Stops returns the stops of a queue that are not in the store yet; nil: all are.
	Stops func(queue string) []Stop
	// Conditions are what is wrong now, Notices what a person should look at though
	// it stops nothing.
	Conditions func() []condition.Condition
	Notices    func() []string
	// Checkup returns what the checks of redrive doctor last found about queues, and repeats them if they missed this
	// one; "": any queue. nil: there are no checks.
	Checkup func(queue string) Checkup
	// Parts says how each part of the service is; nil: not known.
	Parts func() []Part
	// Ready reports whether the service is ready, which it may be with problems of single
	// queues. Where Ready is nil, it is ready when there are no problems.
	Ready func() bool
	// Way is how the messages of a policy wait in RabbitMQ; nil: they wait in the store.
	Way func(policy string) delay.Way
	// Limits says how a policy limits its retries, in words; nil: not at all.
	Limits func(policy string) string
	// Holds returns the text of the condition with this kind and queue; "" or nil: it does not hold.
	Holds func(condition.Condition) string
	// Mask decides what of messages callers see; nil, as a function and as its result: all.
	Mask func() *mask.Rules
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

// Activity counts recent events.
type Activity interface {
	// Minute counts a queue's events of the last minute.
	Minute(queue string, now time.Time) Flow
	// Hour counts the events of each of the last 60 minutes, the current one last,
	// to the queues that sees says yes to.
	Hour(now time.Time, sees func(queue string) bool) []Flow
	// Day counts a queue's events of each of the last 48 half hours, the current one last.
	Day(now time.Time, queue string) []Flow
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
	if c.Mask == nil {
		c.Mask = func() *mask.Rules { return nil }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Holds == nil {
		c.Holds = func(condition.Condition) string { return "" }
	}
	if c.Decoder == nil {
		c.Decoder, _ = decode.New(decode.Options{}) // without files nothing can fail
	}
	return &Inspector{Config: c, searching: background.Places{What: "searches in bodies", All: 2, Own: 1,
		Wait: 20 * time.Second}}
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

// settings is the side table of a store, where what people set for queues is.
type settings interface {
	Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (more bool, err error)) error
}

// Pauses are the queues whose retries a person has paused.
func Pauses(ctx context.Context, s settings) (map[string]QueuePause, error) {
	return readSettings[QueuePause](ctx, s, store.PausePrefix, "pause")
}

// ForcedBreakers are the breakers that people have set, by queue.
func ForcedBreakers(ctx context.Context, s settings) (map[string]Forced, error) {
	return readSettings[Forced](ctx, s, store.BreakerPrefix, "breaker")
}

func readSettings[T any](ctx context.Context, s settings, prefix, what string) (map[string]T, error) {
	all := map[string]T{}
	err := s.Entries(ctx, prefix, "", func(e store.Entry) (bool, error) {
		var v T
		if err := json.Unmarshal(e.Value, &v); err != nil {
			return false, fmt.Errorf("the %s of %q: %w", what, e.Name, err)
		}
		all[strings.TrimPrefix(e.Name, prefix)] = v
		return true, nil
	})
	return all, err
}

// Replica is one service of several that share a store.
type Replica struct {
	ID         string                `json:"id"`
	Address    string                `json:"address" doc:"Where its page and API are."`
	Version    string                `json:"version"`
	Since      time.Time             `json:"since" doc:"When it started."`
	Beat       time.Time             `json:"beat" doc:"When it was last heard of."`
	Leads      bool                  `json:"leads" doc:"It sends notifications, deletes what is old, decides breakers."`
	Self       bool                  `json:"self" doc:"It is the one that answers."`
	Ready      bool                  `json:"ready" doc:"As its /readyz says."`
	Conditions []condition.Condition `json:"conditions,omitempty" doc:"What is wrong there, of single queues too."`
}

// Silent reports whether several of its heartbeats, four a second, are missing; soon it counts as
// gone.
func (r Replica) Silent(now time.Time) bool { return now.Sub(r.Beat) > 2*time.Second }

// replicasFor returns the live replicas; callers who are limited to queues do not see the conditions
// that name queues.
func (in *Inspector) replicasFor(by auth.Caller) []Replica {
	if in.Replicas == nil {
		return nil
	}
	all := in.Replicas()
	for i := range all {
		if by.Queues != nil {
			all[i].Conditions = slices.DeleteFunc(all[i].Conditions, condition.Condition.OfQueue)
		}
	}
	return all
}
