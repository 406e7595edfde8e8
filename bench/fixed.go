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
	return fixedRecipeWith(v, delay, amqp.Table{"x-queue-type": v.kind})
}

// startFixedSafely is the recipe with a delay queue as safe as those of levels:
// what comes due in it is deleted when the work queue has it, not before.
func startFixedSafely(_ context.Context, v vhost, delay time.Duration) (way, error) {
	return fixedRecipeWith(v, delay, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
}

func fixedRecipeWith(v vhost, delay time.Duration, wait amqp.Table) (way, error) {
	return way{stop: func() {}}, onChannel(v.url, func(ch *amqp.Channel) error {
		if err := declare(ch, work, amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}); err != nil {
			return err
		}
		wait["x-message-ttl"], wait["x-dead-letter-exchange"], wait["x-dead-letter-routing-key"] = delay.Milliseconds(), "", work
		return declare(ch, "wait", wait)
	})
}

func declare(ch *amqp.Channel, queue string, args amqp.Table) error {
	_, err := ch.QueueDeclare(queue, true, false, false, false, args)
	return err
}
