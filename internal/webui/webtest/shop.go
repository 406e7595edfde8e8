// Package webtest is a shop on a bad day, as page and API have it. The console is real, over a store in
// memory; RabbitMQ and its traffic are made up.
package webtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/simulate"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/policy"
)

// Root may do everything.
var Root = auth.Caller{Name: "dana", How: "local", From: "127.0.0.1", Interface: "page", Role: auth.Admin}

// Told is what RabbitMQ and the traffic tell.
type Told struct {
	Others     inspect.AtBroker // the queues that At does not have
	At         map[string]inspect.AtBroker
	Returns    map[string]string // why a queue cannot be reached
	Minutes    map[string]inspect.Flow
	Flows      []inspect.Flow // of the last hour
	Throttles  map[string]*inspect.ThrottleView
	Conditions []condition.Condition
	Notices    []string
	Allowed    []string          // queues that replays were allowed to
	Replicas   []inspect.Replica // whose heartbeats are as old as they were when the shop was made
}

func (t *Told) Queue(_ context.Context, name string) (inspect.AtBroker, error) {
	if at, ok := t.At[name]; ok {
		return at, nil
	}
	return t.Others, nil
}

func (t *Told) Minute(queue string, _ time.Time) inspect.Flow { return t.Minutes[queue] }
func (t *Told) Failed(func(string) bool) int64                { return 0 }
func (t *Told) Queues() (all []string) {
	for q := range t.Minutes {
		all = append(all, q)
	}
	return all
}

func (t *Told) Hour(time.Time, func(string) bool) []inspect.Flow {
	return append(make([]inspect.Flow, 60-len(t.Flows)), t.Flows...)
}

// Shop is a console that can be slow, and fail.
type Shop struct {
	*inspect.Inspector
	*actions.Actions
	*operations.Runner
	Store   store.Store
	Told    *Told
	Book    *inspecttest.AuditLog
	Decoder *decode.Decoder

	Fails   error // what all that reads answers with
	Slow    bool  // what reads waits until its context ends, if that ends
	Bounded string

	Has Names
}

// Names are those of things in a shop.
type Names struct {
	Order, Mail, Waiting string   // messages: parked, of Protobuf in base64 and of JSON; and waiting
	IDs                  []string // of these and of a discarded one
	Group                string
	Plan, Blocked        string // plans that are not started, and that cannot be
	Running, Paused      string // operations
}

// New is an empty shop. What c does not say is so that all is well; told may be nil.
func New(s store.Store, told *Told, c inspect.Config) *Shop {
	if told == nil {
		told = &Told{Others: inspect.AtBroker{Exists: true, Kind: "quorum", Consumers: 1}}
	}
	shop := &Shop{Store: s, Told: told, Book: &inspecttest.AuditLog{}}
	if shop.Decoder = c.Decoder; shop.Decoder == nil {
		shop.Decoder = must(decode.New(decode.Options{}))
	}
	c.Store, c.Broker, c.Audit, c.Activity, c.Decoder = s, told, shop.Book, told, shop.Decoder
	c.Log, c.Version, c.Since = slog.New(slog.DiscardHandler), "1.4.0", time.Now().Add(-51*time.Hour)
	c.BrokerURL = func() string { return "amqp://redrive@rabbit-1.shop.example:5672/shop" }
	c.Policies, c.Conditions, c.Notices = Policies, shop.conditions, shop.notices
	c.Unreachable = func(q string) string { return told.Returns[q] }
	c.Throttle = func(q string) *inspect.ThrottleView { return told.Throttles[q] }
	began := time.Now()
	c.Replicas = func() []inspect.Replica {
		all := slices.Clone(told.Replicas)
		for i := range all {
			all[i].Beat = all[i].Beat.Add(time.Since(began))
		}
		return all
	}
	shop.Inspector = inspect.New(c)
	shop.Actions = actions.New(actions.Config{Inspect: shop.Inspector, Store: s, Audit: shop.Book, Restorable: 30 * 24 * time.Hour,
		BindRetryExchange: func(_ context.Context, queue string) error { told.Allowed = append(told.Allowed, queue); return nil }})
	shop.Runner = operations.New(operations.Config{Inspect: shop.Inspector, Actions: shop.Actions, Store: s, DeadLetters: oldQueues{}})
	return shop
}

// oldQueues are the dead-letter queues that the shop had before.
type oldQueues struct{}

func (oldQueues) List(context.Context) ([]operations.DeadLetterQueue, error) {
	return []operations.DeadLetterQueue{
		{Queue: "invoices_error", Kind: "quorum", Ready: 14, Why: "its name is that of a dead-letter queue"},
		{Queue: "orders.dlq", Kind: "classic", Ready: 5104, WorkQueues: []string{"orders.created", "orders.paid"}, Why: "other queues dead-letter to it"},
	}, nil
}

func (o oldQueues) Look(ctx context.Context, queue string) (operations.DeadLetterQueue, error) {
	all, err := o.List(ctx)
	return all[len(all)-1], err
}

func (oldQueues) Open(context.Context, retry.Adoption) (operations.Source, error) {
	return nil, errors.New("RabbitMQ is not there")
}

func (s *Shop) conditions() []condition.Condition { return slices.Clone(s.Told.Conditions) }
func (s *Shop) notices() []string                 { return s.Told.Notices }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// API is the shop as the service serves it.
func (s *Shop) API(page webui.Options, guard auth.Config) *httpapi.API {
	log := slog.New(slog.DiscardHandler)
	guard.Base, guard.Log, guard.SignInPage, guard.Sessions = page.Base, log, auth.SignInPath, s.Store
	guard.Public = func(r *http.Request) bool { return httpapi.Public(r) || strings.HasPrefix(r.URL.Path, "/assets/") }
	a := httpapi.New(httpapi.Config{
		Base: page.Base, Console: s, Decoder: s.Decoder, Conditions: s.conditions, Notices: s.notices, Log: log,
		Ready: func() bool { return len(s.conditions()) == 0 }, Guard: auth.NewGuard(guard), Tokens: guard.Tokens,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "redrive_ready 1") }),
	})
	page.Caller = func(r *http.Request) auth.Caller { return auth.From(r.Context()) }
	page.Log, page.Version, page.Conditions, page.Simulation = log, "1.4.0", s.ConditionsFor, Storm
	for pattern, h := range webui.Routes(s, page) {
		a.Handle(pattern, h)
	}
	return a
}

// Storm is the picture of what a policy does in an outage; of all the same.
func Storm(context.Context, string) template.HTML { return drawn() }

var drawn = sync.OnceValue(func() template.HTML {
	b := throttle.DefaultBreaker()
	return template.HTML(must(simulate.Run(context.Background(), simulate.Brief(Policies()[0], throttle.Rules{Rate: 200, Breaker: &b}))).SVG())
})

// Policies are the shop's.
var Policies = sync.OnceValue(func() policy.Set {
	return policy.Set{
		{Name: "orders", Queues: []string{"orders.*"}, Attempts: 5, Backoff: policy.Exponential(10*time.Second, 3, time.Hour)},
		{Name: "mail", Queues: []string{"mail.*"}, Attempts: 5, Backoff: policy.Linear(30*time.Second, 30*time.Second, 5*time.Minute)},
		{Name: "webhooks", Queues: []string{"webhooks"}, Attempts: 1},
		{Name: "rest", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Minute)},
	}
})

// gate is what a read answers with instead, if the shop is slow or fails.
func (s *Shop) gate(ctx context.Context) error {
	if _, limited := ctx.Deadline(); s.Slow && limited {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Fails
}

func gated[T any](ctx context.Context, s *Shop, read func() (T, error)) (v T, err error) {
	if err := s.gate(ctx); err != nil {
		return v, err
	}
	return read()
}

func (s *Shop) Overview(ctx context.Context, c auth.Caller) (inspect.Overview, error) {
	return gated(ctx, s, func() (inspect.Overview, error) { return s.Inspector.Overview(ctx, c) })
}

func (s *Shop) Search(ctx context.Context, c auth.Caller, q, after string, limit int) (inspect.Page, error) {
	p, err := gated(ctx, s, func() (inspect.Page, error) { return s.Inspector.Search(ctx, c, q, after, limit) })
	p.Bounded = cmp.Or(s.Bounded, p.Bounded)
	return p, err
}

func (s *Shop) Count(ctx context.Context, c auth.Caller, q string) (int64, bool, error) {
	if err := s.gate(ctx); err != nil {
		return 0, false, err
	}
	return s.Inspector.Count(ctx, c, q)
}

func (s *Shop) Message(ctx context.Context, c auth.Caller, id string) (inspect.Detail, error) {
	return gated(ctx, s, func() (inspect.Detail, error) { return s.Inspector.Message(ctx, c, id) })
}

func (s *Shop) Groups(ctx context.Context, c auth.Caller, q, after string, limit int) (inspect.GroupPage, error) {
	return gated(ctx, s, func() (inspect.GroupPage, error) { return s.Inspector.Groups(ctx, c, q, after, limit) })
}

func (s *Shop) Queues(ctx context.Context, c auth.Caller, after string, limit int) ([]inspect.Queue, string, error) {
	if err := s.gate(ctx); err != nil {
		return nil, "", err
	}
	return s.Inspector.Queues(ctx, c, after, limit)
}

func (s *Shop) Ledger(ctx context.Context, c auth.Caller, recount bool, after string, n int) (inspect.Ledger, error) {
	return gated(ctx, s, func() (inspect.Ledger, error) { return s.Inspector.Ledger(ctx, c, recount, after, n) })
}

func (s *Shop) Policies(ctx context.Context, c auth.Caller) ([]inspect.PolicyInForce, error) {
	return gated(ctx, s, func() ([]inspect.PolicyInForce, error) { return s.Inspector.Policies(ctx, c) })
}

func (s *Shop) AuditLog(ctx context.Context, c auth.Caller, after string, limit int) ([]audit.Entry, string, error) {
	if err := s.gate(ctx); err != nil {
		return nil, "", err
	}
	return s.Inspector.AuditLog(ctx, c, after, limit)
}

func (s *Shop) GetPlan(ctx context.Context, c auth.Caller, id string) (operations.Plan, error) {
	return gated(ctx, s, func() (operations.Plan, error) { return s.Runner.GetPlan(ctx, c, id) })
}

func (s *Shop) Operations(ctx context.Context, c auth.Caller) ([]operations.Operation, error) {
	return gated(ctx, s, func() ([]operations.Operation, error) { return s.Runner.Operations(ctx, c) })
}

func (s *Shop) Operation(ctx context.Context, c auth.Caller, id string) (operations.Operation, error) {
	return gated(ctx, s, func() (operations.Operation, error) { return s.Runner.Operation(ctx, c, id) })
}

// Bounded is why not all was looked at.
const Bounded = "only the latest 100,000 of 1,204,332 messages, since bodies have to be decoded for this query"

// VHosts are three, of which the second is shown and the third is not ready.
func VHosts(first, here, third string) []webui.VHost {
	return []webui.VHost{{Name: first, URL: "/", Ready: true}, {Name: here, URL: httpapi.Base(here) + "/", Ready: true, Here: true},
		{Name: third, URL: httpapi.Base(third) + "/"}}
}
