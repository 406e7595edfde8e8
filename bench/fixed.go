package main

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// startFixed is the recipe in the broker alone: a rejected message is
// dead-lettered to a queue with a TTL, and from there back.
func startFixed(ctx context.Context, v vhost) (way, error) {
	return startFixedWith(ctx, v, time.Millisecond)
}

func startFixedWith(_ context.Context, v vhost, delay time.Duration) (way, error) {
	return way{stop: func() {}}, onChannel(v.url, func(ch *amqp.Channel) error {
		if err := declare(ch, work, amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}); err != nil {
			return err
		}
		return declare(ch, "wait", amqp.Table{"x-queue-type": v.kind, "x-message-ttl": delay.Milliseconds(), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work})
	})
}

func declare(ch *amqp.Channel, queue string, args amqp.Table) error {
	_, err := ch.QueueDeclare(queue, true, false, false, false, args)
	return err
}
