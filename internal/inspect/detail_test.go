package inspect_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
)

func orders() policy.Policy {
	return policy.Policy{Name: "orders", Queues: []string{"orders*"}, Attempts: 4, Backoff: policy.Exponential(10*time.Second, 2, time.Minute), Jitter: policy.Fraction(0.2)}
}

func TestWhyThatDelay(t *testing.T) {
	s := memstore.New()
	c := inspect.New(inspect.Config{Store: s, Policies: func() policy.Set { return policy.Set{orders()} }})
	for i, step := range []struct {
		change func(*store.Record)
		delay  string
		why    []string
	}{
		{func(r *store.Record) {}, "19s", []string{`failure 2 of 4`, `policy "orders" waits 16s to 24s (20s with jitter ±20%)`}},
		{func(r *store.Record) { r.Due = r.FailedAt.Add(time.Hour) }, "1h", []string{"this differs because"}},
		{func(r *store.Record) { r.Failures = 0 }, "19s", []string{"a person replayed it"}},
		{func(r *store.Record) { r.Policy = "old" }, "19s", []string{`policy "old" decided, which is not in force any more`}},
		{func(r *store.Record) { r.Failures = 9 }, "19s", []string{"failure 9 of the 4"}},
		{func(r *store.Record) { r.Forward = &store.Destination{Exchange: "x"} }, "", []string{`it goes to exchange "x"`}},
		{func(r *store.Record) { r.State, r.ParkedFor = store.Parked, "tired" }, "", []string{"tired"}},
		{func(r *store.Record) { r.State = store.Discarded }, "", []string{"a person discarded it"}},
	} {
		r := record("orders.eu", store.Waiting, "x")
		r.Policy, r.Failures, r.FirstFailed, r.Due = "orders", 2, r.FailedAt.Add(-time.Hour), r.FailedAt.Add(19*time.Second)
		step.change(r)
		if err := s.Add(ctx, []*store.Record{r}); err != nil {
			t.Fatal(err)
		}
		m, err := c.Message(ctx, caller(auth.Viewer), r.ID.String(), inspect.ReadAs{})
		if err != nil {
			t.Fatal(err)
		}
		last := m.Timeline[len(m.Timeline)-1]
		if last.Delay != step.delay {
			t.Errorf("%d: waits %q, want %q", i, last.Delay, step.delay)
		}
		for _, why := range step.why {
			if !strings.Contains(last.Why, why) {
				t.Errorf("%d: because %q, not %q", i, last.Why, why)
			}
		}
		if r.Failures > 1 && (len(m.Timeline) != 2 || m.Timeline[0].Attempt != 1 || !m.Timeline[0].Failed.Equal(r.FirstFailed)) {
			t.Errorf("%d: the first failure is not there: %+v", i, m.Timeline)
		}
	}
}

func TestWhoseHeaders(t *testing.T) {
	s := memstore.New()
	c := inspect.New(inspect.Config{Store: s})
	r := record("orders", store.Parked, `{"a":1}`)
	r.Proven = true
	r.Message.Headers = amqp.Table{"x-death": []any{amqp.Table{"queue": "orders", "count": int64(9007199254740993), "raw": []byte{0xff}}},
		"x-first-death-queue": "orders", "x-redrive-attempt": int64(2), "tenant": "a<b>", "none": nil, "when": long}
	r.Message.DeliveryMode, r.Message.Priority, r.Message.Timestamp = 2, 3, long
	forged := record("orders", store.Parked, "")
	forged.Message.Headers = amqp.Table{"x-death": []any{}}
	if err := s.Add(ctx, []*store.Record{r, forged}); err != nil {
		t.Fatal(err)
	}
	m, err := c.Message(ctx, caller(auth.Viewer), r.ID.String(), inspect.ReadAs{})
	if err != nil {
		t.Fatal(err)
	}
	want := []inspect.Header{
		{Name: "none", Type: "void", From: "publisher"},
		{Name: "tenant", Type: "string", Value: "a<b>", From: "publisher"},
		{Name: "when", Type: "timestamp", Value: "2026-01-02T03:04:05Z", From: "publisher"},
		{Name: "x-death", Type: "array", Value: `[{"count":9007199254740993,"queue":"orders","raw":"/w=="}]`, From: "broker"},
		{Name: "x-first-death-queue", Type: "string", Value: "orders", From: "publisher"},
		{Name: "x-redrive-attempt", Type: "int64", Value: "2", From: "redrive"},
	}
	if !slices.Equal(m.Headers, want) {
		t.Errorf("headers are %+v", m.Headers)
	}
	props := []inspect.Property{{"delivery_mode", "2 (persistent)"}, {"priority", "3"}, {"timestamp", "2026-01-02T03:04:05Z"}}
	if !slices.Equal(m.Properties, props) {
		t.Errorf("properties are %+v", m.Properties)
	}
	if m.Body == nil || m.Body.Format != "json" {
		t.Errorf("the body is %+v", m.Body)
	}
	if m, err = c.Message(ctx, caller(auth.Viewer), forged.ID.String(), inspect.ReadAs{}); err != nil || m.Headers[0].From != "publisher" {
		t.Errorf("without proof x-death is %+v, %v", m.Headers, err)
	}
}

func TestMessagesThatShareAnID(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		a, b, c := record("orders", store.Parked, "a"), record("mail", store.Parked, "b"), record("secret", store.Parked, "c")
		b.ID, c.ID = a.ID, a.ID
		d.add(t, a, b, c)
		by := caller(auth.Viewer, "orders", "mail")
		m, err := d.Message(ctx, by, a.ID.String(), inspect.ReadAs{})
		if err != nil || m.Queue != "orders" || len(m.SameID) != 1 || m.SameID[0].Queue != "mail" {
			t.Fatalf("%+v, %v", m, err)
		}
		m, err = d.Message(ctx, by, m.SameID[0].Key, inspect.ReadAs{})
		if err != nil || m.Queue != "mail" || len(m.SameID) != 1 || m.SameID[0].Queue != "orders" {
			t.Fatalf("%+v, %v", m, err)
		}
		for _, name := range []string{"", "x", uuid.Nil.String()} {
			if _, err := d.Message(ctx, by, name, inspect.ReadAs{}); !errors.Is(err, inspect.ErrNotFound) {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
}

// What another framework wrote is shown beside what is known, and is none of it.
func TestWhatAFrameworkWrote(t *testing.T) {
	s := memstore.New()
	c := inspect.New(inspect.Config{Store: s})
	r, plain := record("orders", store.Parked, ""), record("orders", store.Parked, "")
	r.Message.Headers = amqp.Table{"MT-Reason": "fault", "MT-Fault-ExceptionType": "Shop.NoStock", "MT-Fault-InputAddress": "rabbitmq://rabbit/shop/elsewhere", "MT-Fault-RetryCount": int32(3), "MT-Fault-Timestamp": "2026-11-24T10:42:53Z"}
	if err := s.Add(ctx, []*store.Record{r, plain}); err != nil {
		t.Fatal(err)
	}
	m, err := c.Message(ctx, caller(auth.Viewer), r.ID.String(), inspect.ReadAs{})
	if err != nil || m.Queue != "orders" || m.Attempt != r.Failures || m.Framework == nil || m.Framework.Name != "MassTransit" {
		t.Fatalf("%+v, %v", m, err)
	}
	if got := m.Framework.Summary(); got != "error type Shop.NoStock; queue elsewhere; attempts 4; failed 2026-11-24T10:42:53Z" {
		t.Errorf("it wrote %q", got)
	}
	if m, err = c.Message(ctx, caller(auth.Viewer), plain.ID.String(), inspect.ReadAs{}); err != nil || m.Framework != nil {
		t.Errorf("%+v, %v", m.Framework, err)
	}
}
