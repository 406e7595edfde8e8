package main

import (
	"context"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// startForwarder is the least any service on this path must do: it consumes dead
// letters, publishes them back at once with confirms, and acknowledges what is
// confirmed. It stores nothing and waits for nothing. It runs in this process.
func startForwarder(_ context.Context, v vhost) (way, error) {
	f := new(forwarder)
	if err := f.run(v); err != nil {
		f.stop()
		return way{}, err
	}
	return way{stop: f.stop}, nil
}

type forwarder struct {
	in, out *amqp.Connection
	ended   sync.WaitGroup
}

func (f *forwarder) run(v vhost) (err error) {
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
		func() error { return declare(in, "intake", amqp.Table{"x-queue-type": "quorum"}) },
		func() error {
			return declare(in, work, amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "dead"})
		},
		func() error { return in.QueueBind("intake", "", "dead", false, nil) },
		func() error { return in.QueueBind(work, "", "back", false, nil) },
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
	f.pass(in, out, deliveries)
	return nil
}

// pass publishes deliveries back, and acknowledges what is confirmed, until the
// connections close.
func (f *forwarder) pass(in, out *amqp.Channel, deliveries <-chan amqp.Delivery) {
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
		// After a failure the rest is only drained, or the other would block.
		n, failed := 0, false
		for s := range flight {
			if failed = failed || !s.confirm.Wait(); failed {
				continue
			}
			// One ack for many, unless nothing else is on its way.
			if n++; n%256 == 0 || len(flight) == 0 {
				failed = in.Ack(s.tag, true) != nil
			}
		}
	})
}

func (f *forwarder) stop() {
	for _, c := range []*amqp.Connection{f.in, f.out} {
		if c != nil {
			c.Close()
		}
	}
	f.ended.Wait()
}
