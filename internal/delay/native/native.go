// Package native leaves the waiting to the work queue itself: the delayed retry
// of RabbitMQ 4.3's quorum queues.
package native

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
)

// Way rejects with requeue. A nack would not count as a failure: RabbitMQ 4.3 delivers such a
// message again for ever, at the shortest delay. [measured on 4.3.6]
type Way struct{}

// Limits implements delay.Way.
func (Way) Limits() delay.Limits {
	return delay.Limits{Name: "native", Longest: 24 * 24 * time.Hour, Linear: true, QueueCounts: true,
		Survives: "a restart of RabbitMQ and the loss of a minority of its nodes",
		Declares: "nothing: the work queue itself has the arguments or a policy",
		Needs:    "RabbitMQ 4.3; older ones accept the arguments and ignore them", Since: [2]int{4, 3}}
}

// Arguments are those of a work queue that delays its messages: min after the first failure, min
// more after each further one, and max at most.
func Arguments(min, max time.Duration) amqp.Table {
	return amqp.Table{"x-queue-type": "quorum", "x-delayed-retry-type": "failed",
		"x-delayed-retry-min": min.Milliseconds(), "x-delayed-retry-max": max.Milliseconds(),
		// RabbitMQ 4 drops what passes its own limit, 20, when there is no
		// dead-letter exchange; the policy says how many attempts there are.
		"x-delivery-limit": delay.NoLimit}
}

// Topology implements delay.Way.
func (Way) Topology(string) delay.Topology { return delay.Parked() }

// Ticket implements delay.Way.
func (Way) Ticket(_ string, wait time.Duration) (delay.Ticket, error) {
	return delay.Ticket{Requeue: true, Delay: wait}, nil
}
