package broker

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
)

// ErrNotInternal: the exchange "redrive" exists and clients may publish to it, so
// what arrives through it proves nothing.
var ErrNotInternal = errors.New(`the exchange "redrive" exists and is not an internal, durable fanout exchange, so anybody could forge dead letters: delete it and start again, and Redrive declares it as it must be`)

// noLimit is a delivery limit nobody reaches. RabbitMQ 4 gives quorum queues a
// limit of 20 and drops what passes it; a service that is killed 20 times would
// lose its intake. The same argument goes to every version, or an upgrade of the
// broker would be refused by its own queue (406). [measured: 3.10.8 and 4.3.6
// take it]
const noLimit = int64(1_000_000_000)

// declareTopology makes what the intake needs, once a connection.
func declareTopology(conn *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return explain(err)
	}
	defer ch.Close()
	if err := ch.ExchangeDeclare(redrive.ExchangeDeadLetters, amqp.ExchangeFanout, true, false, true, false, nil); err != nil {
		var e *amqp.Error
		if errors.As(err, &e) && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "inequivalent arg") {
			return permanent{fmt.Errorf("%w (%s)", ErrNotInternal, e.Reason)}
		}
		return declaring("exchange", redrive.ExchangeDeadLetters, err)
	}
	if err := ch.ExchangeDeclare(redrive.ExchangeFailures, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return declaring("exchange", redrive.ExchangeFailures, err)
	}
	if _, err := ch.QueueDeclare(redrive.QueueIntake, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": noLimit}); err != nil {
		return declaring("queue", redrive.QueueIntake, err)
	}
	for exchange, key := range map[string]string{redrive.ExchangeDeadLetters: "", redrive.ExchangeFailures: "#"} {
		if err := ch.QueueBind(redrive.QueueIntake, key, exchange, false, nil); err != nil {
			return declaring("binding of the intake to exchange", exchange, err)
		}
	}
	return nil
}

func declaring(what, name string, err error) error {
	return fmt.Errorf("declaring the %s %q: %w", what, name, explain(err))
}
