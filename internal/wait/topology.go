package wait

import (
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// Topology is exchanges, queues and bindings, all durable, in an order in which
// they can be declared.
type Topology struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
}

// Exchange is durable. Clients cannot publish to an internal one.
type Exchange struct {
	Name, Kind string
	Internal   bool
	AutoDelete bool // gone with its last binding
	Args       amqp.Table
}

// Queue is durable. Its type is always among Args: a virtual host's default may
// change.
type Queue struct {
	Name string
	Args amqp.Table
}

// Binding leads from an exchange to a queue, or to another exchange.
type Binding struct {
	From, Key  string
	ToQueue    string
	ToExchange string
}

// With is t and then more.
func (t Topology) With(more Topology) Topology {
	return Topology{append(t.Exchanges[:len(t.Exchanges):len(t.Exchanges)], more.Exchanges...),
		append(t.Queues[:len(t.Queues):len(t.Queues)], more.Queues...),
		append(t.Bindings[:len(t.Bindings):len(t.Bindings)], more.Bindings...)}
}

// NoLimit is a delivery limit nobody reaches: RabbitMQ 4 gives quorum queues one
// of 20. What passes it is dropped, or comes back early from a delay queue: it is
// enough that a person looks at its messages 20 times.
const NoLimit = int64(1_000_000_000)

// Parked is the parking lot in RabbitMQ: what cannot come back to its queue, or
// shall not, waits there for a person, or for the service to collect it.
func Parked() Topology {
	return Topology{
		Exchanges: []Exchange{{Name: wire.ExchangeParked, Kind: amqp.ExchangeFanout}},
		Queues:    []Queue{{Name: wire.QueueParked, Args: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": NoLimit}}},
		Bindings:  []Binding{{From: wire.ExchangeParked, ToQueue: wire.QueueParked}},
	}
}

// Due is the last hop of all ways that wait in queues: an internal exchange,
// bound to each work queue by its name. What has no queue any more goes to the
// parking lot, since a queue that dead-letters at-least-once stands still over a
// message that cannot be routed, and others wait in the same queue.
func Due(queue string) Topology {
	return Parked().With(Topology{
		Exchanges: []Exchange{{Name: wire.ExchangeDue, Kind: amqp.ExchangeDirect, Internal: true, Args: amqp.Table{"alternate-exchange": wire.ExchangeParked}}},
		Bindings:  []Binding{{From: wire.ExchangeDue, Key: queue, ToQueue: queue}},
	})
}

// Ends tells whether an exchange is one through which a wait ends: what a work
// queue got through it had waited before. Not all are internal; who may write to
// those in which a wait begins can send through them.
func Ends(exchange string) bool {
	return exchange == wire.ExchangeDue || exchange == wire.ExchangeDelayed || strings.HasPrefix(exchange, wire.DelayPrefix)
}
