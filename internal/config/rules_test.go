package config

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/policy"
)

func TestRulesOfAFile(t *testing.T) {
	c, err := Parse("f.yaml", []byte(`
redirects:
  - {from: orders.old, to: orders.new}
policies:
  - name: orders
    queues: ["orders.*"]
    max_age: 2d
    retention: 4w
    retry_priority: 0
    rules:
      - {name: invalid, when: "error:/invalid IBAN|validation/", then: park, why: tell the customer, severity: critical}
      - {name: slow-bank, when: "error:*timeout* header.bank:slow*", backoff: {exponential: {initial: 5m, max: 6h}}, attempts: 20}
      - {name: gone, when: 'error:/order \d+ gone/', then: discard}
      - {name: refund, when: "type:Refund", then: {forward: {queue: refunds}}}
      - {name: once, when: "reason:expired", then: retry}
      - {when: "attempt:>3", severity: info}
      - {name: all, then: {forward: {exchange: alerts, routing_key: k}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	p := c.Policies[0]
	if p.MaxAge != 48*time.Hour || p.Retention != 4*7*24*time.Hour || p.RetryPriority == nil || *p.RetryPriority != 0 {
		t.Errorf("%+v", p)
	}
	var got []string
	for _, r := range p.Rules {
		got = append(got, r.Name+": "+r.Outcome())
	}
	want := `invalid: park, severity critical
slow-bank: retry, exponential from 5m, times 2, to 6h, 20 attempts
gone: discard
refund: forward to queue "refunds"
once: retry
rule 6: as the policy says, severity info
all: forward to exchange "alerts"`
	if strings.Join(got, "\n") != want {
		t.Errorf("the rules are\n%s", strings.Join(got, "\n"))
	}
	if p.Rules[0].Why != "tell the customer" || p.Rules[6].When != nil || p.Rules[6].Destination != (policy.Destination{Exchange: "alerts", RoutingKey: "k"}) {
		t.Errorf("%+v", p.Rules)
	}
	if v := p.Decide(policy.Failure{Queue: "orders.x", Reason: "rejected", Attempt: 1, Error: "order 17 gone"}); v.Rule != "gone" || v.Action != policy.Discard {
		t.Errorf("the verdict is %+v", v)
	}
	if !c.Policies.Exact("orders.new") || c.Policies.Exact("orders.old") || c.Redirects["orders.old"] != "orders.new" {
		t.Errorf("redirects %v, queues %q", c.Redirects, p.Queues)
	}
	var b strings.Builder
	if err := Describe(&b, c); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"retried for 2d at most", "parked for 28d, then discarded", "retries with priority 0", "rule invalid", "when error:/invalid IBAN|validation/", "always",
		"redirect", "orders.old", "retried to orders.new"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in:\n%s", want, b.String())
		}
	}
}

// All mistakes are reported at once, each at its place and with what to do.
func TestMistakesInRulesAreReportedTogether(t *testing.T) {
	_, err := Parse("f.yaml", []byte(`policies:
  - name: p
    queues: ["*"]
    rules:
      - {name: field, when: "erro:x", then: park}
      - {name: regex, when: "queue:a error:/(/", then: park}
      - {name: plain, when: state:parked, then: park}
      - {name: empty, when: " ", then: park}
      - {name: nothing, when: "error:x"}
      - {name: both, when: "error:a", then: park, attempts: 3}
      - {name: why, when: "error:b", then: discard, why: x}
      - {name: then, when: "error:c", then: drop}
      - {name: severity, when: "error:d", severity: bad}
      - {name: key, when: "error:e", action: park}
      - {name: good, when: "error:f", then: park}
      - {name: good, when: "error:g", then: park}
      - {name: twin, when: "error:f", then: park}
      - {name: always, then: park}
      - {name: never, when: "error:h", then: park}
`))
	if err == nil {
		t.Fatal("it is accepted")
	}
	for _, want := range []string{
		`f.yaml:5:30: policies[0].rules[0].when: character 1: there is no field "erro"`, "perhaps error", "docs/reference/query.md has the fields",
		"f.yaml:6:44: policies[0].rules[1].when: character 15: missing closing )",
		"f.yaml:7:29: policies[0].rules[2].when: character 1: a rule decides before a message has state",
		"f.yaml:8:29: policies[0].rules[3].when is empty; leave the key out",
		"f.yaml:9:9: policies[0].rules[4] has 2 keys and changes nothing; expected one of then, attempts, backoff, severity",
		"f.yaml:10:45: policies[0].rules[5] has attempts or a backoff, and does not retry but park; leave out one of them",
		"f.yaml:11:9: policies[0].rules[6] has a why",
		`f.yaml:12:45: policies[0].rules[7].then is "drop"; expected park, discard, retry, or forward`,
		`f.yaml:13:53: policies[0].rules[8].severity is "bad"; expected info, warning or critical`,
		`f.yaml:14:38: policies[0].rules[9] has no key "action"`,
		`a second rule is named "good"; give it another name`,
		`rule "twin" is never asked: rule "good" before it has the same when; remove one of them`,
		`f.yaml:19:9: rule "never" is never asked: rule "always" before it has no when, and applies to every failure; move it before that one`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in:\n%v", want, err)
		}
	}
}

func TestWhatRulesAndRedirectsCannotSay(t *testing.T) {
	const head = "policies:\n  - name: p\n    queues: [\"orders.*\"]\n"
	for _, c := range []struct{ yaml, want string }{
		{head + "    rules: []", "policies[0].rules is empty"},
		{head + "    rules: {a: b}", "expected a list of rules"},
		{head + "    max_age: 0s", `f.yaml:4:14: policies[0].max_age is "0s"; expected a duration such as 1h, 7d or 4w`},
		{head + "    retention: -1d", `policies[0].retention is "-1d"`},
		{head + "    retry_priority: 256", `f.yaml:4:21: policies[0].retry_priority is "256"; expected a number from 0 to 255`},
		{head + "    rules: [{name: a, then: {forward: {queue: redrive.intake}}}]", "Redrive's own"},
		{head + "    wait: message-ttl\n    backoff: {fixed: 10s}\n    rules: [{name: a, backoff: {fixed: 1h}}]", `rule "a" has a backoff of its own, and with message-ttl`},
		{head + "    wait: {levels: [1s]}\n    backoff: {fixed: 1s}\n    rules: [{name: a, backoff: {fixed: 1h}}]", `policy "p, rule a" waits 1h before attempt 2`},
		{"redirects: [{from: a}]", "redirects[0] needs both queues"},
		{"redirects: [{from: a, to: a}]", "to itself"},
		{"redirects: [{from: a, to: b}, {from: a, to: c}]", `is redirected to "b" already`},
		{"redirects: [{from: a, to: b}, {from: b, to: c}]", "redirect it there at once"},
		{"redirects: [{from: \"a.*\", to: b}]", "without patterns"},
		{"redirects: [{from: a, to: redrive.intake}]", "not Redrive's own"},
		{head + "redirects: [{from: a, to: b}]", `f.yaml:4:12: redirects: no policy is for the queue "b"`},
	} {
		_, err := Parse("f.yaml", []byte(c.yaml))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n%v\nwant %q", c.yaml, err, c.want)
		}
	}
}
