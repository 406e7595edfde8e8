package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

var errInvalid = errors.New("invalid")

// kinds are rules for kinds of failure.
func kinds() []policy.Rule {
	return []policy.Rule{
		{Name: "invalid", When: policy.ErrorIs(errInvalid), Then: policy.Park, Why: "the message is wrong"},
		{Name: "late", When: policy.ErrorAs[*time.ParseError](), Then: policy.Discard},
		{Name: "tenant", When: policy.If(func(f *policy.Failure) bool { return f.Headers["tenant"] == "acme" && f.Attempt > 1 }), Then: policy.Forward, Destination: policy.Destination{RoutingKey: "acme"}},
		{Name: "down", When: policy.ErrorIs(errDown), Then: policy.Retry, Attempts: 3, Backoff: policy.Fixed(time.Minute)},
		{Name: "panics", When: policy.If(func(f *policy.Failure) bool { panic(f.Error) }), Then: policy.Discard},
	}
}

func TestRulesOfAConsumer(t *testing.T) {
	_, late := time.Parse(time.RFC3339, "soon")
	acme := amqp.Table{"tenant": "acme"}
	for _, service := range []bool{false, true} {
		c := redrive.Consumer{Queue: "q", Wait: redrive.Levels(time.Second, time.Minute, time.Hour), Policy: policy.Policy{Attempts: 5, Backoff: policy.Fixed(time.Second), Rules: kinds()}}
		other := time.Second
		if service {
			c.Wait, other = redrive.Service(), 0
			c.Policy = policy.Policy{Rules: kinds(), Jitter: policy.None}
		}
		for _, d := range []struct {
			err     error
			headers amqp.Table
			attempt int
			want    string
			delay   time.Duration
		}{
			{fmt.Errorf("paying: %w", errInvalid), nil, 1, `parked invalid: the message is wrong (rule "invalid" of policy "q")`, 0},
			{redrive.RetryAfter(errInvalid, time.Hour), nil, 1, `parked invalid: the message is wrong (rule "invalid" of policy "q")`, 0},
			{fmt.Errorf("reading: %w", late), nil, 1, `discarded late: rule "late" of policy "q"`, 0},
			{errors.New("x"), acme, 2, `forwarded tenant: rule "tenant" of policy "q"`, 0},
			{errors.New("x"), acme, 1, "retried : ", other},
			{errDown, nil, 2, "retried down: ", time.Minute},
			{errDown, nil, 3, `parked down: it failed 3 times, and policy "q" allows 3 attempts; rule "down"`, 0},
			{redrive.ErrDiscard, nil, 1, "discarded : ", 0},
			{redrive.Park(errDown), nil, 1, "parked : its handler parked it", 0},
		} {
			got, err := c.Decide(&redrive.Message{Attempt: d.attempt, Message: wire.Message{Headers: d.headers}}, d.err)
			if s := fmt.Sprintf("%s %s: %s", got.Outcome, got.Rule, got.Why); err != nil || s != d.want || got.Delay != d.delay {
				t.Errorf("service %v, %v: %s in %s, %v; want %s in %s", service, d.err, s, got.Delay, err, d.want, d.delay)
			}
		}
	}
}

func TestALongestAge(t *testing.T) {
	c := redrive.Consumer{Queue: "q", Wait: redrive.Levels(time.Second, time.Minute, time.Hour), Policy: policy.Policy{Attempts: 5, Backoff: policy.Fixed(time.Minute), MaxAge: time.Hour}}
	for age, want := range map[time.Duration]redrive.Outcome{0: redrive.Retried, 50 * time.Minute: redrive.Retried, 59*time.Minute + 30*time.Second: redrive.Parked} {
		if got, err := c.Decide(&redrive.Message{Attempt: 2, FirstFailed: time.Now().Add(-age)}, errDown); err != nil || got.Outcome != want {
			t.Errorf("after %s: %+v %v", age, got, err)
		}
	}
}

func TestRulesThatCannotBeAreRefused(t *testing.T) {
	for want, change := range map[string]func(*redrive.Consumer){
		"a rule needs a name": func(c *redrive.Consumer) { c.Policy.Rules = []policy.Rule{{Then: policy.Park}} },
		"needs a name, without": func(c *redrive.Consumer) {
			c.Wait, c.Policy.Rules = redrive.Service(), []policy.Rule{{Then: policy.Park}}
		},
		"waits 2h before attempt 2": func(c *redrive.Consumer) {
			c.Policy.Rules = []policy.Rule{{Name: "a", Then: policy.Retry, Backoff: policy.Fixed(2 * time.Hour)}}
		},
		`to the queue "q" itself`: func(c *redrive.Consumer) {
			c.Policy.Queues, c.Policy.Rules = []string{"q*"}, []policy.Rule{{Name: "a", Then: policy.Forward, Destination: policy.Destination{RoutingKey: "q"}}}
		},
		"the queue itself delays": func(c *redrive.Consumer) { c.Wait, c.Policy.MaxAge = redrive.Native(), time.Hour },
		"has a backoff of its own": func(c *redrive.Consumer) {
			c.Wait, c.Policy.Rules = redrive.Native(), []policy.Rule{{Name: "a", Then: policy.Retry, Backoff: policy.Fixed(time.Second)}}
		},
	} {
		c := redrive.Consumer{Queue: "q", Wait: redrive.Levels(time.Second, time.Hour), Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(time.Second)}}
		change(&c)
		if _, err := c.Decide(&redrive.Message{}, errDown); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// On RabbitMQ: a rule parks at once, another retries with its own number of attempts, and a retry
// has the priority of the policy.
func TestRulesAndPriorityOnRabbitMQ(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "classic", "x-max-priority": int32(9)})
		priority := uint8(2)
		cfg := config(t, v, policy.Policy{Attempts: 5, Backoff: policy.Fixed(50 * time.Millisecond), RetryPriority: &priority, Rules: []policy.Rule{
			{Name: "invalid", When: policy.ErrorIs(errInvalid), Then: policy.Park},
			{Name: "once", When: policy.ErrorIs(errDown), Then: policy.Retry, Attempts: 2},
		}})
		parked := make(chan redrive.ParkedMessage, 2)
		cfg.OnParked = func(_ context.Context, p redrive.ParkedMessage) { parked <- p }
		priorities := make(chan uint8, 10)
		stop := consume(t, cfg, func(_ context.Context, m *redrive.Message) error {
			priorities <- m.Priority
			if string(m.Body) == "invalid" {
				return fmt.Errorf("reading it: %w", errInvalid)
			}
			return errDown
		})
		defer func() { _ = stop() }()
		v.Publish("", "orders", amqp.Publishing{Body: []byte("invalid"), Priority: 5})
		p := <-parked
		if p.Attempt != 1 || p.Reason != `rule "invalid" of policy "orders"` {
			t.Errorf("%+v", p)
		}
		v.Publish("", "orders", amqp.Publishing{Body: []byte("down"), Priority: 5})
		if p = <-parked; p.Attempt != 2 || !strings.HasSuffix(p.Reason, `allows 2 attempts; rule "once"`) {
			t.Errorf("%+v", p)
		}
		if a, b, c := <-priorities, <-priorities, <-priorities; a != 5 || b != 5 || c != 2 {
			t.Errorf("the priorities are %d, %d and of the retry %d", a, b, c)
		}
	})
}
