package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// startShovel is RabbitMQ's shovel from a dead letter queue back to the work
// queue, as a dynamic one on the broker itself with the defaults its page shows.
// It waits for nothing.
func startShovel(ctx context.Context, v vhost) (way, error) {
	const dead = "dead"
	if err := onChannel(v.url, func(ch *amqp.Channel) error {
		if err := declare(ch, dead, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			return err
		}
		return declare(ch, work, amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	}); err != nil {
		return way{}, err
	}
	path := "parameters/shovel/" + v.name + "/back"
	self := "amqp:///" + v.name
	if err := v.api.Call(ctx, http.MethodPut, path, map[string]any{"value": map[string]any{
		"src-protocol": "amqp091", "src-uri": self, "src-queue": dead,
		"dest-protocol": "amqp091", "dest-uri": self, "dest-queue": work,
		"ack-mode": "on-confirm",
	}}, nil); err != nil {
		return way{}, notThere(fmt.Sprintf("RabbitMQ takes no shovel; is the plugin rabbitmq_shovel enabled? (%v)", err))
	}
	stop := func() { _ = v.api.Call(context.WithoutCancel(ctx), http.MethodDelete, path, nil, nil) }
	starting, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := consumed(starting, v.url, dead); err != nil {
		stop()
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = notThere("the shovel did not start within 30 s; RabbitMQ's log says why")
		}
		return way{}, err
	}
	return way{stop: stop}, nil
}

// consumed waits until a queue has a consumer.
func consumed(ctx context.Context, url, queue string) error {
	return onChannel(url, func(ch *amqp.Channel) error {
		for {
			q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
			if err != nil || q.Consumers > 0 {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}
