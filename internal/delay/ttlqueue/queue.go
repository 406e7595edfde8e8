// Package ttlqueue waits in queues whose messages expire. RabbitMQ then dead-letters them: from
// quorum queues that work queues share to the exchange redrive.lane, from the others to
// redrive.due. Both exchanges route by the name of the work queue.
//
// Each delay queue has a fanout exchange of its own before it, so that the routing key can be the
// name of the work queue from the first hop on. RabbitMQ keeps it when it dead-letters.
package ttlqueue

import (
	"maps"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Type of the delay queues.
type Type string

const (
	// Quorum queues dead-letter at-least-once: what waits survives the loss of a
	// minority of nodes, and is kept until it has arrived.
	Quorum Type = "quorum"
	// Classic queues are on one node, and dead-letter at-most-once: what expires while its work
	// queue cannot accept it is lost. A quorum work queue accepts nothing just after RabbitMQ has
	// started, when it has no leader yet and all that came due meanwhile is published. [measured
	// on 3.10.8]
	Classic Type = "classic"
)

func (t Type) survives() string {
	if t == Classic {
		return "a restart of RabbitMQ, but with a quorum work queue not what comes due meanwhile; not the loss of the queue's node"
	}
	return "a restart of RabbitMQ and the loss of a minority of its nodes"
}

// label is a delay as part of a name: "1s", "1m30s", "250ms".
func label(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// name of a delay queue and its exchange. It depends on the type: RabbitMQ refuses to declare a
// queue again with another type (406).
func (t Type) name(label string) string {
	if t == Classic {
		return wire.DelayPrefix + label + ".classic"
	}
	return wire.DelayPrefix + label
}

// delayQueue is a queue that work queues share, and the exchange before it.
func (t Type) delayQueue(name string, ttl time.Duration, more amqp.Table) delay.Topology {
	args := delay.AtLeastOnce(wire.ExchangeLane, ttl)
	if t == Classic {
		args = amqp.Table{"x-queue-type": string(t), "x-message-ttl": ttl.Milliseconds(), "x-dead-letter-exchange": wire.ExchangeDue}
	}
	maps.Copy(args, more)
	return queueBehind(name, args)
}

// queueBehind is a queue and the exchange of the same name before it.
func queueBehind(name string, args amqp.Table) delay.Topology {
	return delay.Topology{
		Exchanges: []delay.Exchange{delay.Own(name, amqp.ExchangeFanout)},
		Queues:    []delay.Queue{{Name: name, Args: args}},
		Bindings:  []delay.Binding{{From: name, ToQueue: name}},
	}
}

// roundUp rounds up, since no message may be retried early.
func roundUp(d, step time.Duration) time.Duration {
	if r := d % step; r > 0 {
		d += step - r
	}
	return d
}

// longest is RabbitMQ's limit for a time to live.
const longest = policy.LongestDelay
