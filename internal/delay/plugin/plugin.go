// Package plugin waits in an exchange of the plugin
// rabbitmq_delayed_message_exchange.
package plugin

import (
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Way waits in one exchange, which is bound to redrive.due: a message is retried to
// the queue that it failed in, never to one that a header names.
//
// For RabbitMQ a message that the plugin delays has no queue: if it is mandatory, RabbitMQ returns
// it as unroutable, and an alternate exchange of the delayed one would get a copy at once.
// [measured with plugin 3.10.2 on RabbitMQ 3.10.8] So it is published without mandatory. One whose
// queue no longer exists when it comes due goes from redrive.due to redrive.parked.
type Way struct{}

// longest is the plugin's limit, in milliseconds an unsigned 32 bit number.
const longest = math.MaxUint32 * time.Millisecond

// Limits implements delay.Way.
func (Way) Limits() delay.Limits {
	return delay.Limits{Name: "delayed-exchange", Longest: longest, Step: time.Millisecond, DropsWhenFull: true, ChangesRoutingKey: true,
		Survives: "a clean restart of RabbitMQ; not the loss of its node, and a crash can lose the latest messages",
		Declares: "one exchange, for all work queues together; each waiting message takes some 10 KB of RabbitMQ's memory",
		Needs:    "the plugin rabbitmq_delayed_message_exchange, whose last builds are for RabbitMQ 4.2"}
}

// Topology implements delay.Way.
func (Way) Topology(queue string) delay.Topology {
	return delay.Due(queue).With(delay.Topology{
		Exchanges: []delay.Exchange{{Name: wire.ExchangeDelayed, Kind: "x-delayed-message", Args: amqp.Table{"x-delayed-type": amqp.ExchangeFanout, "alternate-exchange": wire.ExchangeDelayed}}},
		Bindings:  []delay.Binding{{From: wire.ExchangeDelayed, ToExchange: wire.ExchangeDue}},
	})
}

// Ticket implements delay.Way.
func (Way) Ticket(queue string, wait time.Duration) (delay.Ticket, error) {
	if wait > longest {
		return delay.Ticket{}, fmt.Errorf("a delay of %s is longer than %s, the plugin's longest", policy.FormatDuration(wait), policy.FormatDuration(longest))
	}
	ms := (wait + time.Millisecond - 1) / time.Millisecond
	return delay.Ticket{Exchange: wire.ExchangeDelayed, RoutingKey: queue, Delay: ms * time.Millisecond, Unchecked: true,
		Headers: amqp.Table{"x-delay": int64(ms)}}, nil
}
