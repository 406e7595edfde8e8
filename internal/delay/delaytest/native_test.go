package delaytest

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay/native"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// The wait grows by as much each time, up to a longest, and RabbitMQ counts; a
// message that failed less often is not held up; and RabbitMQ 3.10 takes the
// arguments and does not wait, so it is refused.
func TestNativeGrowsLinearly(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		const step, longest = 200 * ms, 500 * ms
		b := newSuite(t, v, suiteWay{way: native.Way{}, queue: native.Arguments(step, longest)})
		c := b.work("orders")
		v.Publish("", "orders", amqp.Publishing{Body: []byte("a")})
		d := c.Next()
		waits := []time.Duration{step, 2 * step, longest, longest}
		if err := b.way.Limits().CheckVersion(v.Version); err != nil {
			began := time.Now()
			b.fail(d, "orders", step)
			c.Take("a")
			if time.Since(began) >= step {
				t.Errorf("RabbitMQ %s has waited %s, and we say that it cannot (%v)", v.Version, time.Since(began), err)
			}
			return
		}
		for i, w := range waits {
			if n := headers.Deliveries(d.Headers); n != int64(i) {
				t.Errorf("after %d failures RabbitMQ counts %d", i, n)
			}
			d = b.back(c, "a", b.fail(d, "orders", w))
		}
		b.fail(d, "orders", longest)
		v.Publish("", "orders", amqp.Publishing{Body: []byte("b")})
		b.fail(c.Next(), "orders", step)
		c.Take("b")
		c.Take("a")
	})
}
