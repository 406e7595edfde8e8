package management

import (
	"regexp"
	"slices"
	"testing"

	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
)

func TestTheServicesRights(t *testing.T) {
	orders, webhooks, rest := policy.Default(), policy.Default(), policy.Default()
	orders.Queues, webhooks.Queues, rest.Queues = []string{"orders.*", "mail"}, []string{"web?ook", "mail"}, []string{"*"}
	webhooks.Exhausted = policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{Exchange: "alerts+"}}
	r := ServiceRights(policy.Set{orders, webhooks})
	expect.Equal(t, r.Write, `^(redrive\..*|orders\..*|mail|web.ook|alerts\+)$`, "write")
	write := regexp.MustCompile(r.Write)
	for name, may := range map[string]bool{"orders.eu": true, "ordersXeu": false, "mail": true, "mail2": false, "webhook": true, "alerts+": true, "redrive": false, "redrive.retry.x": true, "redriveX": false} {
		if write.MatchString(name) != may {
			t.Errorf("may write %q: %t", name, !may)
		}
	}
	webhooks.Exhausted.Destination = policy.Destination{RoutingKey: "dead"}
	if r := ServiceRights(policy.Set{webhooks}); r.Write != `^(redrive\..*|web.ook|mail|amq\.default)$` {
		t.Errorf("write is %s", r.Write)
	}
	webhooks.Rules = []policy.Rule{{Then: policy.RuleOutcome{Action: policy.Forward, Destination: policy.Destination{Exchange: "slow"}}}}
	if r := ServiceRights(policy.Set{webhooks}); r.Write != `^(redrive\..*|web.ook|mail|amq\.default|slow)$` {
		t.Errorf("with a rule that forwards, write is %s", r.Write)
	}
	if r := ServiceRights(policy.Set{rest}); r.Write != ".*" || len(r.Notes) < 2 {
		t.Errorf("for all queues: %+v", r)
	}
	for _, r := range AllRights(policy.Set{orders}) {
		for _, p := range []string{r.Configure, r.Write, r.Read} {
			if _, err := regexp.Compile(p); err != nil || slices.Contains([]string{"", ".*"}, p) {
				t.Errorf("%s: %q %v", r.Role, p, err)
			}
		}
	}
}
