// Package delayx waits in an exchange of the plugin
// rabbitmq_delayed_message_exchange.
package delayx

import (
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/wait"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Way waits in one exchange, which hands on to redrive.due: which queue a message
// returns to is what failed, never what a header says.
//
// To RabbitMQ a message that the plugin delays has no queue: published as
// mandatory it comes back as unroutable, and an alternate exchange of the delayed
// one gets a copy at once. [measured with 3.10.2 on 3.10.8] So it is published
// without mandatory, and what has no queue when it comes due is parked one
// exchange further on.
type Way struct{}

// longest is the plugin's limit, in milliseconds an unsigned 32 bit number.
const longest = math.MaxUint32 * time.Millisecond

// Limits implements wait.Way.
func (Way) Limits() wait.Limits {
	return wait.Limits{Name: "delayed-exchange", Longest: longest, Step: time.Millisecond, Drops: true, Rekeys: true,
		Survives: "an orderly restart of RabbitMQ; not the loss of its node, and a crash can take the latest with it",
		Makes:    "one exchange, for all work queues together; each waiting message takes some 10 KB of RabbitMQ's memory",
		Needs:    "the plugin rabbitmq_delayed_message_exchange, whose last builds are for RabbitMQ 4.2"}
}

// Topology implements wait.Way.
func (Way) Topology(queue string) wait.Topology {
	return wait.Due(queue).With(wait.Topology{
		Exchanges: []wait.Exchange{{Name: wire.ExchangeDelayed, Kind: "x-delayed-message", Args: amqp.Table{"x-delayed-type": amqp.ExchangeFanout}}},
		Bindings:  []wait.Binding{{From: wire.ExchangeDelayed, ToExchange: wire.ExchangeDue}},
	})
}

// Hold implements wait.Way.
func (Way) Hold(queue string, delay time.Duration) (wait.Ticket, error) {
	if delay > longest {
		return wait.Ticket{}, fmt.Errorf("a delay of %s is longer than %s, the plugin's longest", policy.FormatDuration(delay), policy.FormatDuration(longest))
	}
	ms := (delay + time.Millisecond - 1) / time.Millisecond
	return wait.Ticket{Exchange: wire.ExchangeDelayed, RoutingKey: queue, Delay: ms * time.Millisecond, Unchecked: true,
		Headers: amqp.Table{"x-delay": int64(ms)}}, nil
}
