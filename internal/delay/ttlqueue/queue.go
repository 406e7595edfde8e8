// Package ttlqueue waits in queues whose messages expire and are dead-lettered: those that are
// quorum queues and shared to the exchange redrive.lane, the others to redrive.due. Both know
// each work queue by its name.
//
// Each delay queue has a fanout exchange of its own before it, so that the
// routing key stays free: it is the work queue's name from the first hop on, and
// RabbitMQ keeps it when it dead-letters.
package ttlqueue

import (
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
	// Classic queues are on one node, and dead-letter at-most-once: what expires
	// while its work queue cannot take it is lost. A quorum queue cannot just after
	// RabbitMQ has started, when it has no leader yet and all that came due
	// meanwhile is published. [measured on 3.10.8]
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

// name of a delay queue and its exchange. Types never share one: declaring it
// with another type would be refused (406).
func (t Type) name(label string) string {
	if t == Classic {
		return wire.DelayPrefix + label + ".classic"
	}
	return wire.DelayPrefix + label
}

// delayQueue is a queue of that name, shared by work queues, and the exchange before
// it.
func (t Type) delayQueue(name string, ttl time.Duration, more amqp.Table) delay.Topology {
	args := delay.AtLeastOnce(wire.ExchangeLane, ttl)
	if t == Classic {
		args = amqp.Table{"x-queue-type": string(t), "x-message-ttl": ttl.Milliseconds(), "x-dead-letter-exchange": wire.ExchangeDue}
	}
	for k, v := range more {
		args[k] = v
	}
	return queueBehind(name, args)
}

// queueBehind is a queue and the exchange of the same name before it.
func queueBehind(name string, args amqp.Table) delay.Topology {
	return delay.Topology{
		Exchanges: []delay.Exchange{{Name: name, Kind: amqp.ExchangeFanout}},
		Queues:    []delay.Queue{{Name: name, Args: args}},
		Bindings:  []delay.Binding{{From: name, ToQueue: name}},
	}
}

// roundUp never makes a delay shorter: early is never.
func roundUp(d, step time.Duration) time.Duration {
	if r := d % step; r > 0 {
		d += step - r
	}
	return d
}

// longest is RabbitMQ's limit for a time to live.
const longest = policy.LongestDelay
