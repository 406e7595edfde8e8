package query

import (
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

func ruleOf(t *testing.T, text string) *Rule {
	t.Helper()
	r, err := ParseRule(text)
	expect.NoError(t, err)
	return r
}

func TestRulesMatchFailures(t *testing.T) {
	f := policy.Failure{Queue: "orders.eu", Reason: "reported", Attempt: 2, Replays: 1, At: noon,
		Error:   "Shop.Errors.ValidationError: invalid IBAN\n   at Shop.Pay()",
		Message: &wire.Message{Type: "Payment", Headers: amqp.Table{"x-tenant": "trial"}, Body: []byte("AMOUNT")}}
	for text, want := range map[string]bool{
		"queue:orders.*": true, "reason:reported": true, "attempt:2": true, "attempt:<2": false, "replays:>0": true, "replays:>1": false, "type:Payment": true,
		`error:"invalid IBAN"`: true, "error:/IBAN|BIC/": true, "error:/^IBAN/": false,
		"exception:ValidationError": true, "exception:Shop.Errors.ValidationError": true, "exception:Shop.*": true,
		"exception:Error": false, "exception:/Validation/": true, "exception:*": true,
		"header.x-tenant:trial": true, "header.x-tenant:/^t/ -type:Payment": false,
		"size:6": true, "amount": true, "body.id:7": true, "body.id:8": false, "decoded": true,
	} {
		asked := 0
		f.Decoded = func() any {
			asked++
			return &decode.Result{Text: "decoded", Value: map[string]any{"id": "7"}}
		}
		r := ruleOf(t, text)
		expect.Equal(t, r.Matches(&f), want, "%s matches", text)
		if !r.query.NeedsBody() && asked > 0 {
			t.Errorf("%s: a body was decoded", text)
		}
	}
	if ruleOf(t, "body.id:7").Matches(&policy.Failure{Queue: "q"}) || ruleOf(t, "exception:*").Matches(&policy.Failure{}) {
		t.Error("a failure without a message or an error has some")
	}
}

func TestExceptions(t *testing.T) {
	for text, want := range map[string]string{
		"java.lang.IllegalStateException: no\n\tat a.B": "IllegalStateException",
		"*url.Error: Get": "Error", "ActiveRecord::RecordInvalid: x": "RecordInvalid", `App\Bad: x`: "Bad", "Outer+Inner: x": "Inner",
		"Traceback (most recent call last):\n  File \"a\"\nshop.errors.NotFound: 7": "NotFound",
		"ValidationError": "ValidationError", "KeyError:": "KeyError",
		"connection refused": "", "": "", "dial tcp 1.2.3.4:80: refused": "", strings.Repeat("a", 300): "",
	} {
		r := ruleOf(t, "exception:*")
		expect.Equal(t, r.Matches(&policy.Failure{Error: text}), want != "", "%.40q has an exception", text)
		if want != "" && !ruleOf(t, "exception:"+want).Matches(&policy.Failure{Error: text}) {
			t.Errorf("the exception of %.40q is not %s", text, want)
		}
	}
}

func TestRulesThatCannotBe(t *testing.T) {
	for text, want := range map[string]int{"state:parked": 0, "error:x due:<1m": 8, "  ": 0, "not error:x": 0, "error:": 6, "why:x": 0, "rule:x": 0} {
		_, err := ParseRule(text)
		var e *Error
		if !errors.As(err, &e) || e.At != want {
			t.Errorf("%q: %v, at another place than %d", text, err, want)
		}
	}
}

func TestARuleCoversWhatHasMoreConditions(t *testing.T) {
	for _, c := range []struct {
		before, after string
		covers        bool
	}{
		{"error:x", "error:x", true}, {"error:x", "error:x type:A", true}, {"type:A error:x", "error:x header.a:1 type:A", true},
		{"error:/x/", "error:/x/ a", true}, {"a OR b", "(a OR b) c", true}, {"-a", "b -a", true}, {"error:x", `error:"x"`, true},
		{"error:x type:A", "error:x", false}, {"error:/x/", "error:x", false}, {"error:x", "error:y", false}, {"a OR b", "a", false},
		{"-a", "a", false}, {"attempt:<3", "attempt:<4", false}, {"a OR b", "b OR a", false},
	} {
		expect.Equal(t, ruleOf(t, c.before).Covers(ruleOf(t, c.after)), c.covers, "%s covers %s", c.before, c.after)
	}
}

// A rule that covers another matches each failure that the other matches.
func TestARuleThatIsCoveredNeverMatchesAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, errA := ParseRule(queries().Draw(t, "a"))
		b, errB := ParseRule(queries().Draw(t, "b"))
		if errA != nil || errB != nil {
			return
		}
		f := policy.Failure{Queue: "a", Reason: "rejected", Attempt: rapid.IntRange(1, 3).Draw(t, "attempt"), At: noon,
			Error: rapid.StringMatching("[ab:. ]{0,6}").Draw(t, "error"), Message: &wire.Message{Type: "a"}}
		if a.Covers(b) && b.Matches(&f) && !a.Matches(&f) {
			t.Fatalf("%s does not match what %s matches: %+v", a, b, f)
		}
	})
}
