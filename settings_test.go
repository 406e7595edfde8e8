package redrive_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// What can only end in a loop, or at RabbitMQ, is refused before anything connects.
func TestQueuesThatCannotBeConsumedAreRefused(t *testing.T) {
	to := func(queue string) func(*setup) {
		return func(c *setup) {
			c.Policy.Queues = []string{"ord*"} // which Validate cannot compare
			c.Policy.Exhausted = policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: queue}}
		}
	}
	for want, change := range map[string]func(*setup){
		"forwards to the queue \"orders\" itself": to("orders"),
		"which is Redrive's own":                  to("redrive.parked"),
		"at most 255":                             func(c *setup) { c.Queue = strings.Repeat("x", 256) },
		"one of Redrive's own queues":             func(c *setup) { c.Queue = "redrive.intake" },
		"lets consumers ask for delays":           func(c *setup) { c.Policy.MaxRetryAfter = 2 * time.Hour },
	} {
		c := setup{Consumer: redrive.Consumer{Queue: "orders", Policy: fast(2), Wait: redrive.Levels()}}
		change(&c)
		if _, err := c.Decide(&redrive.Message{}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// RetryAfter may ask for up to MaxRetryAfter; what is more is cut, and that is logged.
func TestARetryAfterBeyondThePolicyIsLogged(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		var said brokertest.Output
		cfg := config(t, v, policy.Policy{Attempts: 3, Backoff: policy.Fixed(50 * time.Millisecond), MaxRetryAfter: 200 * time.Millisecond})
		cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
		const told = "longer delay than the policy allows"
		came := make(chan time.Time, 3)
		stop := consume(t, cfg, func(_ context.Context, m *redrive.Message) error {
			came <- time.Now()
			switch m.Attempt {
			case 1:
				return redrive.RetryAfter(errDown, 150*time.Millisecond)
			case 2:
				if strings.Contains(said.String(), told) {
					t.Error("a wait that the policy allows was cut")
				}
				return redrive.RetryAfter(errors.New("later"), time.Hour)
			}
			return nil
		})
		v.Publish("", "orders", amqp.Publishing{Body: []byte("7")})
		var last time.Time
		for n, least := range []time.Duration{0, 150 * time.Millisecond, 200 * time.Millisecond} {
			select {
			case at := <-came:
				if n > 0 && at.Sub(last) < least {
					t.Errorf("attempt %d came after %s, want %s", n+1, at.Sub(last), least)
				}
				last = at
			case <-time.After(30 * time.Second):
				t.Fatalf("attempt %d did not come", n+1)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(said.String(), told) || !strings.Contains(said.String(), "asked=1h0m0s") {
			t.Errorf("it said:\n%s", said.String())
		}
	})
}
