package retry_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// What becomes of a failed message, as a record, and what log and metrics hear of it.
func TestVerdicts(t *testing.T) {
	policies := policy.Set{
		{Name: "audited", Queues: []string{"audited"}, Attempts: 1, Backoff: policy.Fixed(time.Second), Exhausted: policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{Exchange: "audit", RoutingKey: "failed"}}},
		{Name: "dropped", Queues: []string{"dropped"}, Attempts: 1, Backoff: policy.Fixed(time.Second), Exhausted: policy.Exhausted{Action: policy.Discard}},
		{Name: "q", Queues: []string{"q"}, Attempts: 3, Backoff: policy.Fixed(time.Second)},
	}
	user := amqp.Table{wire.HeaderUserID: "shop", wire.HeaderExchange: "first", wire.HeaderRoutingKey: "eu"}
	through := func(exchange string, d wire.Delivery) wire.Delivery {
		d.Message.Headers["x-death"].([]any)[0].(amqp.Table)["exchange"] = exchange
		for k, v := range user {
			d.Message.Headers[k] = v
		}
		return d
	}
	deepHeader, duplicateHeader := deadLetter("q", "x"), deadLetter("q", "x")
	deepHeader.CannotRepublish, duplicateHeader.DuplicateHeader = "a header of no known type", "x-death stands twice"
	// RabbitMQ writes the head entry; a publisher can have written those after it.
	failedTwice := deadLetter("q", "x")
	failedTwice.Message.Headers["x-death"] = append(failedTwice.Message.Headers["x-death"].([]any),
		amqp.Table{"queue": "dropped", "reason": "expired", "exchange": "forged", "routing-keys": []any{"forged"}, "count": int64(1)})
	published := deadLetter("q", "x")
	published.Message.Exchange, published.Message.RoutingKey = "", "q"
	for name, c := range map[string]struct {
		of    wire.Delivery
		event retry.Kind
		want  func(*store.Record) bool
	}{
		"retried": {deadLetter("q", "x"), retry.Waiting, func(r *store.Record) bool {
			return r.State == store.Waiting && r.Proven && r.Message.Exchange == "shop" && r.Message.RoutingKey == "key" && r.Policy == "q"
		}},
		"forwarded": {deadLetter("audited", "x"), retry.Waiting, func(r *store.Record) bool {
			return r.State == store.Waiting && r.Forward != nil && *r.Forward == store.Destination{Exchange: "audit", RoutingKey: "failed"}
		}},
		"discarded":             {deadLetter("dropped", "x"), retry.Discarded, nil},
		"cannot be republished": {deepHeader, retry.Parked, func(r *store.Record) bool { return r.ParkedFor == deepHeader.CannotRepublish && r.Queue == "q" }},
		"headers twice": {duplicateHeader, retry.Parked, func(r *store.Record) bool {
			return strings.Contains(r.ParkedFor, duplicateHeader.DuplicateHeader) && r.Queue == "" && !r.Proven
		}},
		"failed in two queues": {failedTwice, retry.Waiting, func(r *store.Record) bool {
			return r.Queue == "q" && r.Reason == "rejected" && r.Message.Exchange == "shop" && r.Message.RoutingKey == "key"
		}},
		"published to the intake": {published, retry.Parked, func(r *store.Record) bool {
			return strings.Contains(r.ParkedFor, "not dead-lettered or reported") && r.Queue == "" && !r.Proven
		}},
		"our own queue": {deadLetter(wire.QueueIntake, "x"), retry.Parked, func(r *store.Record) bool { return strings.Contains(r.ParkedFor, "own") }},
		"no policy":     {deadLetter("others", "x"), retry.Parked, func(r *store.Record) bool { return strings.Contains(r.ParkedFor, "no policy") }},
		"reported": {wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: "q", Headers: amqp.Table{wire.HeaderError: "no stock"}}}, retry.Waiting, func(r *store.Record) bool {
			return r.Error == "no stock" && !r.Proven && r.Reason == wire.ReasonReported
		}},
		// Our own headers are believed where the broker says that we published it last.
		"a client's headers": {through("shop", deadLetter("q", "x")), retry.Waiting, func(r *store.Record) bool {
			return r.Message.UserID == "" && r.Message.Exchange == "shop" && r.Message.RoutingKey == "key"
		}},
		"retried before": {through(wire.RetryExchange("q"), deadLetter("q", "x")), retry.Waiting, func(r *store.Record) bool {
			return r.Message.UserID == "shop" && r.Message.Exchange == "first" && r.Message.RoutingKey == "eu"
		}},
		"waited in RabbitMQ before": {through(wire.ExchangeDue, deadLetter("q", "x")), retry.Waiting, func(r *store.Record) bool {
			return r.Message.UserID == "shop" && r.Message.Exchange == "first" && r.Message.RoutingKey == "eu"
		}},
	} {
		s, events := memstore.New(), []retry.Kind(nil)
		f := retry.NewIntake(s, retry.Rules{Policies: policies}, nil, func(e retry.Event) { events = append(events, e.Kind) })
		must(t, f.Handle(t.Context(), []wire.Delivery{c.of}))
		all := kept(t, s)
		if !slices.Equal(events, []retry.Kind{retry.Failed, c.event}) {
			t.Errorf("%s: events %v", name, events)
		}
		if c.want == nil {
			lines, err := s.Ledger(t.Context())
			must(t, err)
			if len(all) != 0 || len(lines) != 1 || lines[0].Sums[store.DiscardedAtOnce] != 1 {
				t.Errorf("%s: %d are kept, and the ledger has %+v", name, len(all), lines)
			}
			continue
		}
		if len(all) != 1 || !c.want(all[0].Record) {
			t.Errorf("%s: kept %+v", name, all)
		}
	}
}

// What is at the limits of what RabbitMQ writes is retried.
func TestOriginsAtTheLimits(t *testing.T) {
	longest, withoutKeys := deadLetter(strings.Repeat("q", 255), "x"), deadLetter("q", "x")
	withoutKeys.Message.Headers["x-death"].([]any)[0].(amqp.Table)["routing-keys"] = []any{}
	for name, c := range map[string]struct {
		of  wire.Delivery
		key string
	}{"the longest name": {longest, "key"}, "no routing keys": {withoutKeys, ""}} {
		s := memstore.New()
		must(t, newIntake(s).Handle(t.Context(), []wire.Delivery{c.of}))
		if r := kept(t, s)[0].Record; r.State != store.Waiting || r.Queue == "" || r.Message.RoutingKey != c.key {
			t.Errorf("%s: %v, %q with key %q, parked for %q", name, r.State, r.Queue, r.Message.RoutingKey, r.ParkedFor)
		}
	}
}
