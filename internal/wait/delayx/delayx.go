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

// Way waits in one exchange, bound to each work queue by its name: which queue a
// message returns to is what failed, never what a header says.
type Way struct{}

// longest is the plugin's limit, in milliseconds an unsigned 32 bit number.
const longest = math.MaxUint32 * time.Millisecond

// Limits implements wait.Way.
func (Way) Limits() wait.Limits {
	return wait.Limits{Name: "delayed-exchange", Longest: longest, Step: time.Millisecond,
		Survives: "a restart of RabbitMQ; not the loss of its node; what comes due while its work queue is gone is lost",
		Makes:    "one exchange, for all work queues together; each waiting message takes some 10 KB of RabbitMQ's memory",
		Needs:    "the plugin rabbitmq_delayed_message_exchange, whose last builds are for RabbitMQ 4.2"}
}

// Topology implements wait.Way.
func (Way) Topology(queue string) wait.Topology {
	return wait.Parked().With(wait.Topology{
		Exchanges: []wait.Exchange{{Name: wire.ExchangeDelayed, Kind: "x-delayed-message",
			Args: amqp.Table{"x-delayed-type": amqp.ExchangeDirect, "alternate-exchange": wire.ExchangeParked}}},
		Bindings: []wait.Binding{{From: wire.ExchangeDelayed, Key: queue, ToQueue: queue}},
	})
}

// Hold implements wait.Way.
func (Way) Hold(queue string, delay time.Duration) (wait.Ticket, error) {
	ms := (delay + time.Millisecond - 1) / time.Millisecond
	if ms > math.MaxUint32 {
		return wait.Ticket{}, fmt.Errorf("a delay of %s is longer than %s, the plugin's longest", policy.FormatDuration(delay), policy.FormatDuration(longest))
	}
	return wait.Ticket{Exchange: wire.ExchangeDelayed, RoutingKey: queue, Delay: ms * time.Millisecond,
		Headers: amqp.Table{"x-delay": int64(ms)}}, nil
}
