package rules

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

func when(t testing.TB, text string) *When {
	t.Helper()
	w, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func batch(t testing.TB) *Batch {
	t.Helper()
	d, err := decode.New(decode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &Batch{Decoder: d, Ctx: t.Context()}
}

func failed() *store.Record {
	return &store.Record{Queue: "orders", Reason: "reported", Error: "Connection timeout after 30s: upstream bank-17 did not answer", Failures: 2,
		Message: wire.Message{Type: "OrderPlaced", ContentType: "application/json", Headers: amqp.Table{"bank": "slow-1"}, Body: []byte(`{"order":{"total":120,"items":[{"sku":"B-2"}]}}`)}}
}

func zipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestConditionsOfAMessage(t *testing.T) {
	large := append([]byte(`{"order":{"total":1},"pad":"`), bytes.Repeat([]byte("x"), mostBody)...)
	for name, c := range map[string]struct {
		change func(*store.Record)
		when   string
		want   bool
		note   string
	}{
		"error":              {nil, "error:/timeout|refused/", true, ""},
		"error and header":   {nil, "error:*timeout* header.bank:slow*", true, ""},
		"attempt":            {nil, "attempt:>2", false, ""},
		"body":               {nil, "body.order.total:>100", true, ""},
		"zipped body":        {func(r *store.Record) { r.Message.Body = zipped(t, r.Message.Body) }, "body.order.items.sku:B-2", true, ""},
		"no document":        {func(r *store.Record) { r.Message.Body = []byte("\xff\xfe\x00\x01") }, "body.order.total:>100", false, ""},
		"nor the opposite":   {func(r *store.Record) { r.Message.Body = []byte("\xff\xfe\x00\x01") }, "-body.order.total:>100", false, ""},
		"no body":            {func(r *store.Record) { r.Message.Body = nil }, "-body.order.total:>100", false, ""},
		"too large":          {func(r *store.Record) { r.Message.Body = large }, "body.order.total:1", false, "rules look at up to 1048576"},
		"too large, no need": {func(r *store.Record) { r.Message.Body = large }, "body.order.total:1 OR error:timeout", true, ""},
		"a bomb":             {func(r *store.Record) { r.Message.Body = zipped(t, make([]byte, 20<<20)) }, "-body.a:1", false, "any"},
	} {
		r := failed()
		if c.change != nil {
			c.change(r)
		}
		p := policy.Policy{Name: "p", Attempts: 9, Rules: []policy.Rule{{Name: "r", When: when(t, c.when), Then: policy.Discard}}}
		v := p.Decide(policy.Failure{Queue: r.Queue, Reason: r.Reason, Attempt: r.Failures, Details: batch(t).Details(r)})
		if (v.Action == policy.Discard) != c.want || c.note != "any" && ((v.Note != "") != (c.note != "") || !strings.Contains(v.Note, c.note)) {
			t.Errorf("%s: %s %q", name, v.Action, v.Note)
		}
	}
}

// All bodies of a batch together have a bounded time; rules about anything else still apply.
func TestABatchHasABoundedTimeForBodies(t *testing.T) {
	b := batch(t)
	b.spent = mostBatch
	if yes, err := when(t, "body.order.total:120").Applies(&policy.Failure{Details: b.Details(failed())}); yes || err == nil || !strings.Contains(err.Error(), "more than 1s") {
		t.Errorf("%v %v", yes, err)
	}
	if yes, err := when(t, "error:timeout").Applies(&policy.Failure{Details: b.Details(failed())}); !yes || err != nil {
		t.Errorf("%v %v", yes, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	b.spent, b.Ctx = 0, ended
	if yes, err := when(t, "body.order.total:120").Applies(&policy.Failure{Details: b.Details(large(failed()))}); yes || err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("%v %v", yes, err)
	}
}

// large gives a record a body of which each decoder looks at the time.
func large(r *store.Record) *store.Record {
	r.Message.Body = []byte("[" + strings.Repeat("1,", 100_000) + "1]")
	return r
}

// Where there is no message, as in a simulation, only what the failure itself has is known.
func TestAFailureWithoutAMessage(t *testing.T) {
	f := policy.Failure{Queue: "orders", Reason: "reported", Attempt: 3, Error: "timeout", Headers: map[string]any{"bank": "slow"}}
	for text, want := range map[string]bool{"error:/^time/ attempt:3 queue:orders header.bank:slow": true, "-body.a:1": false, "type:x": false} {
		if yes, err := when(t, text).Applies(&f); yes != want || err != nil {
			t.Errorf("%s: %v %v", text, yes, err)
		}
	}
}

// twenty are rules as people write them; none applies to failed, so that all are evaluated.
func twenty(t testing.TB) *policy.Policy {
	p := &policy.Policy{Name: "p", Attempts: 9, Backoff: policy.Fixed(time.Second)}
	for i := range 20 {
		text := [...]string{`error:/invalid (IBAN|BIC)|validation failed/`, `error:/^(sql|pq): duplicate key .* constraint "\w+"/`, `error:/HTTP [45]\d\d/ header.bank:/^fast-\d+$/`,
			`type:/^(Refund|Chargeback)/ error:/quota|limit exceeded/`, `error:/no such (user|account)/ attempt:>3`}[i%5]
		p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprint(i), When: when(t, text), Then: policy.Park})
	}
	return p
}

func decide(b *testing.B, p *policy.Policy, r *store.Record, want policy.Action) {
	all := batch(b)
	b.ReportAllocs()
	for b.Loop() {
		all.spent = 0
		v := p.Decide(policy.Failure{Queue: r.Queue, Reason: r.Reason, Attempt: r.Failures, Error: r.Error, Details: all.Details(r)})
		if v.Action != want || v.Note != "" {
			b.Fatal(v)
		}
	}
}

func BenchmarkTwentyRules(b *testing.B) { decide(b, twenty(b), failed(), policy.Retry) }

// With texts in which each expression has to be run.
func BenchmarkTwentyRulesThatAllRun(b *testing.B) {
	r := failed()
	r.Error = "duplicate key, validation failed? no: HTTP 2xx; quota of no such thing: limit é exceeded not, invalid IBA " + strings.Repeat("n", 40)
	p := twenty(b)
	for i := range p.Rules {
		p.Rules[i].When = when(b, `error:/(timeout|refused|reset) by (peer|host)|x{3}/`)
	}
	decide(b, p, r, policy.Retry)
}

func BenchmarkNoRules(b *testing.B) {
	decide(b, &policy.Policy{Name: "p", Attempts: 9, Backoff: policy.Fixed(time.Second)}, failed(), policy.Retry)
}

func BenchmarkABodyRule(b *testing.B) {
	decide(b, &policy.Policy{Name: "p", Attempts: 9, Rules: []policy.Rule{{Name: "r", When: when(b, "body.order.total:>100"), Then: policy.Discard}}}, failed(), policy.Discard)
}

func BenchmarkABodyRuleOf10KB(b *testing.B) {
	r := failed()
	r.Message.Body = []byte(`{"order":{"total":120,"items":[` + strings.Repeat(`{"sku":"B-2","name":"a thing","price":12.50,"n":3},`, 200) + `{}]}}`)
	decide(b, &policy.Policy{Name: "p", Attempts: 9, Rules: []policy.Rule{{Name: "r", When: when(b, "body.order.total:>100"), Then: policy.Discard}}}, r, policy.Discard)
}

// FuzzRule parses any text as a rule's condition, and asks it about a hostile message.
func FuzzRule(f *testing.F) {
	for _, text := range []string{"error:/invalid IBAN|validation/", "error:*timeout* header.bank:slow*", "body.order.total:>100 -text:/x/", "group:5a1f0c2b9e3d4a76 OR size:>1kb"} {
		f.Add(text, "an error", "application/json", []byte(`{"order":[1]}`))
	}
	d, err := decode.New(decode.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, failed, contentType string, body []byte) {
		w, err := Parse(text)
		if err != nil {
			return
		}
		r := &store.Record{Queue: "q", Error: failed, Message: wire.Message{ContentType: contentType, Body: body, Headers: amqp.Table{contentType: failed, "l": []any{body, nil}}}}
		b := &Batch{Decoder: d, Ctx: t.Context()}
		first, err := w.Applies(&policy.Failure{Details: b.Details(r)})
		again, _ := w.Applies(&policy.Failure{Details: (&Batch{Decoder: d, Ctx: t.Context()}).Details(r)})
		if first != again || first && err != nil {
			t.Fatalf("%q: %v, then %v: %v", text, first, again, err)
		}
	})
}
