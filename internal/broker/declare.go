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
	// Queues first: declaring one again renews its expiry, and with it that of
	// its exchange, which goes with its last binding.
	for _, q := range t.Queues {
		if _, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Args); err != nil {
			return declaring("queue", q.Name, err)
		}
	}
	for _, e := range t.Exchanges {
		if err := ch.ExchangeDeclare(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, e.Args); err != nil {
			return declaring("exchange", e.Name, err)
		}
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
