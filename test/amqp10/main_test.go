// Package amqp10_test has an AMQP 1.0 consumer on RabbitMQ 4: what reaches Redrive of an outcome. It
// is a module of its own, since nothing else needs a client of AMQP 1.0.
package amqp10_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// onRabbitMQ4 runs a test on the brokers that speak AMQP 1.0 without a plugin.
func onRabbitMQ4(t *testing.T, test func(*testing.T, *brokertest.VHost)) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		if v.Since4() {
			test(t, v)
		}
	})
}

// onEachQueue runs a test with a work queue of each type, whose dead letters go to dlx.
func onEachQueue(t *testing.T, dlx string, test func(t *testing.T, v *brokertest.VHost, kind string)) {
	onRabbitMQ4(t, func(t *testing.T, v *brokertest.VHost) {
		for _, kind := range []string{"quorum", "classic"} {
			t.Run(kind, func(t *testing.T) {
				v.DeleteQueue("orders")
				v.Queue("orders", amqp091.Table{"x-queue-type": kind, "x-dead-letter-exchange": dlx})
				test(t, v, kind)
			})
		}
	})
}

// receiver consumes the queue orders by AMQP 1.0 until the test ends.
func receiver(t *testing.T, v *brokertest.VHost) *amqp.Receiver {
	t.Helper()
	u, err := url.Parse(v.URL())
	must(t, err)
	c, err := amqp.Dial(t.Context(), "amqp://"+u.Host, &amqp.ConnOptions{SASLType: amqp.SASLTypePlain("guest", "guest"), HostName: "vhost:" + v.Name})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	s, err := c.NewSession(t.Context(), nil)
	must(t, err)
	r, err := s.NewReceiver(t.Context(), "/queues/orders", &amqp.ReceiverOptions{Credit: 100})
	must(t, err)
	return r
}

func receive(t *testing.T, r *amqp.Receiver) *amqp.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	m, err := r.Receive(ctx, nil)
	must(t, err)
	return m
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
