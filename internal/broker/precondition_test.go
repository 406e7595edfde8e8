package broker_test

import (
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// Versions before the quarantine declared redrive.intake with another dead-letter exchange, and
// RabbitMQ then refuses ours. The error names the argument and what to do; RabbitMQ does
// not delete a quorum queue only if it is empty, so the commands are two.
func TestAQueueDeclaredOtherwiseSaysWhatToDo(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue(wire.QueueIntake, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(broker.DeliveryLimit), "x-dead-letter-exchange": "redrive.aside"})
		l, err := broker.NewProbe(t.Context(), broker.Config{URL: v.URL(), Name: "test"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		err = l.DeclareAll()
		if !errors.Is(err, wire.ErrDiffers) {
			t.Fatalf("declared all the same: %v", err)
		}
		for _, part := range []string{`"redrive.intake"`, "x-dead-letter-exchange", "redrive.aside", "redrive.quarantine", "rabbitmqctl delete_queue -p '" + v.Name + "' redrive.intake`"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in: %v", part, err)
			}
		}
		var refused *amqp.Error
		if _, err := v.Channel().QueueDelete(wire.QueueIntake, false, true, false); !errors.As(err, &refused) || refused.Code != amqp.NotImplemented {
			t.Errorf("RabbitMQ deletes a quorum queue if it is empty: %v", err)
		}
		v.DeleteQueue(wire.QueueIntake)
		if err := l.DeclareAll(); err != nil {
			t.Errorf("after it was deleted: %v", err)
		}
	})
}
