package amqp10_test

import (
	"errors"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// A consumer of AMQP 1.0 says the error, the delay that it asks for, and that no retry can help. A
// message that it gives back without an error has none, although the attempt before had one.
func TestAConsumerOfAMQP10SaysWhy(t *testing.T) {
	onRabbitMQ4(t, func(t *testing.T, v *brokertest.VHost) {
		c := servertest.Config(t, v, "policies:\n  - {name: orders, queues: [orders], attempts: 3, backoff: {fixed: 1ms}, max_retry_after: 1m}\n")
		c.Store.Disk = t.TempDir()
		s := servertest.Run(t, c).Ready(t)
		v.Queue("orders", amqp091.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		r := receiver(t, v)

		v.Publish("", "orders", amqp091.Publishing{Body: []byte("to be retried"), MessageId: "m"})
		began := time.Now()
		must(t, failed(t.Context(), r, receive(t, r), errors.New("payments answers 503"), time.Second))
		m := receive(t, r)
		if took := time.Since(began); took < time.Second || string(m.GetData()) != "to be retried" || m.Annotations["x-opt-redrive-error"] != nil || m.Annotations["x-redrive-error"] != "payments answers 503" {
			t.Errorf("after %s: %q, %v", took, m.GetData(), m.Annotations)
		}
		must(t, failed(t.Context(), r, m, errors.New("payments answers 500"), 0))
		must(t, r.RejectMessage(t.Context(), receive(t, r), nil)) // its last attempt
		if p := s.WaitParked(t, 1)[0]; p.Error != "" || p.Attempt != 3 {
			t.Errorf("parked: %+v", p)
		}

		v.Publish("", "orders", amqp091.Publishing{Body: []byte("invalid")})
		must(t, parked(t.Context(), r, receive(t, r), "no such customer"))
		for _, p := range s.WaitParked(t, 2) {
			if p.Attempt == 1 && p.ParkedFor != "its consumer parked it: no such customer" {
				t.Errorf("parked by its consumer: %+v", p)
			}
		}
	})
}
