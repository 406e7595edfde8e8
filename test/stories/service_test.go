// Package stories_test runs the service against real brokers, from the
// publisher's first message to the consumer's last.
package stories_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// service is a running Redrive.
type service struct{ *servertest.Service }

// start runs a service on a virtual host with policies in YAML, as a user with the
// rights that `redrive permissions` prints for them. It ends with the test.
func start(t *testing.T, v *brokertest.VHost, policies string) *service {
	return startAt(t, v, policies, t.TempDir())
}

func startAt(t *testing.T, v *brokertest.VHost, policies, data string) *service {
	t.Helper()
	return run(t, configured(t, v, policies, data))
}

func configured(t *testing.T, v *brokertest.VHost, policies, data string) *config.Config {
	t.Helper()
	c := servertest.Config(t, v, policies)
	c.Broker.Management, c.Store.Disk = "", data
	return c
}

func run(t *testing.T, c *config.Config) *service {
	t.Helper()
	return &service{servertest.Run(t, c)}
}

func (s *service) ready(t *testing.T) *service {
	t.Helper()
	s.Ready(t)
	return s
}

// wait waits for the next event of one of the kinds.
func (s *service) wait(t *testing.T, kinds ...retry.Kind) retry.Event {
	t.Helper()
	for {
		select {
		case e := <-s.Events:
			if slices.Contains(kinds, e.Kind) {
				return e
			}
		case <-time.After(brokertest.Patience):
			t.Fatalf("no event of %v came", kinds)
		}
	}
}

// kept is what the service shows of a queue.
func (s *service) kept(t *testing.T, queue string) inspect.Queue {
	t.Helper()
	st, err := s.Client.Overview(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range st.Queues {
		if q.Name == queue {
			return q
		}
	}
	return inspect.Queue{Name: queue}
}

// deadLettered declares a queue whose dead letters go to Redrive.
func deadLettered(v *brokertest.VHost, queue, kind string) {
	v.Queue(queue, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "redrive"})
}

// consumer takes deliveries of one queue.
type consumer struct {
	t  *testing.T
	ch *amqp.Channel
	in <-chan amqp.Delivery
}

func consume(t *testing.T, v *brokertest.VHost, queue string) *consumer {
	t.Helper()
	ch := v.Channel()
	if err := ch.Qos(1000, 0, false); err != nil {
		t.Fatal(err)
	}
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &consumer{t, ch, in}
}

func (c *consumer) next() amqp.Delivery {
	c.t.Helper()
	select {
	case d, ok := <-c.in:
		if !ok {
			c.t.Fatal("the consumer's channel closed")
		}
		return d
	case <-time.After(brokertest.Patience):
		c.t.Fatal("no delivery came")
	}
	return amqp.Delivery{}
}

func (c *consumer) none(within time.Duration) {
	c.t.Helper()
	select {
	case d := <-c.in:
		c.t.Errorf("a delivery came that should not: %q, headers %v", d.Body, d.Headers)
	case <-time.After(within):
	}
}

func reject(t *testing.T, d amqp.Delivery) time.Time {
	t.Helper()
	if err := d.Reject(false); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

// publish waits for RabbitMQ's confirm: a test whose own message is lost proves
// nothing.
func publish(t *testing.T, ch *amqp.Channel, exchange, key string, p amqp.Publishing) {
	t.Helper()
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	c, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, p)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Wait() {
		t.Fatalf("RabbitMQ did not confirm a message to %q with routing key %q", exchange, key)
	}
}

func TestMain(m *testing.M) {
	brokertest.AlsoByTLS()
	os.Exit(m.Run())
}
