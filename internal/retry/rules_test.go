package retry_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/rules"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

func when(text string) policy.Condition {
	w, err := rules.Parse(text)
	if err != nil {
		panic(err)
	}
	return w
}

func report(queue string, headers amqp.Table) wire.Delivery {
	return wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: queue, ContentType: "application/json", Headers: headers, Body: []byte(`{"total":7}`)}}
}

// handle passes one message to an intake, and returns its record, if it is kept, and its events.
func handle(t *testing.T, r retry.Rules, d wire.Delivery) (rec *store.Record, events []retry.Event) {
	t.Helper()
	s := memstore.New()
	in := retry.NewIntake(s, r, nil, func(e retry.Event) { events = append(events, e) })
	decoder, err := decode.New(decode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	in.UseDecoder(decoder)
	if err := in.Connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := in.Handle(t.Context(), []wire.Delivery{d}); err != nil {
		t.Fatal(err)
	}
	if all := kept(t, s); len(all) > 0 {
		rec = all[0].Record
	}
	return rec, events
}

func TestVerdictsByRules(t *testing.T) {
	p := policy.Policy{Name: "p", Queues: []string{"q"}, Attempts: 3, Backoff: policy.Fixed(time.Second), Jitter: policy.None, Rules: []policy.Rule{
		{Name: "invalid", When: when("error:/invalid iban/"), Then: policy.Park, Why: "ask the customer", Severity: "critical"},
		{Name: "spam", When: when("header.kind:spam"), Then: policy.Discard},
		{Name: "refund", When: when("body.total:7 error:refund"), Then: policy.Forward, Destination: policy.Destination{RoutingKey: "refunds"}},
		{Name: "slow", When: when("error:timeout"), Then: policy.Retry, Attempts: 9, Backoff: policy.Fixed(time.Hour)},
	}}
	huge := report("q", amqp.Table{wire.HeaderError: "refund"})
	huge.Message.Body = []byte(`{"total":7,"pad":"` + strings.Repeat("x", 2<<20) + `"}`)
	for name, c := range map[string]struct {
		of   wire.Delivery
		want string // state, delay, rule, severity of the last event
		note string
	}{
		"parked":        {report("q", amqp.Table{wire.HeaderError: "Invalid IBAN"}), `parked 0s p/invalid critical: ask the customer (rule "invalid" of policy "p")`, ""},
		"discarded":     {report("q", amqp.Table{"kind": "spam"}), "discarded spam", ""},
		"forwarded":     {report("q", amqp.Table{wire.HeaderError: "a refund"}), "waiting 0s p/refund to refunds", ""},
		"retried":       {report("q", amqp.Table{wire.HeaderError: "timeout", wire.HeaderAttempt: int64(5)}), "waiting 1h0m0s p/slow", ""},
		"no rule":       {report("q", amqp.Table{wire.HeaderError: "other"}), "waiting 1s p/", ""},
		"not evaluated": {huge, "waiting 1s p/", `rule "refund" of policy "p" was passed over: its body has 2097172 bytes`},
		"dead letter":   {deadLetter("q", "x"), "waiting 1s p/", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			now := time.Now()
			rec, events := handle(t, retry.Rules{Policies: policy.Set{p}}, c.of)
			last := events[len(events)-1]
			got := fmt.Sprint(last.Kind, " ", last.Rule)
			if rec != nil {
				name, rule := store.PolicyAndRule(rec.Policy)
				got = fmt.Sprintf("%s %s %s/%s", map[store.State]string{store.Waiting: "waiting", store.Parked: "parked"}[rec.State], rec.Due.Sub(now), name, rule)
				if rec.Forward != nil {
					got += " to " + rec.Forward.RoutingKey
				}
				if rec.State == store.Parked {
					got += " " + last.Severity + ": " + rec.ParkedFor
				}
				if notes := strings.Join(rec.Notes, "\n"); !strings.Contains(notes, c.note) || (c.note == "") != (notes == "") {
					t.Errorf("%s: notes %q", name, notes)
				}
			}
			if got != c.want {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
		})
	}
}

// A consumer in any language parks by a header of its report.
func TestAReportParksAtOnce(t *testing.T) {
	p := policy.Policy{Name: "p", Queues: []string{"q"}, Attempts: 3, Backoff: policy.Fixed(time.Second), Rules: []policy.Rule{{Name: "all", Then: policy.Discard}}}
	for value, want := range map[any]string{
		"the IBAN is invalid":             "its consumer parked it: the IBAN is invalid",
		"two\nlines\x00\x1b[31m and \xff": `its consumer parked it: two lines [31m and \xff`,
		"":                                "its consumer parked it, without a reason",
		true:                              "its consumer parked it, without a reason",
		strings.Repeat("é", 400):          "its consumer parked it: " + strings.Repeat("é", 250) + "…",
		"\u202e" + "right to left" + "\u2066 marks": "its consumer parked it: right to left marks",
	} {
		rec, _ := handle(t, retry.Rules{Policies: policy.Set{p}}, report("q", amqp.Table{wire.HeaderPark: value, wire.HeaderDelay: int64(5)}))
		if rec == nil || rec.State != store.Parked || rec.ParkedFor != want || rec.Policy != "p" {
			t.Errorf("%q: %+v", value, rec)
		}
	}
	rec, _ := handle(t, retry.Rules{Policies: policy.Set{p}}, report("unknown", amqp.Table{wire.HeaderPark: "x"}))
	if rec.State != store.Parked || !strings.Contains(rec.ParkedFor, "no policy") {
		t.Errorf("without a policy: %+v", rec)
	}
	// A dead letter's header of that name is not its consumer's, but its publisher's.
	d := deadLetter("q", "x")
	d.Message.Headers[wire.HeaderPark] = "forged"
	if rec, events := handle(t, retry.Rules{Policies: policy.Set{p}}, d); rec != nil || events[1].Kind != retry.Discarded {
		t.Errorf("a dead letter with the header: %+v", rec)
	}
}

// An AMQP 1.0 consumer says the same in annotations, which become headers of its dead letter. The
// error of the attempt before, which the message has from us, is not that of this one.
func TestAnAnnotationSaysWhatAReportSays(t *testing.T) {
	p := policy.Policy{Name: "p", Queues: []string{"q"}, Attempts: 3, Backoff: policy.Fixed(time.Second), MaxRetryAfter: time.Minute}
	says := func(h amqp.Table) *store.Record {
		d := deadLetter("q", "x")
		d.Message.Headers[wire.HeaderError], d.Message.Headers[wire.HeaderDelay] = "of the attempt before", int64(9)
		maps.Copy(d.Message.Headers, h)
		rec, _ := handle(t, retry.Rules{Policies: policy.Set{p}}, d)
		return rec
	}
	if rec := says(nil); rec.Error != "" || rec.State != store.Waiting || len(rec.Notes) != 0 {
		t.Errorf("without annotations: %+v", rec)
	}
	rec := says(amqp.Table{wire.AnnotationError: "timeout\x00\xff", wire.AnnotationDelay: int64(30_000)})
	if delay := rec.Due.Sub(rec.FailedAt); rec.Error != "timeout\x00\\xff" || rec.State != store.Waiting || delay < 30*time.Second || delay > 31*time.Second {
		t.Errorf("with error and delay: %s, %+v", delay, rec)
	}
	if rec := says(amqp.Table{wire.AnnotationDelay: "soon"}); len(rec.Notes) != 1 || !strings.Contains(rec.Notes[0], wire.AnnotationDelay) {
		t.Errorf("with a delay that is none: %+v", rec)
	}
	if rec := says(amqp.Table{wire.AnnotationPark: "no such customer"}); rec.State != store.Parked || rec.ParkedFor != "its consumer parked it: no such customer" {
		t.Errorf("parked: %+v", rec)
	}
}

func TestRedirects(t *testing.T) {
	r := retry.Rules{Redirects: map[string]string{"old": "new"},
		Policies: policy.Set{{Name: "n", Queues: []string{"new"}, Attempts: 3, Backoff: policy.Fixed(time.Second)}, {Name: "all", Queues: []string{"*"}, Attempts: 9, Backoff: policy.Fixed(time.Second)}}}
	for _, d := range []wire.Delivery{deadLetter("old", "x"), report("old", nil)} {
		rec, events := handle(t, r, d)
		if rec.Queue != "new" || rec.Proven || rec.Policy != "n" || rec.State != store.Waiting || events[0].Queue != "new" || len(rec.Notes) != 1 || !strings.Contains(rec.Notes[0], `it failed in queue "old"`) {
			t.Errorf("%+v", rec)
		}
	}
	if rec, _ := handle(t, r, deadLetter("other", "x")); rec.Queue != "other" || !rec.Proven || len(rec.Notes) != 0 {
		t.Errorf("%+v", rec)
	}
}

// Whatever a message has, rules only choose among what the configuration names: the queue that it
// failed in, or where that is redirected to, and the destinations of its policy. And no rule makes
// of a message that only a client names a queue for one that RabbitMQ has proven.
func TestRulesNeverChooseADestination(t *testing.T) {
	queues := rapid.SampledFrom([]string{"q", "q2", "old", "other", "refunds", wire.QueueIntake})
	value := rapid.SampledFrom([]any{"q", "refunds", "amq.default", "timeout", true, int64(9), []any{"q"}, amqp.Table{"queue": "q"}, nil, []byte("q")})
	headers := rapid.SampledFrom([]string{wire.HeaderError, wire.HeaderPark, wire.HeaderQueue, wire.HeaderAttempt, wire.HeaderDelay, wire.AnnotationError, wire.AnnotationPark, wire.AnnotationDelay, "x-death", "x-first-death-queue", "kind", "CC", "redirect", "NServiceBus.FailedQ", "MT-Fault-InputAddress", "MT-Reason", "x-exception-message", "x-original-routingKey", "rascal"})
	whens := rapid.SampledFrom([]string{"error:timeout", "-error:timeout", "header.kind:*", "body.queue:*", "header.CC:q", "queue:q*", "text:q", "attempt:>0"})
	action := rapid.SampledFrom([]policy.Action{policy.Park, policy.Discard, policy.Retry, policy.Forward, policy.AsPolicy})
	rapid.Check(t, func(t *rapid.T) {
		p := policy.Policy{Name: "p", Queues: []string{"q*", "new"}, Attempts: 3, Backoff: policy.Fixed(time.Second)}
		for i := range rapid.IntRange(0, 4).Draw(t, "rules") {
			r := policy.Rule{Name: fmt.Sprint(i), When: when(whens.Draw(t, "when")), Then: action.Draw(t, "then")}
			if r.Then == policy.Forward {
				r.Destination = policy.Destination{RoutingKey: "refunds"}
			}
			p.Rules = append(p.Rules, r)
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		queue := queues.Draw(t, "queue")
		table := amqp.Table{}
		for _, h := range rapid.SliceOfN(headers, 0, 4).Draw(t, "headers") {
			table[h] = value.Draw(t, h)
		}
		d := report(queue, table)
		d.Message.Body = []byte(rapid.SampledFrom([]string{`{"queue":"q","exchange":"amq.default"}`, "q", ""}).Draw(t, "body"))
		proven := rapid.Bool().Draw(t, "proven")
		if proven {
			d.Message.Exchange = wire.ExchangeDeadLetters
			table["x-death"] = []any{amqp.Table{"queue": queue, "reason": "rejected", "exchange": "shop", "routing-keys": []any{"k"}}}
		}
		with := retry.Rules{Policies: policy.Set{p}, Redirects: map[string]string{"old": "new"}}
		s := memstore.New()
		in := retry.NewIntake(s, with, nil, func(retry.Event) {})
		if err := in.Connected(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := in.Handle(context.Background(), []wire.Delivery{d}); err != nil {
			t.Fatal(err)
		}
		wanted := queue
		if queue == "old" {
			wanted = "new"
		}
		err := s.Scan(context.Background(), store.Range{Body: true}, func(l store.Listed) (bool, error) {
			r := l.Record
			if r.Queue != wanted || r.Proven != (proven && queue == wanted) {
				t.Fatalf("%s: kept for %q, proven %v", queue, r.Queue, r.Proven)
			}
			if r.Forward != nil && *r.Forward != (store.Destination{RoutingKey: "refunds"}) {
				t.Fatalf("%s: it is forwarded to %v", queue, r.Forward)
			}
			if _, matches := (policy.Set{p}).Match(wanted); r.State == store.Waiting && (!matches || wire.OwnQueue(wanted)) {
				t.Fatalf("%s: it is retried, and no policy allows that", queue)
			}
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
