package enroll

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

func TestPlans(t *testing.T) {
	limit := management.Policy{Name: "limits", Pattern: ".*", Priority: 7, Definition: map[string]any{"max-length": 5, "dead-letter-routing-key": "k"}}
	ours := management.Policy{Name: "redrive.ours", Pattern: "^ours$", Priority: 4, Definition: map[string]any{"dead-letter-exchange": "redrive"}}
	for _, c := range []struct {
		name        string
		queue       management.Queue
		atLeastOnce bool
		want        *management.Policy
		err         string
	}{
		{"no policy", management.Queue{Name: "a.b", Type: "classic"}, false,
			&management.Policy{Name: "redrive.a.b", Pattern: `^a\.b$`, ApplyTo: "queues", Definition: map[string]any{"dead-letter-exchange": "redrive"}}, ""},
		{"merged and above", management.Queue{Name: "q", Type: "quorum", Policy: "limits"}, false,
			&management.Policy{Name: "redrive.q", Pattern: "^q$", ApplyTo: "queues", Priority: 8, Definition: map[string]any{"dead-letter-exchange": "redrive", "max-length": 5}}, ""},
		{"at least once", management.Queue{Name: "q", Type: "quorum"}, true,
			&management.Policy{Name: "redrive.q", Pattern: "^q$", ApplyTo: "queues", Definition: map[string]any{"dead-letter-exchange": "redrive", "dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}}, ""},
		{"at least once on a classic queue", management.Queue{Name: "q", Type: "classic"}, true, nil, "needs a quorum queue"},
		{"ours goes on, at least once", management.Queue{Name: "ours", Type: "quorum", Policy: "redrive.ours"}, true,
			&management.Policy{Name: "redrive.ours", Pattern: "^ours$", ApplyTo: "queues", Priority: 4, Definition: map[string]any{"dead-letter-exchange": "redrive", "dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}}, ""},
		{"ours applies already", management.Queue{Name: "ours", Type: "quorum", Policy: "redrive.ours"}, false, nil, ""},
		{"at least once against the queue's overflow", management.Queue{Name: "q", Type: "quorum", Arguments: map[string]any{"x-overflow": "drop-head"}}, true, nil, `x-overflow "drop-head"`},
		{"at least once against the queue's strategy", management.Queue{Name: "q", Type: "quorum", Arguments: map[string]any{"x-dead-letter-strategy": "at-most-once"}}, true, nil, "x-dead-letter-strategy"},
		{"by argument", management.Queue{Name: "q", Arguments: map[string]any{"x-dead-letter-exchange": "redrive"}}, false, nil, ""},
		{"elsewhere by argument", management.Queue{Name: "q", Arguments: map[string]any{"x-dead-letter-exchange": "dlx"}}, false, nil, "no policy can change"},
	} {
		p, err := plan(c.queue, []management.Policy{limit, ours}, serviceTarget(c.queue.Name), c.atLeastOnce)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		expect.NoError(t, err)
		expect.Equal(t, cmp.Diff(c.want, p.Policy), "", "%s (-want +got):\n", c.name)
	}
}

// Plans that differ in the names alone are one text, and none that differs otherwise is left out.
func TestEqualPlansAreShownOnce(t *testing.T) {
	var plans []*Plan
	for _, q := range []management.Queue{{Name: "orders.1", Type: "quorum"}, {Name: "mail", Type: "classic"},
		{Name: "orders.2", Type: "quorum"}, {Name: "orders.10", Type: "quorum"}} {
		p, err := plan(q, nil, serviceTarget(q.Name), false)
		expect.NoError(t, err)
		plans = append(plans, p)
	}
	var shown strings.Builder
	Write(&shown, "will", plans...)
	expect.Contains(t, shown.String(), "the plan", `will set policy "redrive.orders.1", `, `will set policy "redrive.mail", `,
		"\nthe same for 2 more: orders.2, orders.10\n\nqueue \"mail\"")
	expect.Equal(t, strings.Count(shown.String(), "will set policy"), 2, "plans that are shown")
}

// RabbitMQ lists policies by name, and which of them applies has nothing to do with that order.
func TestThePolicyOfTheHighestPriorityAppliesInAnyOrder(t *testing.T) {
	a, b := management.Policy{Name: "a", Pattern: "."}, management.Policy{Name: "b", Pattern: "."}
	high := management.Policy{Name: "high", Pattern: ".", Priority: 5}
	other := management.Policy{Name: "other", Pattern: "^x$", Priority: 9}
	q := management.Queue{Name: "q", Type: "quorum"}
	for _, all := range [][]management.Policy{{a, b, high, other}, {a, high, b, other}, {other, high, a, b}} {
		if best, known := policyWithout(q, all, ""); !known || best.Name != "high" {
			t.Errorf("of %v: %v, known %v", all, best, known)
		}
		if best, known := policyWithout(q, all, "high"); known {
			t.Errorf("of two with the same priority: %v", best)
		}
	}
	for _, all := range [][]management.Policy{{{Name: "(", Pattern: "("}, high}, {high, {Name: "(", Pattern: "("}}} {
		if best, known := policyWithout(q, all, ""); known {
			t.Errorf("with a pattern that Go cannot compile: %v", best)
		}
	}
}

// In a circle of the broker alone at-least-once stands still, so it is taken away
// where a policy can, and refused where it cannot.
func TestPlansOfTheBrokerAlone(t *testing.T) {
	theirs := management.Policy{Name: "theirs", Priority: 2, Definition: map[string]any{"dead-letter-exchange": "old", "dead-letter-strategy": "at-least-once", "max-length": 5}}
	a, err := NewFixedDelay("q", "", time.Minute, delay.Quorum)
	expect.NoError(t, err)
	p, err := plan(management.Queue{Name: "q", Type: "quorum", Policy: "theirs"}, []management.Policy{theirs}, a.target(), false)
	expect.NoError(t, err)
	def := map[string]any{"dead-letter-exchange": "redrive.delay.1m.alone", "dead-letter-routing-key": "q", "max-length": 5}
	if d := cmp.Diff(&management.Policy{Name: "redrive-fixed.q", Pattern: "^q$", ApplyTo: "queues", Priority: 3, Definition: def}, p.Policy); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	again, err := plan(management.Queue{Name: "q", Policy: p.Policy.Name}, []management.Policy{*p.Policy}, a.target(), false)
	if err != nil || again.Policy != nil {
		t.Errorf("a second plan: %+v, %v", again, err)
	}
	for _, args := range []map[string]any{
		{"x-dead-letter-strategy": "at-least-once"},
		{"x-dead-letter-exchange": "redrive.delay.1m.alone"}, // its routing key would stay
	} {
		if p, err := plan(management.Queue{Name: "q", Arguments: args}, nil, a.target(), false); err == nil {
			t.Errorf("%v: %+v", args, p)
		}
	}
}

// On a real broker: the policy that applied goes on applying, dead letters go to
// Redrive, and undoing restores what was.
func TestEnrollAndUndo(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ctx, m := context.Background(), v.API()
		v.Queue("work.q", amqp.Table{"x-queue-type": "classic"})
		v.Policy("theirs", "^work", 3, map[string]any{"max-length": 100, "message-ttl": 86_400_000})
		inForce := func(name string) {
			t.Helper()
			brokertest.Eventually(t, name+" is in force", func() bool {
				q, err := m.Queue(ctx, "work.q")
				expect.NoError(t, err)
				return q.Policy == name
			})
		}
		inForce("theirs")
		p, err := planOf(ctx, m, "work.q")
		expect.NoError(t, err)
		var shown strings.Builder
		Write(&shown, "will", p)
		for _, want := range []string{`policy "theirs" of priority 3 applies`, "+ dead-letter-exchange: redrive", "    max-length: 100", "    message-ttl: 86400000"} {
			if !strings.Contains(shown.String(), want) {
				t.Errorf("%q is not shown:\n%s", want, shown.String())
			}
		}
		expect.NoError(t, p.Apply(ctx, m))
		inForce("redrive.work.q")
		ch := v.Channel()
		expect.NoError(t, ch.ExchangeDeclare("redrive", "fanout", true, false, true, false, nil))
		if err := ch.ExchangeDeclarePassive(wire.RetryExchange("work.q"), "fanout", true, false, false, false, nil); err != nil {
			t.Errorf("the retry exchange: %v", err)
		}
		if p, err := planOf(ctx, m, "work.q"); err != nil || p.Policy != nil {
			t.Errorf("a second plan: %+v, %v", p.Policy, err)
		}
		disallows := func(want string) {
			t.Helper()
			found, missing, err := PlanDisallow(ctx, m, []string{"work.q"})
			expect.NoError(t, err)
			expect.Equal(t, fmt.Sprint(found, missing), want, "may lose their retry exchange")
		}
		disallows(`[] [queue "work.q": it is enrolled, so its retry exchange would be declared again]`)
		expect.NoError(t, Undo(ctx, m, "work.q"))
		inForce("theirs")
		disallows("[work.q] []")
		expect.NoError(t, Disallow(ctx, m, "work.q"))
		expect.NoError(t, Disallow(ctx, m, "work.q")) // somebody else was faster
		disallows(`[] [queue "work.q": nothing to undo: there is no exchange "redrive.retry.work.q"]`)
		expect.Err(t, Undo(ctx, m, "work.q"), ErrNotEnrolled, "undoing twice")
		expect.Err(t, expect.ErrOf(planOf(ctx, m, "nothing")), management.ErrNotFound, "a queue that does not exist")
		if _, err := planOf(ctx, m, "redrive.intake"); err == nil {
			t.Error("Redrive's own queue was enrolled")
		}
	})
}

// planOf is what the command plans for one queue.
func planOf(ctx context.Context, m *management.Client, queue string) (*Plan, error) {
	all, _, err := PlanMany(ctx, m, []string{queue}, "", false)
	if err != nil {
		return nil, err
	}
	return all[0].Plan, all[0].Err
}

const noStatistics = "management_agent.disable_metrics_collector = true\nmanagement.disable_stats = true"

// Enrolling goes by what is in force, also where RabbitMQ has no statistics. It leaves out what remains of
// an older RabbitMQ, ignores a policy that does not apply to the queue's type, and changes nothing where its
// policy is refused.
func TestEnrollGoesByWhatIsInForce(t *testing.T) {
	type test = func(*testing.T, *brokertest.VHost, *rabbitnode.Node)
	for config, on := range map[string]func(*testing.T, string, test){"": brokertest.OnePrivate, noStatistics: brokertest.EachPrivate} {
		on(t, config, func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
			ctx, m := t.Context(), v.API()
			v.Policy("theirs", "^work", 3, map[string]any{"max-length": 100})
			v.Policy("other-type", "^work", 9, map[string]any{"max-length": 7, "stream-max-segment-size-bytes": 1000}) // no queue here has it
			v.Must("PUT", "operator-policies/"+url.PathEscape(v.Name)+"/op", map[string]any{"pattern": "^work", "definition": map[string]any{"max-length": 50}})
			// As it is after an upgrade: without a check.
			left := `rabbit_db_rtparams:set(<<"%s">>, <<"policy">>, <<"left">>, [{<<"pattern">>, <<"^%s">>}, {<<"apply-to">>, <<"queues">>}, {<<"priority">>, 5},
				{<<"definition">>, [{<<"max-length">>, 60}, {<<"%s">>, <<"%s">>}]}]).`
			if !v.Since4() {
				left = strings.Replace(left, `rabbit_db_rtparams:set(<<"%s">>, <<"policy">>, <<"left">>, [`, `mnesia:dirty_write(rabbit_runtime_parameters, {runtime_parameters, {<<"%s">>, <<"policy">>, <<"left">>}, [`, 1)
				left = strings.TrimSuffix(left, ").") + "})."
			}
			store := func(pattern, key, value string) {
				t.Helper()
				expect.NoError(t, expect.ErrOf(n.Eval(t.Context(), fmt.Sprintf(left, v.Name, pattern, key, value))))
			}
			store("work.left", "ha-mode", "all")
			keys := map[string]map[string]any{
				"work.classic": {"dead-letter-exchange": "redrive", "max-length": 100.0},
				"work.quorum":  {"dead-letter-exchange": "redrive", "max-length": 100.0},
				"work.left":    {"dead-letter-exchange": "redrive", "max-length": 60.0, "ha-mode": "all"},
			}
			for queue := range keys {
				v.Queue(queue, amqp.Table{"x-queue-type": map[bool]string{true: "quorum", false: "classic"}[queue == "work.quorum"]})
			}
			if v.Since4() {
				delete(keys["work.left"], "ha-mode")
			}
			all, _, err := PlanMany(ctx, m, nil, "work.*", false)
			if err != nil || len(all) != len(keys) {
				t.Fatalf("%d plans, %v", len(all), err)
			}
			for _, one := range all {
				if one.Err != nil {
					t.Errorf("%s: %v", one.Queue, one.Err)
					continue
				}
				expect.Equal(t, cmp.Diff(keys[one.Queue], one.Plan.Policy.Definition), "",
					"%s (-want +got):\n", one.Queue)
				var shown strings.Builder
				Write(&shown, "will", one.Plan)
				if says := strings.Contains(shown.String(), "leaves out ha-mode"); says != (v.Since4() && one.Queue == "work.left") {
					t.Errorf("shown:\n%s", &shown)
				}
				if !strings.Contains(shown.String(), `the operator policy "op" makes it 50`) {
					t.Errorf("shown:\n%s", &shown)
				}
				expect.Err(t, one.Plan.Apply(ctx, m), nil, "%s", one.Queue)
			}
			c := management.NewConsent(m, "redrive")
			ctx, stop := context.WithCancel(ctx)
			asking := make(chan struct{})
			go func() { defer close(asking); c.Run(ctx) }()
			for queue := range keys {
				brokertest.Eventually(t, "the owner of "+queue+" has consented", func() bool {
					yes, _, err := c.Consented(queue)
					expect.NoError(t, err)
					return yes
				})
			}
			stop()
			<-asking
			// A key that Redrive does not know to be refused.
			store("refused", "unknown-key", "x")
			v.Queue("refused", amqp.Table{"x-queue-type": "classic"})
			p, err := planOf(t.Context(), m, "refused")
			expect.NoError(t, err)
			before, _ := m.Exchanges(t.Context())
			expect.Err(t, p.Apply(t.Context(), m), management.ErrRefused, "it was applied")
			if after, _ := m.Exchanges(t.Context()); len(after) != len(before) || len(before) == 0 {
				t.Errorf("it left %d exchanges of %d", len(after), len(before))
			}
			policies, err := m.Policies(t.Context())
			if err != nil || management.PolicyNamed(policies, "redrive.refused") != nil || len(policies) != 3+len(keys) {
				t.Errorf("policies are %+v, %v", policies, err)
			}
		})
	}
}
