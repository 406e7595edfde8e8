package brokertest

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Patience is how long a test waits for what must happen: longer than the busiest machine takes.
const Patience = 3 * time.Minute

// own is a channel that the virtual host keeps, for what a test does in passing.
func (v *VHost) own() *amqp.Channel {
	v.t.Helper()
	if v.channel == nil || v.channel.IsClosed() {
		v.channel = v.Channel()
		if err := v.channel.Confirm(false); err != nil {
			v.t.Fatal(err)
		}
	}
	return v.channel
}

// Publish publishes and waits for RabbitMQ's confirm: a test whose own message
// is lost proves nothing.
func (v *VHost) Publish(exchange, key string, p amqp.Publishing) {
	v.t.Helper()
	c, err := v.own().PublishWithDeferredConfirm(exchange, key, false, false, p)
	if err != nil {
		v.t.Fatal(err)
	}
	if !c.Wait() {
		v.t.Fatalf("RabbitMQ did not confirm a message to %q with routing key %q", exchange, key)
	}
}

// Exchange declares a durable exchange and binds queues to it with their names
// as routing keys.
func (v *VHost) Exchange(name, kind string, queues ...string) {
	v.t.Helper()
	if err := v.own().ExchangeDeclare(name, kind, true, false, false, false, nil); err != nil {
		v.t.Fatal(err)
	}
	for _, q := range queues {
		if err := v.own().QueueBind(q, q, name, false, nil); err != nil {
			v.t.Fatal(err)
		}
	}
}

// Consumer takes the deliveries of one queue, one after the other.
type Consumer struct {
	t       testing.TB
	queue   string
	Channel *amqp.Channel
	In      <-chan amqp.Delivery
}

// Consume consumes a queue over a connection of its own, with a prefetch of one.
func (v *VHost) Consume(queue string) *Consumer {
	v.t.Helper()
	return v.ConsumeOn(v.Channel(), queue)
}

// ConsumeOn is Consume on a channel of the test's.
func (v *VHost) ConsumeOn(ch *amqp.Channel, queue string) *Consumer {
	v.t.Helper()
	if err := ch.Qos(1, 0, false); err != nil {
		v.t.Fatal(err)
	}
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	return &Consumer{v.t, queue, ch, in}
}

// Next waits for a delivery.
func (c *Consumer) Next() amqp.Delivery {
	c.t.Helper()
	select {
	case d, ok := <-c.In:
		if !ok {
			c.t.Fatalf("the consumer of %s was ended", c.queue)
		}
		return d
	case <-time.After(Patience):
		c.t.Fatalf("no delivery came from %s", c.queue)
	}
	return amqp.Delivery{}
}

// Take waits for a delivery, which must have this body, and acknowledges it.
func (c *Consumer) Take(body string) amqp.Delivery {
	c.t.Helper()
	d := c.Next()
	if string(d.Body) != body {
		c.t.Fatalf("%.60q came from %s, want %.60q", d.Body, c.queue, body)
	}
	if err := d.Ack(false); err != nil {
		c.t.Fatal(err)
	}
	return d
}

// Reject waits for a delivery and dead-letters it.
func (c *Consumer) Reject() amqp.Delivery {
	c.t.Helper()
	d := c.Next()
	if err := d.Reject(false); err != nil {
		c.t.Fatal(err)
	}
	return d
}

// Arrived takes a delivery that is there already.
func (c *Consumer) Arrived() bool {
	select {
	case <-c.In:
		return true
	default:
		return false
	}
}
