package retry

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// follows returns an intake of a followed queue whose connection has just begun. What is to wait in RabbitMQ
// waits in the store.
func follows(t *testing.T, s store.Store, f Following) *Intake {
	t.Helper()
	if f.Leads == nil {
		f.Leads = func() (string, string) { return "", "none leads there" }
	}
	levels, err := delay.NewLevels(delay.Quorum, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	rules := Rules{Policies: policy.Set{{
		Name: "p", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Second),
	}}, Ways: map[string]delay.Way{"p": levels}}
	in := NewFollowedIntake(s, NewInForce(rules), nil, f, nil, func(Event) {})
	if err := in.Connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	return in
}

func keptIn(t *testing.T, s store.Store) (all []*store.Record) {
	t.Helper()
	if err := s.Scan(context.Background(), store.Range{Body: true}, func(l store.Listed) (bool, error) {
		all = append(all, l.Record)
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// Only messages of the queue that the config names, or that alone dead-letters there, are retried. One that claims
// another queue is parked with the reason, and that queue gets no retry exchange.
func TestWhereAFollowedMessageFailed(t *testing.T) {
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	dead := func(queue string) amqp.Table { return amqp.Table{"x-death": []any{death(queue, "rejected", 7, at)}} }
	retried := func(h amqp.Table, queue string) amqp.Table {
		h[wire.HeaderQueue], h[wire.HeaderAttempt] = queue, int64(1)
		h[wire.HeaderExchange], h[wire.HeaderRoutingKey] = "shop", "first"
		return h
	}
	byUs := dead("orders")
	byUs["x-death"].([]any)[0].(amqp.Table)["exchange"] = wire.RetryExchange("orders")
	const parks = `it landed in "dlq", and what lands there is parked`
	const mail = `it landed in "dlq", from where messages of "orders" are retried, and says that it failed in "mail"`
	named := Following{Queue: "orders", Retry: true}
	leads := Following{Retry: true, Leads: func() (string, string) { return "orders", "" }}
	for name, c := range map[string]struct {
		f         Following
		headers   amqp.Table
		duplicate string
		want      string // state, queue, proven, failures, reason, exchange, routing key: why
	}{
		"dead letter": {f: named, headers: dead("orders"),
			want: "waiting orders true 1 rejected shop order.created"},
		"the only one leads there": {f: leads, headers: dead("orders"),
			want: "waiting orders true 1 rejected shop order.created"},
		"a framework's":            {f: named, want: "waiting orders true 1 reported dlx key"},
		"a framework's, one leads": {f: leads, want: "waiting orders true 1 reported dlx key"},
		"one says where": {f: named, headers: amqp.Table{"NServiceBus.FailedQ": "orders"},
			want: "waiting orders true 1 reported dlx key"},
		"retried before": {f: named, headers: retried(byUs, "orders"),
			want: "waiting orders true 2 rejected shop first"},
		"a framework moved it": {f: named, headers: retried(amqp.Table{"MT-Reason": "fault"}, "orders"),
			want: "waiting orders true 2 reported shop first"},
		"headers of another queue": {f: named, headers: retried(dead("orders"), "mail"),
			want: "waiting orders true 1 rejected shop order.created"},
		"another queue": {f: named, headers: dead("mail"),
			want: `parked mail false 7 rejected shop order.created: ` + mail},
		"another, one leads": {f: leads, headers: dead("mail"),
			want: `parked mail false 7 rejected shop order.created: ` + mail},
		"none is known": {f: Following{Retry: true}, headers: dead("orders"),
			want: `parked orders false 7 rejected shop order.created: it landed in "dlq", and none leads there`},
		"then park": {f: Following{Queue: "orders"}, headers: dead("orders"),
			want: `parked orders false 7 rejected shop order.created: ` + parks},
		"then park, says nothing": {f: Following{Queue: "orders"},
			want: `parked orders false 1 reported dlx key: ` + parks},
		"our own queue": {f: named, headers: dead("redrive.intake"),
			want: `parked redrive.intake false 7 rejected shop order.created: ` +
				`it failed in "redrive.intake", which is one of Redrive's own queues`},
		"no queue's name": {f: named, headers: amqp.Table{"NServiceBus.FailedQ": "\xff"},
			want: `parked  false 1 reported dlx key: ` +
				`it names the queue "\xff", which is not valid UTF-8, so RabbitMQ has no such queue`},
		"a name twice": {f: named, headers: dead("orders"), duplicate: "x-death comes twice",
			want: "parked  false 7   : x-death comes twice, so the queue it failed in is not proven"},
		"no table": {f: named, headers: amqp.Table{"x-death": []any{"orders"}},
			want: "waiting orders true 1 reported dlx key"},
		"a table as the queue": {f: named, headers: amqp.Table{"x-death": []any{amqp.Table{"queue": amqp.Table{}}}},
			want: "waiting orders true 1 reported dlx key"},
	} {
		s := memstore.New()
		c.f.From = "dlq"
		m := wire.Message{Exchange: "dlx", RoutingKey: "key", Headers: maps.Clone(c.headers), Body: []byte(name)}
		if m.Headers[wire.HeaderAttempt] != nil {
			m.Headers[wire.HeaderID] = headers.NewID(&m).String()
		}
		batch := []wire.Delivery{{Message: m, DuplicateHeader: c.duplicate}}
		if err := follows(t, s, c.f).Handle(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		r := keptIn(t, s)[0]
		state := map[store.State]string{store.Waiting: "waiting", store.Parked: "parked"}[r.State]
		got := fmt.Sprint(state, " ", r.Queue, " ", r.Proven, " ", r.Failures, " ", r.Reason,
			" ", r.Message.Exchange, " ", r.Message.RoutingKey)
		if r.ParkedFor != "" {
			got += ": " + r.ParkedFor
		}
		if got != c.want {
			t.Errorf("%s: it is\n %s, want\n %s", name, got, c.want)
		}
		if r.ID.String() == m.Headers[wire.HeaderID] != strings.Contains(c.want, " 2 ") {
			t.Errorf("%s: its id is %s", name, r.ID)
		}
		if c.headers["x-death"] != nil && r.Reason == "rejected" && !r.FailedAt.Equal(at) {
			t.Errorf("%s: it failed at %s", name, r.FailedAt)
		}
	}
}

// What a consumer annotates on a message that it rejects counts as in redrive.intake. Without it, the latest known error
// is that of the attempt before.
func TestAnnotationsOfAFollowedMessage(t *testing.T) {
	for name, c := range map[string]struct {
		through string // "": RabbitMQ dead-letters it for the first time
		reason  string
		adds    amqp.Table
		want    string // state, error: why parked, or whether its own delay counts
	}{
		"error": {reason: "rejected", adds: amqp.Table{wire.HeaderRejectReason: "no stock"},
			want: "waiting no stock: false"},
		"delay": {reason: "rejected", adds: amqp.Table{wire.HeaderDelay: int64(300)}, want: "waiting : true"},
		"park": {reason: "rejected", adds: amqp.Table{wire.HeaderPark: "bad IBAN"},
			want: "parked : its consumer parked it: bad IBAN"},
		"expired": {reason: "expired", adds: amqp.Table{wire.HeaderPark: "bad IBAN"},
			want: `parked : its reason is expired, which policy "p" does not retry`},
		"retried": {through: wire.RetryExchange("orders"), reason: "rejected",
			adds: amqp.Table{wire.HeaderError: "of before"}, want: "waiting of before: false"},
		"retried, a framework's": {through: wire.RetryExchange("orders"), reason: "rejected",
			adds: amqp.Table{wire.HeaderError: "no stock", "x-exception-message": "no stock"},
			want: "waiting no stock: false"},
		"retried, annotated": {through: wire.RetryExchange("orders"), reason: "rejected",
			adds: amqp.Table{wire.HeaderError: "of before", wire.HeaderRejectReason: "new"},
			want: "waiting new: false"},
		"a framework's": {adds: amqp.Table{wire.HeaderDelay: int64(300), "x-error": "no stock"},
			want: "waiting no stock: true"},
	} {
		s := memstore.New()
		now := time.Now()
		h := maps.Clone(c.adds)
		if c.reason != "" {
			one := death("orders", c.reason, 1, now.Add(-time.Hour))
			if c.through != "" {
				one["exchange"] = c.through
			}
			h["x-death"] = []any{one}
		}
		m := wire.Message{Exchange: "dlx", RoutingKey: "key", Headers: h, Body: []byte(name)}
		in := follows(t, s, Following{From: "dlq", Queue: "orders", Retry: true})
		if err := in.Handle(t.Context(), []wire.Delivery{{Message: m}}); err != nil {
			t.Fatal(err)
		}
		r := keptIn(t, s)[0]
		got := fmt.Sprintf("waiting %s: %t", r.Error, r.Due.Sub(now) < 500*time.Millisecond) // with jitter
		if r.State == store.Parked {
			got = fmt.Sprintf("parked %s: %s", r.Error, r.ParkedFor)
		}
		if got != c.want {
			t.Errorf("%s: it is %q, want %q", name, got, c.want)
		}
	}
}

// A message that is delivered twice, because the service ended before it acknowledged it, has one id; two with the same
// bytes have two, in one queue or in two.
func TestAFollowedMessageThatComesTwiceHasOneID(t *testing.T) {
	s := memstore.New()
	ids := func() []string {
		var all []string
		for _, r := range keptIn(t, s) {
			all = append(all, r.ID.String())
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	handle := func(from string, redelivered ...bool) {
		t.Helper()
		var batch []wire.Delivery
		for _, again := range redelivered {
			deaths := []any{death("orders", "rejected", 1, time.Unix(1e9, 0))}
			m := wire.Message{Exchange: "dlx", Headers: amqp.Table{"x-death": deaths}}
			batch = append(batch, wire.Delivery{Message: m, Redelivered: again})
		}
		if err := follows(t, s, Following{From: from, Queue: "orders"}).Handle(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	handle("a.dlq", false, false)
	if n := len(ids()); n != 2 {
		t.Errorf("two with the same bytes have %d ids", n)
	}
	handle("b.dlq", true) // it was delivered before, and not stored
	of := ids()
	if len(of) != 3 {
		t.Errorf("with a copy in another queue there are %d ids", len(of))
	}
	handle("a.dlq", true, true)
	handle("b.dlq", true)
	if again := ids(); !slices.Equal(again, of) {
		t.Errorf("those that come again have other ids: %v, not %v", again, of)
	}
	handle("a.dlq", false)
	if n := len(ids()); n != 4 {
		t.Errorf("with a new one there are %d ids", n)
	}
}

// EasyNetQ has the headers of a delivery in its envelope: attempts count on there, so that what always fails is
// parked after the last. A retry sends the message without the envelope.
func TestAttemptsCountOnInAnEnvelope(t *testing.T) {
	for version, text := range map[string]string{"7": `{"$type":"System.Byte[], mscorlib","$value":%q}`, "8": `{"Type":14,"Value":%q}`} {
		number := map[string]string{"7": "%d", "8": `{"Type":8,"Value":%d}`}[version]
		var came amqp.Table
		id := ""
		for attempt := 1; attempt <= 3; attempt++ {
			var all []string
			for name, v := range came {
				switch v := v.(type) {
				case string:
					all = append(all, fmt.Sprintf("%q:"+text, name, base64.StdEncoding.EncodeToString([]byte(v))))
				case int64:
					all = append(all, fmt.Sprintf("%q:"+number, name, v))
				}
			}
			m := errorOf(`{"RoutingKey":"order.created","Exchange":"shop","Queue":"orders","Exception":"System.X: no stock",
				"Message":"{\"Id\":7}","DateTime":"2026-11-20T10:00:00Z","BasicProperties":{"Type":"Order","Headers":{` + strings.Join(all, ",") + `}}}`)
			s := memstore.New()
			f := Following{From: "EasyNetQ_Default_Error_Queue", Queue: "orders", Retry: true}
			if err := follows(t, s, f).Handle(t.Context(), []wire.Delivery{{Message: m}}); err != nil {
				t.Fatal(err)
			}
			r := keptIn(t, s)[0]
			parked := r.State == store.Parked
			if r.Failures != attempt || parked != (attempt == 3) || r.Error != "System.X: no stock" || r.Format != "easynetq" || len(r.Notes) > 0 {
				t.Fatalf("version %s, attempt %d: %+v", version, attempt, r)
			}
			if id != "" && id != r.ID.String() {
				t.Errorf("version %s: its id was %s, and is %s", version, id, r.ID)
			}
			var sent *wire.Message
			if id, sent = withHistory(r); string(sent.Body) != `{"Id":7}` || sent.Type != "Order" {
				t.Errorf("version %s: sent is %+v", version, sent)
			}
			came = sent.Headers
		}
	}
}
