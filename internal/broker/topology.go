package broker

import (
	"errors"
	"fmt"

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
// each time [measured on 3.10.8]. No other message reaches it.
// RabbitMQ counts a delivery of each message that is in the consumer's window when a connection
// ends. Each connection begins with a window of one message, and each window is eight times the one
// before: 8, 64, 512 and 4,096 (consumeWindow). A connection that ends at such a message has by then
// acknowledged a seventh of its last window, so of each size at most seven connections end before
// another message is acknowledged: it is delivered some thirty times.
// For a message that has become the first of the queue only those connections count that end
// before it is acknowledged.
//
// Quarantining is at-most-once on purpose. At-least-once dead-lettering runs in one process,
// and a forged x-death kills that in RabbitMQ 3 for the whole node. [measured on 3.10.8: quorum
// queues that use it are then refused with 541]
const DeliveryLimit = 100

// deadLetterExchange and intakeQueue are what failed messages come through.
var (
	deadLetterExchange = delay.Exchange{Name: wire.ExchangeDeadLetters, Kind: amqp.ExchangeFanout, Internal: true, Args: amqp.Table{"alternate-exchange": delay.Nowhere}}
	intakeQueue        = delay.Queue{Name: wire.QueueIntake, Args: amqp.Table{"x-queue-type": "quorum",
		"x-delivery-limit": int64(DeliveryLimit), "x-dead-letter-exchange": wire.ExchangeQuarantine}}
)

// intakeTopology is what the consumer of redrive.intake declares.
func intakeTopology() delay.Topology {
	q := quarantineTopology()
	return delay.Topology{
		Exchanges: append([]delay.Exchange{deadLetterExchange, delay.Own(wire.ExchangeFailures, amqp.ExchangeTopic)}, q.Exchanges...),
		Queues:    append(q.Queues, intakeQueue),
		Bindings: append(q.Bindings, delay.Binding{From: wire.ExchangeDeadLetters, ToQueue: wire.QueueIntake},
			delay.Binding{From: wire.ExchangeFailures, Key: "#", ToQueue: wire.QueueIntake}),
	}
}

// quarantineTopology is where RabbitMQ moves what it fails to deliver from the intake.
func quarantineTopology() delay.Topology {
	return delay.Topology{
		Exchanges: []delay.Exchange{{Name: wire.ExchangeQuarantine, Kind: amqp.ExchangeFanout, Internal: true, Args: amqp.Table{"alternate-exchange": wire.ExchangeQuarantine}}},
		Queues:    []delay.Queue{{Name: wire.QueueQuarantine, Args: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": delay.NoLimit}}},
		Bindings:  []delay.Binding{{From: wire.ExchangeQuarantine, ToQueue: wire.QueueQuarantine}},
	}
}

// declaring explains why something could not be declared.
func declaring(what, name string, err error) error {
	var e *amqp.Error
	refused := errors.As(err, &e)
	if err = explain(err); refused && name == wire.ExchangeDeadLetters && errors.Is(err, wire.ErrDiffers) {
		return permanentError{fmt.Errorf("%w (%s)", ErrNotInternal, e.Reason)}
	}
	if remedy := preconditionRemedy(what, name, err); remedy != "" {
		return hint.Errorf(remedy, "declaring the %s %q: %w", what, name, err)
	}
	return fmt.Errorf("declaring the %s %q: %w", what, name, err)
}
