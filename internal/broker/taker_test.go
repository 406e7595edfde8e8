package broker

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
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

// Messages come in order (RabbitMQ 4.3.6 does not keep it for requeued ones), each once. A window stays small in bytes,
// also when large messages follow small ones. What is not acknowledged is requeued, and after an error Done acknowledges
// no more than what was stored.
func TestATakerBoundsWhatItTakes(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("dlq", amqp.Table{"x-queue-type": "quorum"})
		const small, large, size = 6000, 40, 1 << 20
		for i := range small + large {
			p := amqp.Publishing{DeliveryMode: 2, Type: fmt.Sprint(i)}
			if i >= small {
				p.Body = make([]byte, size)
			}
			v.Publish("", "dlq", p)
		}
		acknowledged := map[string]bool{}
		for undone, failed := false, false; ; {
			taker, err := NewTaker(t.Context(), Config{URL: v.URL(), Name: "test"}, "dlq")
			expect.NoError(t, err)
			for {
				var came []string
				taken, err := taker.Take(t.Context(), 5000, func(window []wire.Delivery) error {
					bytes := 0
					for i := range window {
						bytes += len(window[i].Message.Body)
						m := window[i].Message.Type
						if next := fmt.Sprint(len(acknowledged) + len(came) + i); acknowledged[m] || !failed && m != next {
							t.Fatalf("message %s comes, not %s", m, next)
						}
					}
					if len(window) > maxWindow || bytes > batchBytes+size {
						t.Errorf("a window has %d messages and %d bytes", len(window), bytes)
					}
					if len(came) > 0 && !failed {
						failed = true
						return store.ErrFull
					}
					for i := range window {
						came = append(came, window[i].Message.Type)
					}
					return nil
				})
				expect.Equal(t, taken, len(came), "are taken")
				if err != nil {
					expect.Err(t, err, store.ErrFull, "Take")
				} else if taken == 0 {
					expect.Equal(t, len(acknowledged), small+large, "have come")
					taker.Close()
					return
				}
				if failed && err == nil && !undone {
					undone = true
					break // as at a crash
				}
				expect.NoError(t, taker.Done())
				for _, m := range came {
					acknowledged[m] = true
				}
				if err != nil {
					break
				}
			}
			taker.Close()
			brokertest.Eventually(t, "what was taken is requeued", func() bool { return v.Depth("dlq") == small+large-len(acknowledged) })
		}
	})
}
