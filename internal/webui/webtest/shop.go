// Package webtest is a shop on a bad day, as page and API have it. The console is real, over a store in
// memory; RabbitMQ and its traffic are made up.
package webtest

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"google.golang.org/protobuf/encoding/protowire"

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
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
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

func (t *Told) Day(time.Time, string) []inspect.Flow { return t.Hour(time.Time{}, nil)[60-48:] }

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

func (s *Shop) Act(ctx context.Context, by auth.Caller, act actions.Act) (actions.Acted, error) {
	return s.Runner.Act(ctx, by, act)
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
	c.Holds = func(c condition.Condition) string {
		if c.Kind == condition.Unreachable {
			return told.Returns[c.Queue]
		}
		return ""
	}
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
	shop.Actions = actions.New(actions.Config{Inspect: shop.Inspector, Store: s, Audit: shop.Book,
		At: func(context.Context) (actions.Place, error) { return actions.Place{}, nil }, Restorable: 30 * 24 * time.Hour,
		BindRetryExchange: func(_ context.Context, queue string) error { told.Allowed = append(told.Allowed, queue); return nil }})
	shop.Runner = operations.New(operations.Config{Inspect: shop.Inspector, Actions: shop.Actions, Store: s, DeadLetters: oldQueues{}})
	return shop
}

// oldQueues are the dead-letter queues that the shop had before.
type oldQueues struct{}

func (oldQueues) List(context.Context) ([]operations.DeadLetterQueue, error) {
	return []operations.DeadLetterQueue{
		{Queue: "invoices_error", Kind: "quorum", Ready: 14, Why: "its name is that of a dead-letter queue"},
		{Queue: "mail_error", Why: "its name is that of a dead-letter queue",
			Follow: &operations.Follow{Then: "park", State: "missing", Why: "it does not exist"}},
		{Queue: "news_error", Kind: "quorum", Ready: 2,
			Follow: &operations.Follow{Then: "retry", Queue: "news", By: "ann", State: operations.Following}},
		{Queue: "orders.dlq", Kind: "classic", Ready: 5104, WorkQueues: []string{"orders.created", "orders.paid"}, Why: "other queues dead-letter to it"},
	}, nil
}

func (o oldQueues) Look(ctx context.Context, queue string) (operations.DeadLetterQueue, error) {
	all, err := o.List(ctx)
	return all[len(all)-1], err
}

func (oldQueues) Sample(context.Context, retry.Adoption, int) ([]*store.Record, error) {
	var all []*store.Record
	for i := range 40 {
		r := Message(i, store.Parked, time.Now())
		r.Queue, r.Notes = []string{"orders.created", "orders.paid", ""}[i%3], nil
		all = append(all, r)
	}
	return all, nil
}

func (oldQueues) Open(context.Context, retry.Adoption) (operations.Source, error) {
	return nil, errors.New("RabbitMQ is not there")
}

func (oldQueues) Target(context.Context, string) (operations.Target, error) {
	return operations.Target{Room: -1, Warnings: []string{"in the queue they expire after 24h0m0s, counted from when they are put back; RabbitMQ then drops them"}}, nil
}

func (oldQueues) OpenTarget(context.Context, string) (operations.Sink, error) {
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
	page.Restorable = 30 * 24 * time.Hour
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

func (s *Shop) Search(
	ctx context.Context, c auth.Caller, q, after string, limit int, columns ...string,
) (inspect.Page, error) {
	p, err := gated(ctx, s, func() (inspect.Page, error) {
		return s.Inspector.Search(ctx, c, q, after, limit, columns...)
	})
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

func (s *Shop) Groups(ctx context.Context, c auth.Caller, q, of, after string, n int) (inspect.GroupPage, error) {
	return gated(ctx, s, func() (inspect.GroupPage, error) { return s.Inspector.Groups(ctx, c, q, of, after, n) })
}

func (s *Shop) Errors(ctx context.Context, c auth.Caller, q, of, after string, n int) (inspect.GroupPage, error) {
	return gated(ctx, s, func() (inspect.GroupPage, error) { return s.Inspector.Errors(ctx, c, q, of, after, n) })
}

func (s *Shop) Group(ctx context.Context, c auth.Caller, id string) (inspect.GroupDetail, error) {
	return gated(ctx, s, func() (inspect.GroupDetail, error) { return s.Inspector.Group(ctx, c, id) })
}

func (s *Shop) Queue(ctx context.Context, c auth.Caller, name string) (inspect.QueueDetail, error) {
	return gated(ctx, s, func() (inspect.QueueDetail, error) { return s.Inspector.Queue(ctx, c, name) })
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

func (s *Shop) AuditLog(
	ctx context.Context, c auth.Caller, f inspect.AuditFilter, after string, limit int,
) ([]audit.Entry, string, error) {
	if err := s.gate(ctx); err != nil {
		return nil, "", err
	}
	return s.Inspector.AuditLog(ctx, c, f, after, limit)
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

// troubles are the shop's.
var troubles = []struct{ queue, reason, error, kind string }{
	{"orders.capture", wire.ReasonRejected, "payment gateway: timeout after %ds (POST https://pay.example/v2/capture)", "order.created"},
	{"orders.capture", wire.ReasonRejected, "insufficient stock for SKU 882%02d: 2 wanted, 0 left", "order.created"},
	{"mail.send", wire.ReasonRejected, "smtp: 421 4.7.0 Too many connections from your IP (%d)", "mail.confirmation"},
	{"stock.sync", wire.ReasonDeliveryLimit, "", "stock.changed"},
	{"webhooks", wire.ReasonRejected, "HTTP 503 from https://hooks.acme.example/redrive after %d ms", ""},
	{"search.index", wire.ReasonExpired, "", "product.changed"},
}

// Body is a shop.Order in Protobuf.
func Body(id int64, customer string, cents uint64) []byte {
	var item []byte
	item = protowire.AppendString(protowire.AppendTag(item, 1, protowire.BytesType), "lamp")
	item = protowire.AppendVarint(protowire.AppendTag(item, 2, protowire.VarintType), 2)
	item = protowire.AppendVarint(protowire.AppendTag(item, 3, protowire.VarintType), cents)
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(id))
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), customer)
	return protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), item)
}

// Message is the i-th of the shop, failed i minutes or so before now.
func Message(i int, state store.State, now time.Time) *store.Record {
	t := troubles[i%len(troubles)]
	failed := now.Add(-time.Duration(i*i+40*i+5) * time.Second)
	attempt := 1 + i%5
	r := &store.Record{ID: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, "message ", i)), Queue: t.queue, State: state, Failures: attempt, Reason: t.reason, Error: t.error, Policy: "rest",
		FirstFailed: failed.Add(-time.Duration(1<<attempt) * time.Second), FailedAt: failed, Proven: true}
	if t.error != "" {
		r.Error = fmt.Sprintf(t.error, 5+i%90)
	}
	switch state {
	case store.Waiting:
		r.Due = now.Add(time.Duration(20+i*i*7%14000) * time.Second)
	case store.Parked:
		r.Due, r.Failures, r.ParkedFor = failed, 5, "its attempts are used up (5 of 5)"
	case store.Discarded:
		r.Due = now.Add(6 * 24 * time.Hour)
	}
	r.Message = wire.Message{Exchange: "shop", RoutingKey: t.queue, Type: t.kind, ContentType: "application/json", DeliveryMode: 2, MessageID: fmt.Sprintf("ord-%06d", 480000+i), AppID: "checkout", Timestamp: failed.Truncate(time.Second),
		Headers: amqp.Table{"tenant": []string{"acme", "globex"}[i%2], "priority": int32(5), "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			"x-death": []any{amqp.Table{"count": int64(1), "exchange": "shop", "queue": t.queue, "reason": t.reason, "routing-keys": []any{t.queue}}}},
		Body: fmt.Appendf(nil, `{"order": {"number": %d, "customer": "Zoë Křížová", "total": 1299.00}, "items": [{"sku": "882%02d", "count": 2}], "gift": false, "note": null}`, 9007199254740993+int64(i), i)}
	if t.queue == "orders.capture" {
		r.Policy, r.Message.ContentType = "orders", "text/plain"
		r.Message.Body = []byte(base64.StdEncoding.EncodeToString(Body(9007199254740993+int64(i), "Katherine Johnson", uint64(129900+i))))
	}
	return r
}

// traffic is what the shop's queues tell.
func traffic(now time.Time) *Told {
	there := func(consumers, ready, unacked int) inspect.AtBroker {
		return inspect.AtBroker{Exists: true, Kind: "quorum", Consumers: consumers, Ready: ready, Unacked: &unacked}
	}
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	t := &Told{
		At: map[string]inspect.AtBroker{"orders.capture": there(8, 4213, 80), "mail.send": there(2, 310, 40), "stock.sync": there(4, 0, 3), "search.index": there(0, 12, 0)},
		Minutes: map[string]inspect.Flow{"orders.capture": {Failed: 412, Retried: 388, Parked: 9}, "mail.send": {Failed: 61},
			"stock.sync": {Failed: 18, Retried: 22}, "webhooks": {Failed: 4, Parked: 4}},
		Throttles: map[string]*inspect.ThrottleView{
			"stock.sync": {State: "open", Why: "38 of 40 retries failed again within 1m", Since: ago(3 * time.Minute), Until: ago(-40 * time.Second), FailedShare: 0.95,
				Finished: 40, InFlight: 3, MaxInFlight: 50},
			"search.index": {State: "closed", NoConsumer: ago(3 * time.Minute)},
		},
		Returns:    map[string]string{"webhooks": "RabbitMQ has no such queue"},
		Conditions: []condition.Condition{{Kind: condition.Unreachable, Queue: "webhooks", Text: "RabbitMQ has no such queue"}},
		Notices:    []string{"messages in RabbitMQ's queue redrive.quarantine that cannot be parked: 2"},
	}
	for i, silent := range []time.Duration{0, 0, 4 * time.Second} { // the last one is not heard of
		t.Replicas = append(t.Replicas, inspect.Replica{ID: fmt.Sprintf("redrive-%d-5f1c9a3e", i), Address: fmt.Sprintf("redrive-%d.redrive.shop.svc.cluster.local:8250", i), Version: "1.4.0",
			Since: *ago(51 * time.Hour), Beat: *ago(silent), Ready: true, Leads: i == 0, Self: i == 1})
	}
	t.Replicas[1].Conditions = t.Conditions // of single queues, which leave it ready
	for i := range 60 {
		wobble := int64(i * 37 % 17)
		f := inspect.Flow{Failed: 22 + wobble, Retried: 20 + wobble/2, Parked: wobble / 7}
		if i > 22 && i < 41 {
			f.Failed, f.Parked = f.Failed+380-int64(2*(i-31)*(i-31))+9*wobble, f.Parked+wobble/2
		}
		if i > 27 && i < 52 {
			f.Retried += 330 - int64(2*(i-39)*(i-39)) + 7*wobble
		}
		t.Flows = append(t.Flows, f)
	}
	return t
}

// Stocked is a shop on a bad day: messages of each kind in each state, a paused queue, a breaker, a
// note, an operation that runs, one that is paused and one of which all is done where it runs.
func Stocked(c inspect.Config) *Shop {
	if c.Checkup == nil {
		at := time.Now().Add(-4 * time.Minute)
		c.Checkup = func(string) inspect.Checkup {
			return inspect.Checkup{At: &at, Findings: []inspect.Finding{{Check: "at-least-once", Status: "warning",
				Queue: "orders.capture", Title: "dead-lettering is at-least-once", What: "its dead-lettering is at-most-once",
				Remedy: "Make it at-least-once:", Commands: []string{"redrive enroll --at-least-once orders.capture"}}}}
		}
	}
	now, ctx := time.Now(), context.Background()
	kept := memstore.New()
	s := New(kept, traffic(now), c)
	add := func(all ...*store.Record) { must(0, kept.Add(ctx, all)) }
	var all []*store.Record
	for i := range 72 {
		state := store.Parked
		if i/6%3 == 1 {
			state = store.Waiting
		}
		all = append(all, Message(i, state, now))
	}
	for i := 80; i < 86; i++ {
		all = append(all, Message(i, store.Discarded, now))
	}
	all[0].FirstFailed = all[0].FailedAt.Add(-404 * time.Second)
	add(all...)
	id := func(i int) string { return all[i].ID.String() }
	s.Has.Order, s.Has.Mail, s.Has.Waiting, s.Has.IDs = id(0), id(2), id(6), []string{id(0), id(2), id(6), id(72)}
	returns := func(r *store.Record, at time.Time) {
		add(r)
		claims := must(kept.Claim(ctx, store.Lane{Queue: r.Queue}, at, 1, 1<<20))
		must(kept.Finish(ctx, []store.Outcome{{Claim: claims[0], At: at}}))
	}
	for i := 90; i < 96; i++ { // returned, by now
		r := Message(i, store.Waiting, now)
		r.Due = now.Add(-time.Hour)
		returns(r, now.Add(-time.Duration(i)*time.Second))
	}
	failed := all[0].FirstFailed // what the order went through
	for attempt, wait := 1, 10*time.Second; attempt < 5; attempt, wait = attempt+1, 3*wait {
		r := Message(0, store.Waiting, now)
		r.Failures, r.FailedAt, r.Due = attempt, failed, failed.Add(wait)
		returns(r, r.Due)
		failed = r.Due.Add(time.Second)
	}
	must(0, s.PauseQueue(ctx, Root, "mail.send", "the provider blocks us until noon"))
	s.Has.Group = must(s.Groups(ctx, Root, "queue:orders.* state:parked", "", "", 0)).Groups[0].ID
	must(0, s.NoteGroup(ctx, Root, s.Has.Group, "gateway incident INC-2231, Pavel is on it"))
	s.Has.Plan, s.Has.Blocked = s.Planned("state:parked queue:orders.*"), s.Planned("state:parked queue:webhooks")
	start := func(query string, how operations.Start) string {
		return must(s.Start(ctx, Root, s.Planned(query), how)).ID
	}
	start("state:parked queue:stock.sync attempt:5", operations.Start{Reason: "the warehouse is back"})
	s.Has.Paused = start("state:parked queue:search.index", operations.Start{Rate: 0.01, Reason: "as slowly as can be"})
	must(s.Order(ctx, Root, s.Has.Paused, operations.Pause))
	s.Has.Running = start("state:parked queue:orders.* error:timeout age:>8m", operations.Start{Rate: 0.5, Reason: "gateway is back (INC-2231)"})
	return s
}

// Planned is a plan to replay what a query finds.
func (s *Shop) Planned(query string) string {
	return must(s.Plan(context.Background(), Root, operations.PlanRequest{Verb: actions.Replay, Query: query, Reason: "gateway is back (INC-2231)"})).ID
}
