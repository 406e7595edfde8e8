package broker

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// Messages come in order, each once. A batch stays small in bytes, also when large messages follow a
// thousand small ones. What is not acknowledged is requeued.
func TestATakerBoundsWhatItTakes(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
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
