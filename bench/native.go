package main

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
)

// startNative is RabbitMQ's own delayed retry, of a millisecond: the queue keeps
// what is rejected with requeue.
func startNative(_ context.Context, v vhost) (way, error) {
	return startNativeArgs(v, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1000),
		"x-delayed-retry-type": "all", "x-delayed-retry-min": int64(1), "x-delayed-retry-max": int64(1)})
}

// startNativeWith is the same for the library.
func startNativeWith(_ context.Context, v vhost, delay time.Duration) (way, error) {
	return startNativeArgs(v, redrive.NativeArguments(delay, delay))
}

func startNativeArgs(v vhost, args amqp.Table) (way, error) {
	switch {
	case v.kind != "quorum":
		return way{}, notThere("only quorum queues have delayed retry")
	case !v.since(4, 3):
		return way{}, notThere("RabbitMQ " + v.Version + " ignores its arguments; it came with 4.3")
	}
	return way{stop: func() {}}, onChannel(v.url, func(ch *amqp.Channel) error {
		return declare(ch, work, args)
	})
}
