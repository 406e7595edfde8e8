package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// Names on the wire. They are a contract: queues, policies and permissions of
// users refer to them, so they never change.
const (
	// ExchangeDeadLetters (internal, fanout) receives the dead letters of enrolled work queues. Clients cannot publish
	// to an internal exchange, so RabbitMQ itself has dead-lettered whatever arrives there.
	ExchangeDeadLetters = "redrive"
	// ExchangeFailures (topic) receives the failures that consumers report; the routing key is the work queue's name.
	ExchangeFailures = "redrive.failures"
	// QueueIntake (quorum) receives the messages of both exchanges, for the service.
	QueueIntake = "redrive.intake"
	// ExchangeQuarantine (internal, fanout) receives the messages that RabbitMQ fails to deliver from QueueIntake.
	ExchangeQuarantine = "redrive.quarantine"
	// QueueQuarantine (quorum) keeps those messages until the service has parked them.
	QueueQuarantine = "redrive.quarantine"

	// ExchangeDue (internal, direct) receives due messages that waited in RabbitMQ. It is
	// bound to each work queue by the queue's name.
	ExchangeDue = "redrive.due"
	// ExchangeLane (internal, direct) receives due messages of the delay queues that work queues share. It is bound to
	// the LaneQueue of each work queue by the work queue's name. Its alternate exchange is ExchangeDue.
	ExchangeLane = "redrive.lane"
	// ExchangeParked (fanout) receives the messages that are parked in RabbitMQ.
	ExchangeParked = "redrive.parked"
	// QueueParked keeps those messages until the service collects them.
	QueueParked = "redrive.parked"
	// DelayPrefix starts the name of each delay queue, and of the exchange of the same name
	// that it is bound to: fanout, or topic for Binary, whose last one ends in .lane.
	DelayPrefix = "redrive.delay."
	// ExchangeDelayed (x-delayed-message) delays messages in RabbitMQ's plugin.
	ExchangeDelayed = "redrive.delayed"

	retryExchangePrefix = "redrive.retry."
	moveExchangePrefix  = "redrive.move."
	lanePrefix          = ExchangeLane + "."
	// maxNameBytes is the limit of an AMQP short string, in bytes.
	maxNameBytes = 255
)

// RetryExchange returns the name of the fanout exchange that is bound to queue alone. A name
// over 255 bytes is cut and ends in a hash of the whole, and so is each name that could be such
// a short form of another, so that two queues never share an exchange.
func RetryExchange(queue string) string { return exchangeOrQueueName(retryExchangePrefix, queue) }

// MoveExchange returns the name of the fanout exchange that a queue's bindings lead to while
// the queue is moved, and of the exclusive queue that allows only one move at a time.
func MoveExchange(queue string) string { return exchangeOrQueueName(moveExchangePrefix, queue) }

// LaneQueue returns the name of the queue in which due messages of one work queue stay while
// that work queue does not accept them.
func LaneQueue(queue string) string { return exchangeOrQueueName(lanePrefix, queue) }

func exchangeOrQueueName(prefix, queue string) string {
	name := prefix + queue
	if len(name) <= maxNameBytes && !looksShortened(name) {
		return name
	}
	sum := sha256.Sum256([]byte(queue))
	tail := "." + hex.EncodeToString(sum[:hashSize])
	return strings.ToValidUTF8(name[:min(len(name), maxNameBytes-len(tail))], "") + tail
}

// hashSize is how many bytes of the hash are in a short form.
const hashSize = 16

// looksShortened reports whether a name could be the short form of another: it is as long as
// names may be, except for a character that was cut, and ends in a hash.
func looksShortened(name string) bool {
	at := len(name) - 2*hashSize
	if len(name) <= maxNameBytes-utf8.UTFMax || name[at-1] != '.' {
		return false
	}
	return strings.Trim(name[at:], "0123456789abcdef") == ""
}

// OwnQueue reports whether a queue is one of Redrive's, which is never a work
// queue: retrying messages to it would feed Redrive with its own output.
func OwnQueue(queue string) bool {
	return strings.HasPrefix(queue, "redrive.")
}
