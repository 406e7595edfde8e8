package config

import (
	"reflect"
	"strings"
	"testing"
)

// The text that is shown of a policy is a policy of its own, which means the same.
func TestThePolicyThatIsShownIsTheOneInForce(t *testing.T) {
	const file = `policies:
  - name: orders
    queues: ["orders.*", payments] # a remark
    attempts: 3
    backoff:
      exponential: {initial: 1s, factor: 2, max: 10m}
    breaker: {share: 50%, least: 20}
  - {name: rest, queues: ["*"], attempts: 1}
`
	c, err := Parse("redrive.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"default": Default().PolicyYAML["default"]}
	for name, text := range c.PolicyYAML {
		texts[name] = text
	}
	if len(texts) != 3 {
		t.Fatalf("shown are %q", texts)
	}
	for name, text := range texts {
		again, err := Parse("again.yaml", []byte("policies:\n  - "+strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")+"\n"))
		if err != nil {
			t.Fatalf("%s:\n%s\n%v", name, text, err)
		}
		want, from := Default().Policies[0], Default()
		if name != "default" {
			from = c
			p, _ := c.Policies.Match(map[string]string{"orders": "payments", "rest": "x"}[name])
			want = *p
		}
		if !reflect.DeepEqual(again.Policies[0], want) || name != "default" && !reflect.DeepEqual(again.Throttle[name], from.Throttle[name]) {
			t.Errorf("%s:\n%s\nis %+v, not %+v", name, text, again.Policies[0], want)
		}
	}
}
