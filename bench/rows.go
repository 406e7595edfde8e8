package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// work is the queue whose messages are rejected and come back.
const work = "work"

// row is one way to bring a message back.
type row struct {
	name string
	// requeue: its consumer rejects with requeue, and the queue itself delays.
	requeue bool
	// start makes the work queue and what brings its messages back, and returns
	// when all is ready, or with notThere.
	start func(ctx context.Context, v vhost) (way, error)
}

// way is what retries messages while it runs.
type way struct {
	pids  []int // of its own processes, if it has any
	redis []int // of the Redis that keeps its messages
	stop  func()
}

// notThere is why a broker does not have a row.
type notThere string

func (n notThere) Error() string { return "not there: " + string(n) }

// rows are all of them; delay is that of the service.
func rows() []row {
	return slices.Concat([]row{{name: "bare forwarder", start: startForwarder}}, serviceRows(0, onDisk, onRedis), []row{
		{name: "fixed recipe (broker alone)", start: startFixed},
		{name: "native delayed retry", requeue: true, start: startNative},
	})
}

// serviceRows are Redrive on some stores, on Redis also in replicas.
func serviceRows(delay time.Duration, stores ...string) (rows []row) {
	if slices.Contains(stores, onDisk) {
		rows = append(rows, row{name: "redrive", start: func(ctx context.Context, v vhost) (way, error) { return startServices(ctx, v, onDisk, 1, delay) }})
	}
	for count := 1; count <= 3 && slices.Contains(stores, onRedis); count++ {
		name := "redrive on Redis"
		if count > 1 {
			name += fmt.Sprintf(", %d replicas", count)
		}
		rows = append(rows, row{name: name, start: func(ctx context.Context, v vhost) (way, error) { return startServices(ctx, v, onRedis, count, delay) }})
	}
	return rows
}

// vhost is where one round of one row runs.
type vhost struct {
	brokertest.Broker
	url  string
	kind string // of the work queue
}

func newVHost(ctx context.Context, b brokertest.Broker, kind string) (v vhost, remove func(), err error) {
	name := "redrive-bench-" + uuid.NewString()
	u, err := url.Parse(b.AMQP)
	if err != nil {
		return v, nil, err
	}
	u.Path = "/" + name
	api, err := management.New(b.Management, name)
	if err != nil {
		return v, nil, err
	}
	user := "guest"
	if u.User != nil {
		user = u.User.Username()
	}
	if err := api.Call(ctx, http.MethodPut, "vhosts/"+name, map[string]any{}, nil); err != nil {
		return v, nil, err
	}
	remove = func() { _ = api.Call(context.WithoutCancel(ctx), http.MethodDelete, "vhosts/"+name, nil, nil) }
	all := map[string]any{"configure": ".*", "write": ".*", "read": ".*"}
	if err := api.Call(ctx, http.MethodPut, "permissions/"+name+"/"+url.PathEscape(user), all, nil); err != nil {
		remove()
		return v, nil, err
	}
	return vhost{Broker: b, url: u.String(), kind: kind}, remove, nil
}

func declare(ch *amqp.Channel, queue string, args amqp.Table) error {
	_, err := ch.QueueDeclare(queue, true, false, false, false, args)
	return err
}

// startFixed is the recipe in the broker alone: a rejected message is dead-lettered
// to a queue with a TTL, and from there back.
func startFixed(_ context.Context, v vhost) (way, error) {
	return way{stop: func() {}}, onChannel(v.url, func(ch *amqp.Channel) error {
		return errors.Join(
			declare(ch, work, amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}),
			declare(ch, "wait", amqp.Table{"x-queue-type": v.kind, "x-message-ttl": int64(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}))
	})
}

// startNative is RabbitMQ's own delayed retry, of a millisecond: the queue keeps
// what is rejected with requeue.
func startNative(_ context.Context, v vhost) (way, error) {
	var major, minor int
	_, err := fmt.Sscanf(v.Version, "%d.%d", &major, &minor)
	switch {
	case v.kind != "quorum":
		return way{}, notThere("only quorum queues have delayed retry")
	case err != nil || slices.Compare([]int{major, minor}, []int{4, 3}) < 0:
		return way{}, notThere("RabbitMQ " + v.Version + " ignores its arguments; it came with 4.3")
	}
	return way{stop: func() {}}, onChannel(v.url, func(ch *amqp.Channel) error {
		return declare(ch, work, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1000),
			"x-delayed-retry-type": "all", "x-delayed-retry-min": int64(1), "x-delayed-retry-max": int64(1)})
	})
}

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
	for _, step := range []func() error{
		func() error { return out.Confirm(false) },
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
