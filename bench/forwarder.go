package main

import (
	"context"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// forwarder is the least any service on this path must do: it consumes dead
// letters, publishes them back at once with confirms, and acknowledges what is
// confirmed. It stores nothing and waits for nothing.
type forwarder struct {
	in, out *amqp.Connection
	ended   sync.WaitGroup
}

func (*forwarder) name() string { return "bare forwarder" }

func (f *forwarder) start(_ context.Context, v vhost, queue, kind string) (err error) {
	if f.in, err = amqp.Dial(v.url); err != nil {
		return err
	}
	if f.out, err = amqp.Dial(v.url); err != nil {
		return err
	}
	in, err := f.in.Channel()
	if err != nil {
		return err
	}
	out, err := f.out.Channel()
	if err != nil {
		return err
	}
	if err := out.Confirm(false); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return in.ExchangeDeclare("dead", "fanout", true, false, true, false, nil) },
		func() error { return in.ExchangeDeclare("back", "fanout", true, false, false, false, nil) },
		func() error {
			_, err := in.QueueDeclare("intake", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			return err
		},
		func() error {
			_, err := in.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "dead"})
			return err
		},
		func() error { return in.QueueBind("intake", "", "dead", false, nil) },
		func() error { return in.QueueBind(queue, "", "back", false, nil) },
		func() error { return in.Qos(4096, 0, false) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	deliveries, err := in.Consume("intake", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	type sent struct {
		tag     uint64
		confirm *amqp.DeferredConfirmation
	}
	flight := make(chan sent, 2048)
	f.ended.Go(func() {
		defer close(flight)
		for d := range deliveries {
			delete(d.Headers, "x-death")
			c, err := out.PublishWithDeferredConfirm("back", d.RoutingKey, true, false, amqp.Publishing{
				Headers: d.Headers, MessageId: d.MessageId, DeliveryMode: amqp.Persistent, Body: d.Body})
			if err != nil {
				return
			}
			flight <- sent{d.DeliveryTag, c}
		}
	})
	f.ended.Go(func() {
		n := 0
		for s := range flight {
			if !s.confirm.Wait() {
				return
			}
			// One ack for many, unless nothing else is on its way.
			if n++; n%256 == 0 || len(flight) == 0 {
				if in.Ack(s.tag, true) != nil {
					return
				}
			}
		}
	})
	return nil
}

func (f *forwarder) stop() usage {
	f.in.Close()
	f.out.Close()
	f.ended.Wait()
	return usage{}
}
