package broker

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// ErrNotInternal: the exchange "redrive" exists and clients may publish to it, so
// what arrives through it proves nothing.
var ErrNotInternal = hint.Errorf("delete it and start again: Redrive declares it as it must be", `the exchange "redrive" exists and is not an internal, durable fanout exchange, so any client could forge dead letters`)

// DeliveryLimit is how often RabbitMQ tries to deliver a message from redrive.intake before it
// quarantines it. On RabbitMQ 3 there are messages over which it closes each connection that
// they are delivered to (541, see the facts), and only this limit removes them: about 10 ms
// each time [measured on 3.10.8]. For all other messages it is out of reach: BatchConsumer grows
// its window only step by step, so that the same message is in it at most some thirty times
// before it is the first; and then only connections count that end before a single message is stored.
//
// Quarantining is at-most-once on purpose. At-least-once dead-lettering runs in one process,
// and a forged x-death kills that in RabbitMQ 3 for the whole node. [measured on 3.10.8: quorum
// queues that use it are then refused with 541]
const DeliveryLimit = 100

// declareForIntake declares what the consumer of redrive.intake needs, once for each connection.
func declareForIntake(conn *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return explain(err)
	}
	defer ch.Close()
	if err := declareDeadLetterExchange(ch); err != nil {
		var e *amqp.Error
		if errors.As(err, &e) && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "inequivalent arg") {
			return permanentError{fmt.Errorf("%w (%s)", ErrNotInternal, e.Reason)}
		}
		return declaring("exchange", wire.ExchangeDeadLetters, err)
	}
	if err := ch.ExchangeDeclare(wire.ExchangeFailures, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return declaring("exchange", wire.ExchangeFailures, err)
	}
	if err := ch.ExchangeDeclare(wire.ExchangeQuarantine, amqp.ExchangeFanout, true, false, true, false, nil); err != nil {
		return declaring("exchange", wire.ExchangeQuarantine, err)
	}
	if err := declareQuarantineQueue(ch); err != nil {
		return declaring("queue", wire.QueueQuarantine, err)
	}
	if err := declareIntakeQueue(ch); err != nil {
		return declaring("queue", wire.QueueIntake, err)
	}
	for _, b := range [...]struct{ queue, key, exchange string }{
		{wire.QueueQuarantine, "", wire.ExchangeQuarantine},
		{wire.QueueIntake, "", wire.ExchangeDeadLetters},
		{wire.QueueIntake, "#", wire.ExchangeFailures},
	} {
		if err := ch.QueueBind(b.queue, b.key, b.exchange, false, nil); err != nil {
			return declaring("binding of "+b.queue+" to exchange", b.exchange, err)
		}
	}
	return nil
}

func declareDeadLetterExchange(ch *amqp.Channel) error {
	return ch.ExchangeDeclare(wire.ExchangeDeadLetters, amqp.ExchangeFanout, true, false, true, false, nil)
}

func declareIntakeQueue(ch *amqp.Channel) error {
	_, err := ch.QueueDeclare(wire.QueueIntake, true, false, false, false, amqp.Table{"x-queue-type": "quorum",
		"x-delivery-limit": int64(DeliveryLimit), "x-dead-letter-exchange": wire.ExchangeQuarantine})
	return err
}

// declareForParked declares redrive.parked, which the library and the ways to wait use.
func declareForParked(conn *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return explain(err)
	}
	defer ch.Close()
	return declare(ch, delay.Parked())
}

func declareQuarantineQueue(ch *amqp.Channel) error {
	_, err := ch.QueueDeclare(wire.QueueQuarantine, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": delay.NoLimit})
	return err
}

// inspectQueue returns how many messages and consumers a queue has.
func inspectQueue(conn *amqp.Connection, queue string) (q amqp.Queue, err error) {
	ch, err := conn.Channel()
	if err != nil {
		return q, explain(err)
	}
	defer ch.Close()
	return ch.QueueDeclarePassive(queue, true, false, false, false, nil)
}

func declaring(what, name string, err error) error {
	err = explain(err)
	if remedy := preconditionRemedy(what, name, err); remedy != "" {
		return hint.Errorf(remedy, "declaring the %s %q: %w", what, name, err)
	}
	return fmt.Errorf("declaring the %s %q: %w", what, name, err)
}
