package main

import (
	"context"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// startForwarder is the least any service on this path must do: it consumes dead
// letters, publishes them back at once with confirms, and acknowledges what is
// confirmed. It stores nothing and waits for nothing.
func startForwarder(_ context.Context, v vhost) (way, error) {
	return forward(v, "fanout", nil, func(amqp.Table) {}, true)
}

// forward publishes dead letters back by way of an exchange of that type. It
// runs in this process.
func forward(v vhost, exchange string, args amqp.Table, mark func(amqp.Table), mandatory bool) (way, error) {
	f := new(forwarder)
	if err := f.run(v, exchange, args, mark, mandatory); err != nil {
		f.stop()
		return way{}, err
	}
	return way{stop: f.stop}, nil
}

type forwarder struct {
	in, out *amqp.Connection
	ended   sync.WaitGroup
}

func (f *forwarder) run(v vhost, exchange string, args amqp.Table, mark func(amqp.Table), mandatory bool) (err error) {
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
		func() error { return in.ExchangeDeclare("back", exchange, true, false, false, false, args) },
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
	type sent struct {
		tag     uint64
		confirm *amqp.DeferredConfirmation
	}
	flight := make(chan sent, 2048)
	f.ended.Go(func() {
		defer close(flight)
		for d := range deliveries {
			delete(d.Headers, "x-death")
			mark(d.Headers)
			c, err := out.PublishWithDeferredConfirm("back", d.RoutingKey, mandatory, false, amqp.Publishing{
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
	return nil
}

func (f *forwarder) stop() {
	for _, c := range []*amqp.Connection{f.in, f.out} {
		if c != nil {
			c.Close()
		}
	}
	f.ended.Wait()
}
