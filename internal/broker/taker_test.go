package broker

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// A sample is put back, each message at its place; if RabbitMQ does not count the look, as often as one likes.
func TestASampleIsPutBack(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		for _, kind := range []string{"classic", "quorum"} {
			queue := kind + ".dlq"
			args := amqp.Table{"x-queue-type": kind}
			if kind == "quorum" {
				args["x-delivery-limit"] = 5
			}
			v.Queue(queue, args)
			const n = 300
			for i := range n {
				v.Publish("", queue, amqp.Publishing{DeliveryMode: 2, Type: fmt.Sprint(i), Body: make([]byte, 1000)})
			}
			taker, err := NewTaker(t.Context(), Config{URL: v.URL(), Name: "test"}, queue)
			expect.NoError(t, err)
			defer taker.Close()
			looks := 3
			if free, _ := delay.VersionAtLeast(taker.Version(), 4, 3); free {
				looks = 10
			}
			for range looks {
				batch, err := taker.Sample(t.Context(), 200)
				expect.NoError(t, err)
				expect.Equal(t, len(batch), 200, "are looked at")
				for i := range batch {
					expect.Equal(t, batch[i].Message.Type, fmt.Sprint(i), "comes next")
				}
				brokertest.Eventually(t, "all are back", func() bool { return v.Depth(queue) == n })
			}
			c := v.ConsumeMany(queue)
			for i := range n {
				d := c.Next()
				if d.Type != fmt.Sprint(i) || d.Redelivered != (i < 200) {
					t.Fatalf("%s: message %s comes as number %d, redelivered %t", kind, d.Type, i, d.Redelivered)
				}
			}
		}
	})
}

// Messages come in order, each once. A batch stays small in bytes, also when large messages follow a
// thousand small ones. What is not acknowledged is requeued.
func TestATakerBoundsWhatItTakes(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("dlq", amqp.Table{"x-queue-type": "quorum"})
		const small, large, size = 1200, 40, 1 << 20
		for i := range small + large {
			p := amqp.Publishing{DeliveryMode: 2, Type: fmt.Sprint(i)}
			if i >= small {
				p.Body = make([]byte, size)
			}
			v.Publish("", "dlq", p)
		}
		for next, undone := 0, false; ; {
			taker, err := NewTaker(t.Context(), Config{URL: v.URL(), Name: "test"}, "dlq")
			expect.NoError(t, err)
			for {
				batch, err := taker.Take(t.Context(), 5000)
				expect.NoError(t, err)
				bytes := 0
				for i := range batch {
					bytes += len(batch[i].Message.Body)
					expect.Equal(t, batch[i].Message.Type, fmt.Sprint(next+i), "comes next")
				}
				if len(batch) > maxTaken || bytes > batchBytes+size {
					t.Errorf("a batch has %d messages and %d bytes", len(batch), bytes)
				}
				if len(batch) == 0 {
					expect.Equal(t, next, small+large, "have come")
					taker.Close()
					return
				}
				if next > 500 && !undone {
					undone = true
					break // as at a crash
				}
				expect.NoError(t, taker.Done())
				next += len(batch)
			}
			taker.Close()
			brokertest.Eventually(t, "what was taken is requeued", func() bool { return v.Depth("dlq") == small+large-next })
		}
	})
}
