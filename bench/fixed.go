package main

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
)

// fixed is the recipe in the broker alone: a rejected message is dead-lettered
// to a queue with a TTL, and from there back.
type fixed struct{}

func (fixed) name() string { return "fixed recipe (broker alone)" }

func (fixed) start(_ context.Context, v vhost, queue, kind string) error {
	conn, err := amqp.Dial(v.url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}); err != nil {
		return err
	}
	_, err = ch.QueueDeclare("wait", true, false, false, false, amqp.Table{"x-queue-type": kind, "x-message-ttl": int32(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
	return err
}

func (fixed) stop() usage { return usage{} }
