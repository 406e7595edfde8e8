package broker

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/wait"
)

// Declare makes what a way to wait needs. Safe for concurrent use.
func (p *Publisher) Declare(ctx context.Context, t wait.Topology) error {
	return p.onChannel(ctx, func(ch *amqp.Channel) error { return declare(ch, t) })
}

// Verify finds out whether exchanges and queues are there, without making any:
// for users who may not declare. RabbitMQ shows no bindings and no arguments to
// clients. Safe for concurrent use.
func (p *Publisher) Verify(ctx context.Context, t wait.Topology) error {
	for _, e := range t.Exchanges {
		if err := p.onChannel(ctx, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, e.Args)
		}); err != nil {
			return fmt.Errorf("exchange %q: %w", e.Name, err)
		}
	}
	for _, q := range t.Queues {
		if err := p.onChannel(ctx, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
			return err
		}); err != nil {
			return fmt.Errorf("queue %q: %w", q.Name, err)
		}
	}
	return nil
}

func declare(ch *amqp.Channel, t wait.Topology) error {
	if err := exchanges(ch, t, false); err != nil {
		return err
	}
	for _, q := range t.Queues {
		if _, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Args); err != nil {
			return declaring("queue", q.Name, err)
		}
	}
	// An exchange that goes with its last binding comes after its queue: the
	// declaration has put off the queue's expiry, and that is all that could
	// take the exchange away before it is bound.
	if err := exchanges(ch, t, true); err != nil {
		return err
	}
	for _, b := range t.Bindings {
		if b.ToExchange != "" {
			if err := ch.ExchangeBind(b.ToExchange, b.Key, b.From, false, nil); err != nil {
				return declaring("binding of exchange "+b.ToExchange+" to exchange", b.From, err)
			}
			continue
		}
		if err := ch.QueueBind(b.ToQueue, b.Key, b.From, false, nil); err != nil {
			return declaring("binding of queue "+b.ToQueue+" to exchange", b.From, err)
		}
	}
	return nil
}

func exchanges(ch *amqp.Channel, t wait.Topology, autoDelete bool) error {
	for _, e := range t.Exchanges {
		if e.AutoDelete != autoDelete {
			continue
		}
		if err := ch.ExchangeDeclare(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, e.Args); err != nil {
			return declaring("exchange", e.Name, err)
		}
	}
	return nil
}
