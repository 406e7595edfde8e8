package page_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// stocked is a shop on a bad day: messages of each kind in each state, a hold, a
// note, an operation that runs, one that is paused and one that is finished.
type stocked struct {
	*scene
	order   string // a parked message whose body is Protobuf in base64
	waiting string
	running string // operations
	paused  string
	plan    string // not started
	blocked string // … which cannot be
}

// trouble is one of the shop's.
type trouble struct{ queue, reason, error, kind string }

var troubles = []trouble{
	{"orders.capture", wire.ReasonRejected, "payment gateway: timeout after %ds (POST https://pay.example/v2/capture)", "order.created"},
	{"orders.capture", wire.ReasonRejected, "insufficient stock for SKU 882%02d: 2 wanted, 0 left", "order.created"},
	{"mail.send", wire.ReasonRejected, "smtp: 421 4.7.0 Too many connections from your IP (%d)", "mail.confirmation"},
	{"stock.sync", wire.ReasonDeliveryLimit, "", "stock.changed"},
	{"webhooks", wire.ReasonRejected, "HTTP 503 from https://hooks.acme.example/redrive after %d ms", ""},
	{"search.index", wire.ReasonExpired, "", "product.changed"},
}

// order is a shop.Order.
func order(id int64, customer string, cents uint64) []byte {
	var item []byte
	item = protowire.AppendString(protowire.AppendTag(item, 1, protowire.BytesType), "lamp")
	item = protowire.AppendVarint(protowire.AppendTag(item, 2, protowire.VarintType), 2)
	item = protowire.AppendVarint(protowire.AppendTag(item, 3, protowire.VarintType), cents)
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(id))
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), customer)
	return protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), item)
}

// message is the i-th of the shop, failed i minutes or so before now.
func message(i int, state store.State, now time.Time) *store.Record {
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
		r.Message.Body = []byte(base64.StdEncoding.EncodeToString(order(9007199254740993+int64(i), "Katherine Johnson", uint64(129900+i))))
	}
	return r
}

// traffic is what the shop's queues would tell.
func traffic() *told {
	there := func(consumers, ready, unacked int) inspect.AtBroker {
		return inspect.AtBroker{Exists: true, Kind: "quorum", Consumers: consumers, Ready: ready, Unacked: &unacked}
	}
	t := &told{
		enrolled: []string{"loyalty.points", "mail.send", "orders.capture", "search.index", "stock.sync", "webhooks"},
		findings: []inspect.Finding{{Check: "alarms", Status: "ok", What: "alarms of RabbitMQ's nodes"}, {Check: "permissions", Status: "unknown", What: "not looked at: the rights of the service's user", Why: "the user of broker.management needs the tag administrator in RabbitMQ"},
			{Check: "consumers", Status: "wrong", Queue: "search.index", What: "it has no consumers", Why: "Retried messages stay in the queue unnoticed.", Remedy: "Start its consumers.", Commands: []string{"redrive queues"}}},
		queues: map[string]inspect.AtBroker{"orders.capture": there(8, 4213, 80), "mail.send": there(2, 310, 40), "stock.sync": there(4, 0, 3), "search.index": there(0, 12, 0), "loyalty.points": there(3, 0, 0)},
		minutes: map[string]inspect.Flow{"orders.capture": {Failed: 412, Retried: 388, Parked: 9}, "mail.send": {Failed: 61},
			"stock.sync": {Failed: 18, Retried: 22}, "webhooks": {Failed: 4, Parked: 4}},
		returns:  map[string]string{"webhooks": "RabbitMQ has no such queue"},
		problems: []string{`retries of the queue "webhooks" fail: RabbitMQ has no such queue`},
		notices:  []string{"messages that RabbitMQ failed to deliver, in its queue redrive.quarantine: 2 (look at them on RabbitMQ's management page, then purge the queue)"},
	}
	for i := range 60 {
		wobble := int64(i * 37 % 17)
		f := inspect.Flow{Failed: 22 + wobble, Retried: 20 + wobble/2, Parked: wobble / 7}
		if i > 22 && i < 41 {
			f.Failed, f.Parked = f.Failed+380-int64(2*(i-31)*(i-31))+9*wobble, f.Parked+wobble/2
		}
		if i > 27 && i < 52 {
			f.Retried += 330 - int64(2*(i-39)*(i-39)) + 7*wobble
		}
		t.hour = append(t.hour, f)
	}
	return t
}

// newShop stocks a scene. What returns, returns to a queue that is there.
func newShop(t testing.TB, o options) *stocked {
	t.Helper()
	if o.told == nil {
		o.told = traffic()
	}
	s := &stocked{scene: newScene(t, o)}
	s.stock(t)
	return s
}

func (s *stocked) stock(t testing.TB) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, now := t.Context(), time.Now()
	var all []*store.Record
	for i := range 72 {
		state := store.Parked
		if i/6%3 == 1 {
			state = store.Waiting
		}
		all = append(all, message(i, state, now))
	}
	for i := 80; i < 86; i++ {
		all = append(all, message(i, store.Discarded, now))
	}
	all[0].FirstFailed = all[0].FailedAt.Add(-404 * time.Second)
	s.add(t, all...)
	s.order, s.waiting = all[0].ID.String(), all[6].ID.String()
	returns := func(r *store.Record, at time.Time) {
		s.add(t, r)
		claims, err := s.store.Claim(ctx, store.Lane{Queue: r.Queue}, at, 1, 1<<20)
		must(err)
		_, err = s.store.Finish(ctx, []store.Outcome{{Claim: claims[0], At: at}})
		must(err)
	}
	for i := 90; i < 96; i++ { // returned, by now
		r := message(i, store.Waiting, now)
		r.Due = now.Add(-time.Hour)
		returns(r, now.Add(-time.Duration(i)*time.Second))
	}
	failed := all[0].FailedAt.Add(-404 * time.Second) // what the order went through
	for attempt, wait := 1, 10*time.Second; attempt < 5; attempt, wait = attempt+1, 3*wait {
		r := message(0, store.Waiting, now)
		r.Failures, r.FailedAt, r.Due = attempt, failed, failed.Add(wait)
		returns(r, r.Due)
		failed = r.Due.Add(time.Second)
	}
	must(s.PauseQueue(ctx, root, "mail.send", "the provider blocks us until noon"))
	groups, err := s.Groups(ctx, root, "queue:orders.* state:parked", "", 0)
	must(err)
	must(s.NoteGroup(ctx, root, groups.Groups[0].ID, "gateway incident INC-2231, Pavel is on it"))
	s.plan = s.planned(t, "state:parked queue:orders.*")
	s.blocked = s.planned(t, "state:parked queue:webhooks")
	start := func(id string, how operations.Start) string {
		o, err := s.Start(context.WithoutCancel(ctx), root, id, how)
		must(err)
		return o.ID
	}
	start(s.planned(t, "state:parked queue:stock.sync attempt:5"), operations.Start{Reason: "the warehouse is back"})
	s.paused = start(s.planned(t, "state:parked queue:search.index"), operations.Start{Rate: 0.01, Reason: "as slowly as can be"})
	_, err = s.Order(ctx, root, s.paused, operations.Pause)
	must(err)
	s.running = start(s.planned(t, `state:parked queue:orders.* error:timeout age:>8m`), operations.Start{Rate: 0.5, Reason: "gateway is back (INC-2231)"})
}

func (s *stocked) planned(t testing.TB, query string) string {
	t.Helper()
	p, err := s.Plan(t.Context(), root, operations.PlanRequest{Verb: actions.Replay, Query: query, Reason: "gateway is back (INC-2231)"})
	if err != nil {
		t.Fatal(err)
	}
	return p.ID
}
