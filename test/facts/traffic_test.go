package facts_test

import (
	"net"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// vhost is where a fact is tried: an empty virtual host of a broker.
type vhost struct {
	broker
	Version string
	t       *testing.T
	channel *amqp.Channel // see own
}

// Dial connects; the connection ends with the test.
func (v *vhost) Dial() *amqp.Connection {
	v.t.Helper()
	return v.dial(v.t, nil)
}

// DialOver is Dial over a connection that wrap makes of the broker's.
func (v *vhost) DialOver(wrap func(net.Conn) net.Conn) *amqp.Connection {
	v.t.Helper()
	return v.dial(v.t, wrap)
}

// Channel opens a channel on a connection of its own.
func (v *vhost) Channel() *amqp.Channel {
	v.t.Helper()
	ch, err := v.Dial().Channel()
	must(v.t, err)
	return ch
}

// own is a channel that the virtual host keeps, for what a test does in passing.
func (v *vhost) own() *amqp.Channel {
	v.t.Helper()
	if v.channel == nil || v.channel.IsClosed() {
		v.channel = v.Channel()
		must(v.t, v.channel.Confirm(false))
	}
	return v.channel
}

// Queue declares a durable queue.
func (v *vhost) Queue(name string, args amqp.Table) {
	v.t.Helper()
	// RabbitMQ 3.10 ends the connection (541) when a quorum queue does not answer within a
	// few seconds, as on a machine with much to do.
	var err error
	for range 5 {
		if _, err = v.own().QueueDeclare(name, true, false, false, false, args); !isRefused(err, amqp.InternalError) {
			break
		}
	}
	must(v.t, err)
}

// Exchange declares a durable exchange and binds queues to it with their names as routing
// keys.
func (v *vhost) Exchange(name, kind string, queues ...string) {
	v.t.Helper()
	must(v.t, v.own().ExchangeDeclare(name, kind, true, false, false, false, nil))
	for _, q := range queues {
		must(v.t, v.own().QueueBind(q, q, name, false, nil))
	}
}

// Publish publishes and waits for the confirm: a test whose own message is lost proves
// nothing.
func (v *vhost) Publish(exchange, key string, p amqp.Publishing) {
	v.t.Helper()
	c, err := v.own().PublishWithDeferredConfirm(exchange, key, false, false, p)
	must(v.t, err)
	if !c.Wait() {
		v.t.Fatalf("RabbitMQ did not confirm a message to %q with routing key %q", exchange, key)
	}
}

// kill kills the node and starts it again.
func (v *vhost) kill(t *testing.T) {
	t.Helper()
	v.broker.kill(t)
	if v.channel != nil {
		_ = v.channel.Close()
		v.channel = nil
	}
}

// Depth is how many messages a queue has ready.
func (v *vhost) Depth(queue string) int {
	v.t.Helper()
	q, err := v.own().QueueDeclarePassive(queue, true, false, false, false, nil)
	must(v.t, err)
	return q.Messages
}

// Policy sets one for queues.
func (v *vhost) Policy(name, pattern string, priority int, definition map[string]any) {
	v.t.Helper()
	v.setPolicy(v.t, name, pattern, priority, definition)
}

// consumer takes the deliveries of one queue, one after the other.
type consumer struct {
	v       *vhost
	queue   string
	Channel *amqp.Channel
	In      <-chan amqp.Delivery
}

// Consume consumes a queue over a connection of its own, with a prefetch of one.
func (v *vhost) Consume(queue string) *consumer {
	v.t.Helper()
	return v.ConsumeOn(v.Channel(), queue)
}

// ConsumeOn is Consume on a channel of the test's.
func (v *vhost) ConsumeOn(ch *amqp.Channel, queue string) *consumer {
	v.t.Helper()
	must(v.t, ch.Qos(1, 0, false))
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	must(v.t, err)
	return &consumer{v, queue, ch, in}
}

// Next waits for a delivery.
func (c *consumer) Next() amqp.Delivery {
	c.v.t.Helper()
	select {
	case d, ok := <-c.In:
		if !ok {
			c.v.t.Fatalf("the consumer of %s was ended", c.queue)
		}
		return d
	case <-time.After(30 * time.Second):
		c.v.t.Fatalf("no delivery came from %s", c.queue)
	}
	return amqp.Delivery{}
}

// Take waits for a delivery, which must have this body, and acknowledges it.
func (c *consumer) Take(body string) amqp.Delivery {
	c.v.t.Helper()
	d := c.Next()
	if string(d.Body) != body {
		c.v.t.Fatalf("%.60q came from %s, want %.60q", d.Body, c.queue, body)
	}
	must(c.v.t, d.Ack(false))
	return d
}

// Reject waits for a delivery and dead-letters it.
func (c *consumer) Reject() amqp.Delivery {
	c.v.t.Helper()
	d := c.Next()
	must(c.v.t, d.Reject(false))
	return d
}

// Arrived takes a delivery that is there already.
func (c *consumer) Arrived() bool {
	c.v.settle()
	select {
	case <-c.In:
		return true
	default:
		return false
	}
}
