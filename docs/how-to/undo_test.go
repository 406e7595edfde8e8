package howto_test

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// The consumer runs on all the time; what waits when it is undone still returns.
func TestAddingToARunningSystemAndUndo(t *testing.T) {
	program := build(t)
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", nil)
		deadLetters(t, v, map[string]any{"max-length": 1000})
		work := v.Consume("orders")
		v.Publish("", "orders", amqp.Publishing{Body: []byte("before")})
		work.Take("before")

		s := serve(t, v, "policies: [{name: orders, queues: [orders], attempts: 3, backoff: {fixed: 10s}, jitter: none}]")
		run(t, v, program, "enroll", "orders", "--dry-run")
		policy(t, v, "recipe")
		run(t, v, program, "enroll", "orders", "--yes")
		policy(t, v, "redrive.orders")
		failed := time.Now()
		v.Publish("", "orders", amqp.Publishing{Body: []byte("fails")})
		work.Reject()
		brokertest.Eventually(t, "it waits", func() bool {
			page, err := s.Client.Messages(context.Background(), "state:waiting queue:orders", "", 10)
			return err == nil && len(page.Messages) == 1
		})

		for _, look := range [][]string{{"status"}, {"queues"}, {"messages", "list", "queue:orders state:waiting"}, {"export", "queue:orders"}} {
			if out := run(t, v, program, append(look, "--address", s.Client.Addr)...); !strings.Contains(out, "orders") {
				t.Errorf("redrive %v does not show the queue:\n%s", look, out)
			}
		}

		run(t, v, program, "unenroll", "orders")
		policy(t, v, "recipe")
		if d := work.Take("fails"); d.Headers["x-redrive-attempt"] != int64(1) || time.Since(failed) < 10*time.Second {
			t.Errorf("it came back after %s with %v", time.Since(failed), d.Headers)
		}
		s.WaitParked(t, 0)
	})
}

// policy waits until RabbitMQ tells that a policy is in force.
func policy(t testing.TB, v *brokertest.VHost, name string) {
	t.Helper()
	brokertest.Eventually(t, "the policy "+name+" is in force", func() bool {
		q, err := v.API().Queue(context.Background(), "orders")
		return err == nil && q.Policy == name
	})
}
