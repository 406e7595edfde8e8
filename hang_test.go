package redrive_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// A forward target whose leader hangs holds up neither the retries of the consumer that
// forwards to it, as long as it has a free handler, nor those of the client's others.
func TestAForwardTargetThatHangsDelaysNothingElse(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		queues := []string{"orders", "others"}
		for _, q := range append(queues, "target") {
			v.Queue(q, amqp.Table{"x-queue-type": "quorum"})
		}
		leader := func(do string) {
			t.Helper()
			if _, err := n.Eval(t.Context(), fmt.Sprintf("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<%q>>, queue, <<%q>>)), ok = sys:%s(amqqueue:get_pid(Q)).", v.Name, "target", do)); err != nil {
				t.Fatal(err)
			}
		}
		c := config(t, v, fast(2))
		c.Concurrency = 4
		c.Policy.Exhausted = policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: "target"}}
		var out outcomes
		c.Metrics = out.metrics()
		client := connect(t, c.Config)
		var seen handled
		var running sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		defer running.Wait()
		defer cancel()
		for _, q := range queues {
			k := c.Consumer
			k.Queue, k.Handler = q, func(_ context.Context, m *redrive.Message) error {
				if m.Attempt == 1 || string(m.Body) == "stuck" {
					return errDown
				}
				seen.add(string(m.Body))
				return nil
			}
			running.Go(func() {
				if err := client.Consume(ctx, k); err != nil {
					t.Error(err)
				}
			})
		}
		// Through the consumer once, so that its delay queue is known to work.
		v.Publish("", "orders", amqp.Publishing{Body: []byte("before")})
		brokertest.Eventually(t, "a message is retried", func() bool { return seen.count("before") == 1 })
		leader("suspend")
		for range 3 {
			v.Publish("", "orders", amqp.Publishing{Body: []byte("stuck")})
		}
		brokertest.Eventually(t, "three are to be forwarded", func() bool { return out.count(redrive.Retried) == 4 && v.Depth("redrive.delay.50ms") == 0 })
		for i := range 20 {
			for _, q := range queues {
				v.Publish("", q, amqp.Publishing{Body: fmt.Append(nil, q, i)})
			}
		}
		brokertest.Eventually(t, "the others of both queues are retried", func() bool {
			for i := range 20 {
				for _, q := range queues {
					if seen.count(fmt.Sprint(q, i)) != 1 {
						return false
					}
				}
			}
			return true
		})
		if got := out.count(redrive.Forwarded); got != 0 {
			t.Errorf("%d are forwarded to a queue that hangs", got)
		}
		leader("resume")
		brokertest.Eventually(t, "three are forwarded", func() bool { return out.count(redrive.Forwarded) == 3 && v.Depth("target") == 3 })
	})
}
