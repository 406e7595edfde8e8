package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Names on the wire. They are a contract: queues, policies and permissions of
// users refer to them, so they never change.
const (
	// ExchangeDeadLetters is where enrolled work queues dead-letter to: durable,
	// internal, fanout. Clients cannot publish to an internal exchange, so
	// whatever arrives through it was dead-lettered by the broker.
	ExchangeDeadLetters = "redrive"
	// ExchangeFailures takes failures that a consumer reports itself: durable,
	// topic; the routing key is the work queue's name.
	ExchangeFailures = "redrive.failures"
	// QueueIntake is the quorum queue behind both exchanges.
	QueueIntake = "redrive.intake"
	// ExchangeAside (internal, fanout) leads to QueueAside, where RabbitMQ puts
	// what it fails to deliver from QueueIntake.
	ExchangeAside = "redrive.aside"
	QueueAside    = "redrive.aside"

	// ExchangeDue (internal, direct) is where messages that waited in a queue of
	// RabbitMQ's come out, bound to each work queue by its name.
	ExchangeDue = "redrive.due"
	// ExchangeParked (fanout) leads to QueueParked, the parking lot in RabbitMQ.
	ExchangeParked = "redrive.parked"
	QueueParked    = "redrive.parked"
	// DelayPrefix begins the names of queues in which messages wait, and of the
	// fanout exchange of the same name before each.
	DelayPrefix = "redrive.delay."
	// ExchangeDelayed is of the plugin's type x-delayed-message.
	ExchangeDelayed = "redrive.delayed"

	returnExchangePrefix = "redrive.return."
	moveExchangePrefix   = "redrive.move."
	// longestName is the limit of an AMQP short string, in bytes.
	longestName = 255
)

// ReturnExchange is the name of the fanout exchange that is bound to queue
// alone. A name over 255 bytes keeps its beginning and ends in a hash of the
// whole, so that two long names never share an exchange.
func ReturnExchange(queue string) string { return named(returnExchangePrefix, queue) }

// MoveExchange is the name of the fanout exchange that a queue's bindings lead to
// while the queue is moved, and of the queue by which only one moves it.
func MoveExchange(queue string) string { return named(moveExchangePrefix, queue) }

func named(prefix, queue string) string {
	name := prefix + queue
	if len(name) <= longestName {
		return name
	}
	sum := sha256.Sum256([]byte(queue))
	tail := "." + hex.EncodeToString(sum[:16])
	return strings.ToValidUTF8(name[:longestName-len(tail)], "") + tail
}

// OwnQueue reports whether a queue is one of Redrive's, which is never a work
// queue: bringing messages back to it would feed Redrive with its own output.
func OwnQueue(queue string) bool {
	return strings.HasPrefix(queue, "redrive.")
}
