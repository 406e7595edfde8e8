package delay

import (
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Native leaves the waiting to the work queue itself: the delayed retry of RabbitMQ 4.3's quorum queues. It rejects
// with requeue: a nack counts as no failure, and its message comes again for ever at the shortest delay. [measured on
// 4.3.6]
type Native struct{}

func (Native) Limits() Limits {
	return Limits{Name: "native", Longest: 24 * 24 * time.Hour, Linear: true, QueueCounts: true,
		Survives: "a restart of RabbitMQ and the loss of a minority of its nodes",
		Declares: "nothing: the work queue itself has the arguments or a policy",
		Needs:    "RabbitMQ 4.3; older ones accept the arguments and ignore them", Since: [2]int{4, 3}}
}

// NativeArguments returns the arguments of a work queue that delays its messages: by min after the first failure, by
// min more after each further one, up to max.
func NativeArguments(min, max time.Duration) amqp.Table {
	return amqp.Table{"x-queue-type": "quorum", "x-delayed-retry-type": "failed",
		"x-delayed-retry-min": min.Milliseconds(), "x-delayed-retry-max": max.Milliseconds(),
		// Without a dead-letter exchange RabbitMQ 4 drops messages at its own limit of 20; the policy limits the
		// attempts.
		"x-delivery-limit": NoLimit}
}

func (Native) Topology(string) Topology { return Parked() }

func (Native) Ticket(_ string, wait time.Duration) (Ticket, error) {
	return Ticket{Requeue: true, Delay: wait}, nil
}

// Plugin waits in one exchange of the plugin rabbitmq_delayed_message_exchange, which is bound to redrive.due.
//
// For RabbitMQ a message that the plugin delays has no queue: if it is mandatory, RabbitMQ returns it as unroutable,
// and an alternate exchange would get a copy at once. [measured with plugin 3.10.2 on RabbitMQ 3.10.8] So it is
// published without mandatory.
type Plugin struct{}

// maxPlugin is the plugin's limit, an unsigned 32 bit number of milliseconds.
const maxPlugin = math.MaxUint32 * time.Millisecond

func (Plugin) Limits() Limits {
	return Limits{Name: "delayed-exchange", Longest: maxPlugin, Step: time.Millisecond, DropsWhenFull: true,
		ChangesRoutingKey: true,
		Survives: "a clean restart of RabbitMQ; not the loss of its node, and a crash can lose the latest " +
			"messages",
		Declares: "one exchange, for all work queues together; each waiting message takes some 10 KB of " +
			"RabbitMQ's memory",
		Needs: "the plugin rabbitmq_delayed_message_exchange, whose last builds are for RabbitMQ 4.2"}
}

func (Plugin) Topology(queue string) Topology {
	return Due(queue).With(Topology{
		Exchanges: []Exchange{{Name: wire.ExchangeDelayed, Kind: "x-delayed-message",
			Args: amqp.Table{"x-delayed-type": amqp.ExchangeFanout, "alternate-exchange": wire.ExchangeDelayed}}},
		Bindings: []Binding{{From: wire.ExchangeDelayed, ToExchange: wire.ExchangeDue}},
	})
}

func (Plugin) Ticket(queue string, wait time.Duration) (Ticket, error) {
	if wait > maxPlugin {
		return Ticket{}, fmt.Errorf("a delay of %s is longer than %s, the plugin's longest",
			policy.FormatDuration(wait), policy.FormatDuration(maxPlugin))
	}
	wait = roundUp(wait, time.Millisecond)
	return Ticket{Exchange: wire.ExchangeDelayed, RoutingKey: queue, Delay: wait, Unchecked: true,
		Headers: amqp.Table{"x-delay": wait.Milliseconds()}}, nil
}

// Report leaves the waiting to the Redrive service: it publishes to redrive.failures.
type Report struct{}

func (Report) Limits() Limits {
	return Limits{Name: "service", Longest: policy.LongestDelay, Step: time.Microsecond, ServiceDecides: true,
		Survives: "whatever the service's store does",
		Declares: "nothing: the service declares what it needs",
		Needs: "the Redrive service, with a policy that matches the queue, and names it exactly unless the queue " +
			"is enrolled"}
}

// Topology implements Way. The service declares the exchange of reports: before its first start they are unroutable.
func (Report) Topology(string) Topology { return Parked() }

func (Report) Ticket(queue string, wait time.Duration) (Ticket, error) {
	return Ticket{Exchange: wire.ExchangeFailures, RoutingKey: queue, Delay: wait}, nil
}
