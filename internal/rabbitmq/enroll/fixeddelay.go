package enroll

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// FixedDelay is the recipe "reject → TTL queue → back", by RabbitMQ alone.
//
// Its delay queue is not one of the library's. RabbitMQ does not route a message back to its work
// queue that left it by anything but a reject: that is a cycle. A queue that dead-letters
// at-least-once would keep such a message and try for ever, and 32 of them stop the queue. So this
// one is at-most-once, and drops them.
type FixedDelay struct {
	queue, name string // name is that of the delay queue and its exchange
	delay       time.Duration
	kind        ttlqueue.Type
}

// NewFixedDelay refuses a delay that RabbitMQ does not support. An empty name is one made of the delay.
func NewFixedDelay(queue, name string, delay time.Duration, kind ttlqueue.Type) (*FixedDelay, error) {
	levels, err := ttlqueue.NewFixed(kind, delay)
	if err != nil {
		return nil, err
	}
	t, err := levels.Ticket(queue, delay)
	return &FixedDelay{queue, cmp.Or(name, t.Exchange+".alone"), delay, kind}, err
}

// Topology is all but the policy. A dead letter's routing key is the work queue's name, by which it
// goes back there; if that queue no longer exists it is parked.
func (a *FixedDelay) Topology() delay.Topology {
	args := amqp.Table{"x-queue-type": string(a.kind), "x-message-ttl": a.delay.Milliseconds(), "x-dead-letter-exchange": wire.ExchangeDue}
	if a.kind == ttlqueue.Quorum {
		args["x-delivery-limit"] = delay.NoLimit
	}
	if !strings.HasPrefix(a.name, wire.DelayPrefix) { // of this work queue alone, as in Topology.Named
		args["x-dead-letter-routing-key"] = a.queue
	}
	return delay.Due(a.queue).With(delay.Topology{
		Exchanges: []delay.Exchange{delay.Own(a.name, amqp.ExchangeFanout)},
		Queues:    []delay.Queue{{Name: a.name, Args: args}},
		Bindings:  []delay.Binding{{From: a.name, ToQueue: a.name}},
	})
}

func (a *FixedDelay) target() Target {
	return Target{Exchange: a.name, RoutingKey: a.queue, PolicyPrefix: fixedDelayPrefix, AtMostOnce: true,
		Makes:    fmt.Sprintf("makes exchange and queue %q, where a rejected message waits %s, and the way back to its queue", a.name, policy.FormatDuration(a.delay)),
		topology: a.Topology()}
}

const fixedDelayPrefix = "redrive-fixed."

// Policy dead-letters the work queue to it, for where no other policy applies; Plan merges them.
func (a *FixedDelay) Policy() management.Policy { return a.target().policy(a.queue) }

// Plan returns what it changes.
func (a *FixedDelay) Plan(ctx context.Context, m *management.Client) (*Plan, error) {
	q, policies, err := ReadQueue(ctx, m, a.queue)
	if err != nil {
		return nil, err
	}
	overview, err := m.Overview(ctx)
	if err != nil {
		return nil, err
	}
	p, err := plan(q, policies, a.target(), false)
	if err == nil {
		p.leaveOut(overview.Version)
	}
	return p, err
}

// UndoFixedDelay removes its policy. Messages that wait are still retried, so all else stays.
func UndoFixedDelay(ctx context.Context, m *management.Client, queue string) error {
	return undo(ctx, m, Target{PolicyPrefix: fixedDelayPrefix}.policy(queue), queue)
}

// Warnings are what a person should know before using it.
func (a *FixedDelay) Warnings() []string {
	w := []string{
		"only rejected messages are retried: RabbitMQ takes what expired, overflowed its queue or passed its delivery limit for a cycle, and drops it",
		"there is no limit of attempts: a message that always fails goes round for ever; the library and the service park it in the end",
		"it is at-most-once: a message is lost that comes due while its work queue cannot take it (a quorum queue cannot just after RabbitMQ has started), or is rejected while the delay queue cannot",
	}
	if a.kind == ttlqueue.Classic {
		w = append(w, "the classic delay queue is on one node: what waits there is lost with its disk")
	}
	return append(w, fmt.Sprintf("messages are retried with the routing key %q; the first one is in their header x-death", a.queue))
}
