package retry_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// fault are headers of Spring, whose error is "a.B: no stock of 4711".
func fault(more amqp.Table) amqp.Table {
	h := amqp.Table{"x-exception-message": "no stock of 4711", "x-exception-stacktrace": "a.B: no stock of 4711\n\tat c.D.e(D.java:1)", "x-original-exchange": "shop", "x-original-routingKey": "eu"}
	maps.Copy(h, more)
	return h
}

const faultText = "a.B: no stock of 4711\n\tat c.D.e(D.java:1)"

// Where our own words are missing, the error is what the framework wrote, for rules and groups too.
func TestAFrameworkTellsTheError(t *testing.T) {
	p := policy.Policy{Name: "p", Queues: []string{"q"}, Attempts: 3, Backoff: policy.Fixed(time.Second), Jitter: policy.None,
		Rules: []policy.Rule{{Name: "stock", When: when(`error:/^a\.B: no stock/`), Then: policy.Park}}}
	r := retry.Rules{Policies: policy.Set{p}}
	dead := func(h amqp.Table) wire.Delivery {
		d := deadLetter("q", "x")
		maps.Copy(d.Message.Headers, h)
		return d
	}
	retried := dead(fault(nil)) // RabbitMQ dead-lettered it as we published it: the headers are of the attempt before
	retried.Message.Headers["x-death"].([]any)[0].(amqp.Table)["exchange"] = wire.RetryExchange("q")
	for name, c := range map[string]struct {
		of                        wire.Delivery
		want, rule, exchange, key string
	}{
		"dead letter":             {dead(fault(nil)), faultText, "stock", "shop", "key"},
		"report":                  {report("q", fault(nil)), faultText, "stock", "shop", "eu"},
		"report that has our own": {report("q", fault(amqp.Table{wire.HeaderError: "timeout", wire.HeaderExchange: "first", wire.HeaderRoutingKey: "de"})), "timeout", "", "first", "de"},
		"AMQP 1.0":                {dead(fault(amqp.Table{wire.AnnotationError: "timeout"})), "timeout", "", "shop", "key"},
		"retried":                 {retried, "", "", wire.RetryExchange("q"), "key"},
		"no text":                 {dead(amqp.Table{"x-exception-message": int64(7)}), "", "", "shop", "key"},
		"not allowed":             {report("other", fault(nil)), faultText, "", "shop", "eu"},
		"long": {dead(amqp.Table{"x-exception-message": strings.Repeat("\xff", 50_000), "x-exception-stacktrace": strings.Repeat("y", 50_000)}),
			strings.Repeat(`\xff`, 512), "", "shop", "key"},
	} {
		rec, _ := handle(t, r, c.of)
		_, rule := store.PolicyAndRule(rec.Policy)
		if rec.Error != c.want || rule != c.rule || rec.Message.Exchange != c.exchange || rec.Message.RoutingKey != c.key || rec.Failures != 1 {
			t.Errorf("%s: %q, rule %q, first published to %q with %q, %d failures", name, rec.Error, rule, rec.Message.Exchange, rec.Message.RoutingKey, rec.Failures)
		}
	}
	one, _ := handle(t, r, dead(fault(nil)))
	other, _ := handle(t, r, dead(fault(amqp.Table{"x-exception-message": "no stock of 12", "x-exception-stacktrace": "a.B: no stock of 12\n\tat c.D.e(D.java:1)"})))
	if one.Group() != other.Group() || one.Group().Pattern != "a.B: no stock of # | at c.D.e(D.java:#)" {
		t.Errorf("groups %+v and %+v", one.Group(), other.Group())
	}
}

// A retried message has the framework's headers still: our header would repeat them, and be
// taken for the error when that framework reports the next failure.
func TestAFrameworksErrorIsNotWrittenTwice(t *testing.T) {
	a := &answers{}
	same, own, other := due("same"), due("own"), due("other")
	same.Record.Error, same.Record.Message.Headers = faultText, fault(nil)
	own.Record.Error = "timeout"
	other.Record.Error, other.Record.Message.Headers = "timeout", fault(nil)
	publishClaims(a, same, own, other)
	for i, want := range []any{nil, "timeout", "timeout"} {
		if got := a.sent[i].Message.Headers[wire.HeaderError]; got != want {
			t.Errorf("%s is retried with the error %v", a.sent[i].Message.Body, got)
		}
	}
	again := report("q", maps.Clone(a.sent[0].Message.Headers))
	again.Message.Headers["x-exception-message"], again.Message.Headers["x-exception-stacktrace"] = "timeout", ""
	if rec, _ := handle(t, retry.Rules{Policies: policy.Set{{Name: "p", Queues: []string{"q"}, Attempts: 3}}}, again); rec.Error != "timeout" || rec.Failures != 3 {
		t.Errorf("it is reported again: %+v", rec)
	}
}

// decideOn returns the record that an intake makes of a message.
func decideOn(t *rapid.T, r retry.Rules, d wire.Delivery) *store.Record {
	s := memstore.New()
	in := retry.NewIntake(s, r, nil, func(retry.Event) {})
	if err := errors.Join(in.Connected(context.Background()), in.Handle(context.Background(), []wire.Delivery{d})); err != nil {
		t.Fatal(err)
	}
	page, err := storetest.List(context.Background(), s, storetest.Filter{Body: true, Limit: 2})
	if err != nil || len(page.Records) != 1 {
		t.Fatalf("%d records: %v", len(page.Records), err)
	}
	return page.Records[0].Record
}

// frameworkHeaders are what each known framework writes.
func frameworkHeaders(t *testing.T) (all []map[string]any) {
	files, _ := filepath.Glob("../frameworks/testdata/*.json")
	for _, file := range files {
		data, err := os.ReadFile(file)
		var sample struct {
			Message struct{ Headers map[string]any }
		}
		if err != nil || json.Unmarshal(data, &sample) != nil {
			t.Fatal(file, err)
		}
		if delete(sample.Message.Headers, "CC"); len(sample.Message.Headers) > 0 {
			all = append(all, sample.Message.Headers)
		}
	}
	if len(all) < 10 {
		t.Fatalf("%d frameworks write headers", len(all))
	}
	return all
}

// Whatever frameworks' headers say, a message has the queue, the attempts, the delay and the
// destination that it has without them, and RabbitMQ has proven what it has proven without them.
func TestNoFrameworkHeaderChoosesADestination(t *testing.T) {
	frameworks := rapid.SampledFrom(frameworkHeaders(t))
	text := rapid.SampledFrom([]string{"refunds", "q", "q2", "redrive.intake", "rabbitmq://host/vhost/refunds?durable=true", "0", "1", "999999", "-1",
		`{"num_attempts":99,"properties":{"headers":{"x-death":[{"reason":"rejected","queue":"refunds","exchange":"","routing-keys":["refunds"]}]}}}`, `[{"retryCount":99,"exceptionMessage":"no"}]`})
	rapid.Check(t, func(t *rapid.T) {
		with := retry.Rules{Redirects: map[string]string{"old": "new"}, Policies: policy.Set{{Name: "p", Queues: []string{"q*", "new"}, Attempts: rapid.IntRange(1, 3).Draw(t, "attempts"), Backoff: policy.Exponential(time.Second, 2, time.Hour), Jitter: policy.None,
			Exhausted: policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: "graveyard"}}}}}
		more := amqp.Table{}
		written := frameworks.Draw(t, "framework")
		for name, v := range written {
			if of, ok := v.(string); ok {
				more[name] = of
			}
		}
		for _, name := range rapid.SliceOfN(rapid.SampledFrom(slices.Sorted(maps.Keys(written))), 0, 3).Draw(t, "headers") {
			s := text.Draw(t, name)
			more[name] = rapid.SampledFrom([]any{s, []byte(s), int64(len(s)), amqp.Table{"originalQueue": s, "originalExchange": s, "recovery": amqp.Table{s: amqp.Table{"republished": int64(99)}}}}).Draw(t, "value")
		}
		queue, attempt := rapid.SampledFrom([]string{"q", "q2", "old", "other", wire.QueueIntake}).Draw(t, "queue"), rapid.IntRange(0, 3).Draw(t, "attempt")
		proven := rapid.Bool().Draw(t, "proven")
		decided := func(more amqp.Table) *store.Record {
			h := amqp.Table{wire.HeaderAttempt: int64(attempt)}
			maps.Copy(h, more)
			d := report(queue, h)
			if proven {
				d.Message.Exchange = wire.ExchangeDeadLetters
				h["x-death"] = []any{amqp.Table{"queue": queue, "reason": "rejected", "exchange": "shop", "routing-keys": []any{"k"}}}
			}
			return decideOn(t, with, d)
		}
		a, b := decided(more), decided(nil)
		forward := func(r *store.Record) store.Destination {
			if r.Forward == nil {
				return store.Destination{}
			}
			return *r.Forward
		}
		if a.Queue != b.Queue || a.Proven != b.Proven || a.State != b.State || a.Failures != b.Failures || a.ParkedFor != b.ParkedFor || a.Reason != b.Reason || forward(a) != forward(b) ||
			a.Due.Sub(a.FailedAt).Round(time.Millisecond) != b.Due.Sub(b.FailedAt).Round(time.Millisecond) || proven && a.Message.Exchange+a.Message.RoutingKey != b.Message.Exchange+b.Message.RoutingKey {
			t.Fatalf("with them\n%+v\nwithout\n%+v", a, b)
		}
		out := &answers{}
		if a.State == store.Waiting && a.Queue == "q" {
			publishClaims(out, store.Claim{Record: a})
			for _, o := range out.sent {
				if o.Exchange != wire.RetryExchange(b.Queue) && o.Exchange+o.RoutingKey != forward(b).Exchange+forward(b).RoutingKey {
					t.Fatalf("published to %q with %q", o.Exchange, o.RoutingKey)
				}
			}
		}
	})
}
