package policy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/testenv/expect"
)

// says matches failures with a text in their error.
type says string

func (s says) Matches(f *Failure) bool { return strings.Contains(f.Error, string(s)) }
func (s says) String() string          { return string(s) }

func withRules(rules ...Rule) Policy {
	return Policy{Name: "orders", Queues: []string{"orders"}, Attempts: 3, Backoff: Fixed(time.Second), Jitter: None, Rules: rules}
}

func TestTheFirstRuleThatMatchesDecides(t *testing.T) {
	errBad := errors.New("bad")
	slow := Destination{RoutingKey: "slow"}
	p := withRules(
		Rule{Name: "iban", When: says("IBAN"), Then: RuleOutcome{Action: Park}},
		Rule{When: says("timeout"), Then: RuleOutcome{Action: Retry, Backoff: List(time.Minute, time.Hour), Attempts: 5}},
		Rule{When: says("busy"), Then: RuleOutcome{Action: Retry, Backoff: Fixed(2 * time.Minute)}},
		Rule{When: says("trial"), Then: RuleOutcome{Action: Discard}},
		Rule{Name: "slow", When: says("slow"), Then: RuleOutcome{Action: Forward, Destination: slow}},
		Rule{Name: "circle", When: says("circle"), Then: RuleOutcome{Action: Forward, Destination: Destination{RoutingKey: "orders.eu"}}},
		Rule{Name: "go", When: MatchFunc(func(f *Failure) bool { return errors.Is(f.Err, errBad) }), Then: RuleOutcome{Action: Discard}},
	)
	expect.NoError(t, p.Validate())
	for _, c := range []struct {
		f    Failure
		want Verdict
	}{
		{Failure{Error: "invalid IBAN", Attempt: 1}, Verdict{Rule: "iban", Why: `rule "iban" of policy "orders" decided`}},
		{Failure{Error: "IBAN timeout", Attempt: 1}, Verdict{Rule: "iban", Why: `rule "iban" of policy "orders" decided`}},
		{Failure{Error: "timeout", Attempt: 1}, Verdict{Action: Retry, Delay: time.Minute, Rule: "2"}},
		{Failure{Error: "timeout", Attempt: 4}, Verdict{Action: Retry, Delay: time.Hour, Rule: "2"}},
		{Failure{Error: "timeout", Attempt: 5}, Verdict{Rule: "2", Why: `it failed 5 times, and rule "2" of policy "orders" allows 5 attempts`}},
		{Failure{Error: "busy", Attempt: 2}, Verdict{Action: Retry, Delay: 2 * time.Minute, Rule: "3"}},
		{Failure{Error: "busy", Attempt: 3}, Verdict{Rule: "3", Why: `it failed 3 times, and rule "3" of policy "orders" allows 3 attempts`}},
		{Failure{Error: "busy", Attempt: 1, Reason: "expired"}, Verdict{Action: Retry, Delay: 2 * time.Minute, Rule: "3"}},
		{Failure{Error: "trial", Attempt: 1}, Verdict{Action: Discard, Rule: "4", Why: `rule "4" of policy "orders" decided`}},
		{Failure{Error: "slow", Attempt: 9}, Verdict{Action: Forward, Forward: slow, Rule: "slow", Why: `rule "slow" of policy "orders" decided`}},
		{Failure{Error: "circle", Attempt: 1, Queue: "orders.eu"}, Verdict{Forward: Destination{RoutingKey: "orders.eu"}, Rule: "circle",
			Why: `rule "circle" of policy "orders" decided; it is not forwarded to the queue it failed in`}},
		{Failure{Err: errBad, Attempt: 1}, Verdict{Action: Discard, Rule: "go", Why: `rule "go" of policy "orders" decided`}},
		{Failure{Error: "other", Attempt: 1}, Verdict{Action: Retry, Delay: time.Second}},
		// The consumer's own word comes first.
		{Failure{Error: "IBAN", Attempt: 1, Suggested: 500 * time.Millisecond}, Verdict{Action: Retry, Delay: 500 * time.Millisecond}},
		{Failure{Error: "timeout", Attempt: 1, Park: "no such customer"}, Verdict{Why: "its consumer parked it: no such customer"}},
	} {
		if c.f.Reason == "" {
			c.f.Reason = Reported
		}
		c.want.Policy = "orders"
		expect.Equal(t, p.Decide(c.f), c.want, "%+v", c.f)
	}
}

// A rule that only says how important a message is leaves the decision to others; the first that says so counts,
// up to the one that decides, also where the consumer asks for something itself.
func TestRulesSayHowImportantAMessageIs(t *testing.T) {
	p := withRules(
		Rule{When: says("a"), Then: RuleOutcome{Action: Undecided}, Notify: Urgent},
		Rule{When: says("ab"), Then: RuleOutcome{Action: Undecided}, Notify: Never},
		Rule{When: says("b"), Then: RuleOutcome{Action: Park}, Notify: Normal},
		Rule{When: says("c"), Then: RuleOutcome{Action: Undecided}, Notify: Never},
	)
	expect.NoError(t, p.Validate())
	for _, c := range []struct {
		f      Failure
		action Action
		rule   string
		notify Importance
	}{
		{Failure{Error: "a"}, Retry, "", Urgent}, {Failure{Error: "ab"}, Park, "3", Urgent}, {Failure{Error: "b"}, Park, "3", Normal},
		{Failure{Error: "bc"}, Park, "3", Normal}, {Failure{Error: "c"}, Retry, "", Never}, {Failure{Error: "d"}, Retry, "", Unsaid},
		{Failure{Error: "a", Park: "why"}, Park, "", Urgent}, {Failure{Error: "b", Suggested: 1}, Retry, "", Normal},
	} {
		c.f.Reason, c.f.Attempt = Reported, 1
		v := p.Decide(c.f)
		if v.Action != c.action || v.Rule != c.rule || v.Notify != c.notify {
			t.Errorf("%+v: %+v", c.f, v)
		}
	}
}

func TestRulesThatCannotBeKept(t *testing.T) {
	when := says("x")
	many := make([]Rule, MaxRules+1)
	for i := range many {
		many[i] = Rule{When: when}
	}
	for want, rules := range map[string][]Rule{
		"neither decides nor says how":       {{When: when, Then: RuleOutcome{Action: Undecided}}},
		"does not say when":                  {{}},
		"a rule before it has that name":     {{Name: "2", When: when}, {When: when}},
		"the list of waits is empty":         {{When: when, Then: RuleOutcome{Action: Retry, Backoff: List()}}},
		"attempts is -1":                     {{When: when, Then: RuleOutcome{Action: Retry, Attempts: -1}}},
		"needs an exchange or a queue":       {{When: when, Then: RuleOutcome{Action: Forward}}},
		"which is the queue it is for":       {{When: when, Then: RuleOutcome{Action: Forward, Destination: Destination{RoutingKey: "orders"}}}},
		"Redrive's own":                      {{When: when, Then: RuleOutcome{Action: Forward, Destination: Destination{Exchange: "redrive"}}}},
		"has 101 rules":                      many,
		"and RabbitMQ's have at most 255":    {{When: when, Then: RuleOutcome{Action: Forward, Destination: Destination{Exchange: strings.Repeat("x", 256)}}}},
		"is longer than ten years":           {{When: when, Then: RuleOutcome{Action: Retry, Backoff: Fixed(2 * LongestDelay)}}},
		"rule late: attempts is 1000001, an": {{Name: "late", When: when, Then: RuleOutcome{Action: Retry, Attempts: MaxAttempts + 1}}},
	} {
		p := withRules(rules...)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

// Whatever rules there are, a message goes to its own queue or where the policy's author says.
func TestRulesChooseAmongWhatThePolicyNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		to := map[Destination]bool{{}: true}
		var rules []Rule
		for range rapid.IntRange(0, 5).Draw(t, "rules") {
			r := Rule{When: says(rapid.StringMatching("[ab]?").Draw(t, "when"))}
			r.Then.Action = rapid.SampledFrom([]Action{Park, Retry, Discard, Forward}).Draw(t, "then")
			r.Then.Attempts = rapid.IntRange(0, 4).Draw(t, "attempts")
			r.Then.Backoff = Fixed(time.Duration(rapid.IntRange(0, 9).Draw(t, "delay")) * time.Second)
			if r.Then.Action == Forward {
				r.Then.Destination.RoutingKey = rapid.SampledFrom([]string{"c", "d"}).Draw(t, "to")
				to[r.Then.Destination] = true
			}
			rules = append(rules, r)
		}
		p := withRules(rules...)
		expect.NoError(t, p.Validate())
		f := Failure{Queue: rapid.SampledFrom([]string{"orders", "c"}).Draw(t, "queue"), Attempt: rapid.IntRange(1, 6).Draw(t, "attempt"),
			Reason: rapid.SampledFrom(append(knownReasons, Reported)).Draw(t, "reason"), Error: rapid.StringMatching("[abc]{0,3}").Draw(t, "error")}
		v := p.Decide(f)
		switch {
		case !to[v.Forward], v.Action == Forward && v.Forward == (Destination{RoutingKey: f.Queue}):
			t.Fatalf("%+v goes to %+v", f, v.Forward)
		case v.Action == Retry && f.Attempt >= max(p.Attempts, 4):
			t.Fatalf("attempt %d is retried", f.Attempt)
		case (v.Action == Park) != (v.Why != "") && v.Action == Park:
			t.Fatalf("it does not say why it is parked")
		}
		if i, _ := p.RuleFor(&f); (i >= 0) != (v.Rule != "") {
			t.Fatalf("rule %d decides, and the verdict names %q", i, v.Rule)
		}
	})
}

// A message is retried within MaxAge of its first failure, whoever chooses the delay, and parked with that reason
// where it would be later; MaxAge changes nothing else, and nothing after a replay.
func TestNothingIsRetriedLaterThanMaxAge(t *testing.T) {
	retrying, discarding := RuleOutcome{Action: Retry, Backoff: Fixed(3 * time.Hour), Attempts: 6}, RuleOutcome{Action: Discard}
	p := withRules(Rule{When: says("a"), Then: retrying}, Rule{When: says("b"), Then: discarding})
	first := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	span := rapid.Int64Range(0, int64(5*time.Hour))
	rapid.Check(t, func(t *rapid.T) {
		p := p
		p.Backoff = Fixed(time.Duration(span.Draw(t, "backoff")))
		p.Jitter = rapid.SampledFrom([]Jitter{None, Full, Equal}).Draw(t, "jitter")
		p.MaxRetryAfter = time.Duration(span.Draw(t, "most"))
		p.Exhausted.Action = rapid.SampledFrom([]Action{Park, Discard}).Draw(t, "exhausted")
		f := Failure{Queue: "orders", Attempt: rapid.IntRange(1, 6).Draw(t, "attempt"),
			Seed:   rapid.Uint64().Draw(t, "seed"),
			Reason: rapid.SampledFrom([]string{"rejected", "expired", Reported}).Draw(t, "reason"),
			Error:  rapid.StringMatching("[abc]?").Draw(t, "error"), Park: rapid.StringMatching("(no)?").Draw(t, "park"),
			Suggested: max(0, time.Duration(span.Draw(t, "suggested"))-time.Hour), FirstFailed: first,
			At: first.Add(time.Duration(span.Draw(t, "age"))), Replays: rapid.IntRange(0, 1).Draw(t, "replays")}
		without := p.Decide(f)
		p.MaxAge = time.Duration(span.Draw(t, "max age")) + 1
		expect.NoError(t, p.Validate())
		v := p.Decide(f)
		late := f.At.Add(without.Delay).After(first.Add(p.MaxAge))
		switch {
		case without.Action != Retry || f.Replays > 0 || !late:
			expect.Equal(t, v, without, "without need max_age changes it:")
		case v.Action != Park || !strings.Contains(v.Why, `(max_age of policy "orders")`),
			v.Rule != without.Rule, v.Delay != 0:
			t.Fatalf("after %s, %+v is %+v", f.At.Sub(first), without, v)
		}
	})
	p.MaxAge = time.Millisecond
	if v := p.Decide(Failure{Reason: Reported, Attempt: 1, At: first}); v.Action != Retry {
		t.Errorf("without the time of the first failure: %+v", v)
	}
}
