package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

var (
	errInvalid = errors.New("invalid IBAN")
	errDown    = errors.New("down")
)

type timeout struct{ after time.Duration }

func (t timeout) Error() string { return "timeout after " + t.after.String() }

type unable struct{ why string }

func (u unable) Applies(*Failure) (bool, error) { return false, errors.New(u.why) }

// ruled has a rule for each outcome, and one that cannot be evaluated before all.
func ruled() *Policy {
	return &Policy{Name: "p", Queues: []string{"q"}, Attempts: 3, Backoff: Fixed(time.Second), Jitter: None, MaxAge: time.Hour, Exhausted: Exhausted{Action: Discard},
		Rules: []Rule{
			{Name: "huge", When: unable{"its body has 3 MB"}, Then: Discard},
			{Name: "broken", When: If(func(f *Failure) bool { panic("no " + f.Queue) }), Then: Discard},
			{Name: "invalid", When: ErrorIs(errInvalid), Then: Park, Why: "the IBAN is wrong", Severity: "critical"},
			{Name: "slow", When: ErrorAs[timeout](), Then: Retry, Attempts: 20, Backoff: Exponential(time.Minute, 2, time.Hour)},
			{Name: "spam", When: If(func(f *Failure) bool { return f.Headers["kind"] == "spam" }), Then: Discard},
			{Name: "elsewhere", When: If(func(f *Failure) bool { return f.Headers["to"] != nil }), Then: Forward, Destination: Destination{RoutingKey: "other"}},
			{Name: "home", When: If(func(f *Failure) bool { return f.Headers["home"] != nil }), Then: Forward, Destination: Destination{RoutingKey: "q2"}},
			{Name: "late", When: If(func(f *Failure) bool { return f.Reason == "expired" }), Then: Retry},
			{Name: "loud", When: If(func(f *Failure) bool { return f.Error == "loud" }), Then: AsPolicy, Severity: "info"},
			{Name: "once", When: If(func(f *Failure) bool { return f.Attempt == 2 && f.Error == "once" }), Then: Retry, Attempts: 2},
		}}
}

func TestVerdictsOfRules(t *testing.T) {
	wrapped := fmt.Errorf("paying: %w", errInvalid)
	for name, c := range map[string]struct {
		f    Failure
		want string // action, delay, rule, severity
		why  string
	}{
		"errors.Is":               {Failure{Err: wrapped}, "park 0s invalid critical", `the IBAN is wrong (rule "invalid" of policy "p")`},
		"errors.As":               {Failure{Err: fmt.Errorf("x: %w", timeout{1}), Attempt: 3}, "retry 4m0s slow ", ""},
		"its own last attempt":    {Failure{Err: timeout{1}, Attempt: 20}, "discard 0s slow ", `it failed 20 times, and policy "p" allows 20 attempts; rule "slow"`},
		"too old for its backoff": {Failure{Err: timeout{1}, Attempt: 6, Age: 31 * time.Minute}, "discard 0s slow ", "it first failed 31m ago, the next attempt would be in 32m, and policy \"p\" retries for 1h (max_age)"},
		"just young enough":       {Failure{Err: timeout{1}, Attempt: 6, Age: 28 * time.Minute}, "retry 32m0s slow ", ""},
		"no rule":                 {Failure{Err: errDown}, "retry 1s  ", ""},
		"no rule, too old":        {Failure{Err: errDown, Age: time.Hour}, "discard 0s  ", "(max_age)"},
		"discard":                 {Failure{Headers: map[string]any{"kind": "spam"}}, "discard 0s spam ", `rule "spam" of policy "p"`},
		"forward":                 {Failure{Headers: map[string]any{"to": "anywhere"}}, "forward 0s elsewhere ", ""},
		"forward to itself":       {Failure{Queue: "q2", Headers: map[string]any{"home": 1}}, "park 0s home ", "not forwarded to the queue it failed in"},
		"a reason that is parked": {Failure{Reason: "maxlen"}, "park 0s  ", "does not retry"},
		"a rule retries it":       {Failure{Reason: "expired"}, "retry 1s late ", ""},
		"only its severity":       {Failure{Error: "loud"}, "retry 1s loud info", ""},
		"and not its reason":      {Failure{Error: "loud", Reason: "maxlen"}, "park 0s loud info", "does not retry"},
		"fewer attempts":          {Failure{Error: "once", Attempt: 2}, "discard 0s once ", "allows 2 attempts"},
		"more delay than allowed": {Failure{Err: timeout{1}, Suggested: 2 * time.Hour}, "retry 1h0m0s slow ", ""},
	} {
		if c.f.Queue == "" {
			c.f.Queue = "q"
		}
		if c.f.Reason == "" {
			c.f.Reason = "rejected"
		}
		c.f.Attempt = max(c.f.Attempt, 1)
		v := ruled().Decide(c.f)
		if got := fmt.Sprintf("%s %s %s %s", v.Action, v.Delay, v.Rule, v.Severity); got != c.want || !strings.Contains(v.Why, c.why) || v.Policy != "p" {
			t.Errorf("%s: %s, want %s: %q", name, got, c.want, v.Why)
		}
		if want := `rule "huge" of policy "p" was passed over: its body has 3 MB; rule "broken" of policy "p" was passed over: its condition panics: no ` + c.f.Queue; v.Note != want {
			t.Errorf("%s: the note is %q", name, v.Note)
		}
	}
	if v := ruled().Decide(Failure{Queue: "q", Reason: "rejected", Attempt: 1, Headers: map[string]any{"to": 1}}); v.Forward != (Destination{RoutingKey: "other"}) {
		t.Errorf("it is forwarded to %v", v.Forward)
	}
}

func TestRulesAreWithinTheirLimits(t *testing.T) {
	always := If(func(*Failure) bool { return true })
	for name, c := range map[string]struct {
		rules []Rule
		want  string
	}{
		"one of each":              {ruled().Rules, ""},
		"no name":                  {[]Rule{{When: always}}, "needs a name"},
		"a name with a zero":       {[]Rule{{Name: "a\x00", When: always}}, "zero byte"},
		"two of a name":            {[]Rule{{Name: "a", When: always}, {Name: "a", When: always}}, `a second rule is named "a"`},
		"after one without when":   {[]Rule{{Name: "a"}, {Name: "b", When: always}}, `rule "b" is never asked: rule "a"`},
		"the last without when":    {[]Rule{{Name: "a", When: always}, {Name: "b"}}, ""},
		"attempts and no retry":    {[]Rule{{Name: "a", Attempts: 3}}, "does not retry but park"},
		"a backoff and no retry":   {[]Rule{{Name: "a", Then: AsPolicy, Backoff: Fixed(0)}}, "does not retry but as the policy says"},
		"no such action":           {[]Rule{{Name: "a", Then: AsPolicy + 1}}, "no such action"},
		"negative attempts":        {[]Rule{{Name: "a", Then: Retry, Attempts: -1}}, "from 1 to 1000000"},
		"too many attempts":        {[]Rule{{Name: "a", Then: Retry, Attempts: MaxAttempts + 1}}, "from 1 to 1000000"},
		"an impossible backoff":    {[]Rule{{Name: "a", Then: Retry, Backoff: Fixed(-1)}}, "backoff"},
		"a target without forward": {[]Rule{{Name: "a", Then: Discard, Destination: Destination{RoutingKey: "x"}}}, "does not forward but discard"},
		"a forward to nothing":     {[]Rule{{Name: "a", Then: Forward}}, "needs an exchange or a queue"},
		"a forward to itself":      {[]Rule{{Name: "a", Then: Forward, Destination: Destination{RoutingKey: "q"}}}, "the queue it is for"},
		"a forward to Redrive":     {[]Rule{{Name: "a", Then: Forward, Destination: Destination{Exchange: "redrive"}}}, "Redrive's own"},
		"too long a name":          {[]Rule{{Name: "a", Then: Forward, Destination: Destination{RoutingKey: strings.Repeat("x", 256)}}}, "at most 255"},
		"an unknown severity":      {[]Rule{{Name: "a", Severity: "bad"}}, "not a severity"},
	} {
		p := ruled()
		p.Rules = c.rules
		validates(t, name, p.Validate(), c.want)
	}
	p := ruled()
	p.MaxAge = -1
	validates(t, "a negative age", p.Validate(), "max_age")
	p.MaxAge, p.Retention = 0, LongestDelay+1
	validates(t, "too long a retention", p.Validate(), "retention")
	p.Retention, p.Name = 0, "a\x00b"
	validates(t, "a policy's name with a zero", p.Validate(), "zero byte")
}

func TestOutcomesInWords(t *testing.T) {
	for want, r := range map[string]Rule{
		"park, severity critical":         {Severity: "critical"},
		"retry, fixed at 5m, 20 attempts": {Then: Retry, Backoff: Fixed(5 * time.Minute), Attempts: 20},
		`forward to queue "x"`:            {Then: Forward, Destination: Destination{RoutingKey: "x"}},
		"as the policy says":              {Then: AsPolicy},
	} {
		if got := r.Outcome(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := ruled().Destinations(); len(got) != 2 {
		t.Errorf("it forwards to %v", got)
	}
}
