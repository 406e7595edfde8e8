package broker

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/wire"
)

// BindRetryExchange makes the retry exchange of queue and binds that queue alone: wire.ErrQueueGone
// when there is no such queue, and wire.ErrExclusive when it is another connection's. The exchange
// stays then; RemoveRetryExchange deletes it.
//
// It does not check for the queue first: RabbitMQ 4.3 takes a minute to answer that the node of a
// classic queue is down [measured on 4.3.6], and all retries would wait for that. Binding fails as
// well when there is no queue, and asks no node of a queue.
func (p *Publisher) BindRetryExchange(ctx context.Context, queue string) error {
	if err := canExist(queue); err != nil {
		return err
	}
	return declareOn(p.channels(ctx), delay.Retry(queue))
}

// RemoveRetryExchange deletes the retry exchange of a queue, the permission to retry to it, unless a
// queue is bound to it: RabbitMQ checks that in the same step.
func (p *Publisher) RemoveRetryExchange(ctx context.Context, queue string) error {
	if canExist(queue) != nil {
		return nil
	}
	return p.onChannel(ctx, func(ch *amqp.Channel) error { return ch.ExchangeDelete(wire.RetryExchange(queue), true, false) })
}

// RetryExchangeExists tells whether queue has a retry exchange.
func (p *Publisher) RetryExchangeExists(ctx context.Context, queue string) (bool, error) {
	if canExist(queue) != nil {
		return false, nil
	}
	err := p.onChannel(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(wire.RetryExchange(queue), amqp.ExchangeFanout, true, false, false, false, nil)
	})
	if errors.Is(err, wire.ErrUnroutable) {
		return false, nil
	}
	return err == nil, err
}
