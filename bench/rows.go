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
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// work is the queue whose messages are rejected and come back.
const work = "work"

// row is one way to bring a message back.
type row struct {
	name string
	// requeue: its consumer rejects with requeue, and the queue itself delays.
	requeue bool
	// start makes the work queue and what brings its messages back, and returns
	// when all is ready, or with notThere. The virtual host's close ends it.
	start func(context.Context, *vhost) error
}

// notThere is why a broker does not have a row.
type notThere string

func (n notThere) Error() string { return "not there: " + string(n) }

var forwarder = row{name: "bare forwarder", start: startForwarder}

// rows are all of them.
func rows() []row {
	return slices.Concat([]row{forwarder}, serviceRows(0, []string{onDisk, onRedis}), []row{
		{name: "fixed recipe (broker alone)", start: startFixed},
		{name: "native delayed retry", requeue: true, start: startNative},
	})
}

// serviceRows are Redrive on some stores, on Redis also in replicas.
func serviceRows(delay time.Duration, stores []string) (all []row) {
	add := func(name, store string, count int) {
		all = append(all, row{name: name, start: func(ctx context.Context, v *vhost) error {
			return startServices(ctx, v, store, count, map[string]time.Duration{work: delay})
		}})
	}
	if slices.Contains(stores, onDisk) {
		add("redrive", onDisk, 1)
	}
	if slices.Contains(stores, onRedis) {
		add("redrive on Redis", onRedis, 1)
		add("redrive on Redis, 2 replicas", onRedis, 2)
		add("redrive on Redis, 3 replicas", onRedis, 3)
	}
	return all
}

// vhost is where one round of one row runs, with what runs there.
type vhost struct {
	brokertest.Broker
	url, kind string // kind is that of the work queue
	services  []*service
	redis     *redisnode.Server // that keeps their messages; nil: a disk does
	ends      []func()
}

// atEnd has close call something, the last first.
func (v *vhost) atEnd(do func()) { v.ends = append(v.ends, do) }

func (v *vhost) close() {
	for _, end := range slices.Backward(v.ends) {
		end()
	}
}

func newVHost(ctx context.Context, b brokertest.Broker, kind string) (*vhost, error) {
	name := "redrive-bench-" + uuid.NewString()
	u, err := url.Parse(b.AMQP)
	if err != nil {
		return nil, err
	}
	u.Path = "/" + name
	api, err := management.New(b.Management, name)
	if err != nil {
		return nil, err
	}
	user := "guest"
	if u.User != nil {
		user = u.User.Username()
	}
	if err := api.Call(ctx, http.MethodPut, "vhosts/"+name, map[string]any{}, nil); err != nil {
		return nil, err
	}
	v := &vhost{Broker: b, url: u.String(), kind: kind}
	v.atEnd(func() { _ = api.Call(context.WithoutCancel(ctx), http.MethodDelete, "vhosts/"+name, nil, nil) })
	all := map[string]any{"configure": ".*", "write": ".*", "read": ".*"}
	if err := api.Call(ctx, http.MethodPut, "permissions/"+name+"/"+url.PathEscape(user), all, nil); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

func declare(ch *amqp.Channel, queue string, args amqp.Table) error {
	_, err := ch.QueueDeclare(queue, true, false, false, false, args)
	return err
}

// startFixed is the recipe in the broker alone: a rejected message is dead-lettered
// to a queue with a TTL, and from there back.
func startFixed(_ context.Context, v *vhost) error {
	return onChannel(v.url, func(ch *amqp.Channel) error {
		to := func(queue string) amqp.Table {
			return amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
		}
		wait := to(work)
		wait["x-message-ttl"] = int64(1)
		return errors.Join(declare(ch, work, to("wait")), declare(ch, "wait", wait))
	})
}

// startNative is RabbitMQ's own delayed retry, of a millisecond: the queue keeps
// what is rejected with requeue.
func startNative(_ context.Context, v *vhost) error {
	var major, minor int
	_, err := fmt.Sscanf(v.Version, "%d.%d", &major, &minor)
	switch {
	case v.kind != "quorum":
		return notThere("only quorum queues have delayed retry")
	case err != nil || slices.Compare([]int{major, minor}, []int{4, 3}) < 0:
		return notThere("RabbitMQ " + v.Version + " ignores its arguments; it came with 4.3")
	}
	return onChannel(v.url, func(ch *amqp.Channel) error {
		return declare(ch, work, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1000),
			"x-delayed-retry-type": "all", "x-delayed-retry-min": int64(1), "x-delayed-retry-max": int64(1)})
	})
}

// startForwarder is the least any service on this path must do: it consumes dead
// letters, publishes them back at once with confirms, and acknowledges what is
// confirmed. It stores nothing and waits for nothing. It runs in this process.
func startForwarder(_ context.Context, v *vhost) error {
	var passing sync.WaitGroup
	v.atEnd(passing.Wait)
	var channels [2]*amqp.Channel
	for i := range channels {
		conn, err := amqp.Dial(v.url)
		if err != nil {
			return err
		}
		v.atEnd(func() { conn.Close() })
		if channels[i], err = conn.Channel(); err != nil {
			return err
		}
	}
	in, out := channels[0], channels[1]
	if err := errors.Join(
		out.Confirm(false),
		in.ExchangeDeclare("dead", "fanout", true, false, true, false, nil),
		in.ExchangeDeclare("back", "fanout", true, false, false, false, nil),
		declare(in, "intake", amqp.Table{"x-queue-type": "quorum"}),
		declare(in, work, amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "dead"}),
		in.QueueBind("intake", "", "dead", false, nil),
		in.QueueBind(work, "", "back", false, nil),
		in.Qos(4096, 0, false),
	); err != nil {
		return err
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
	passing.Go(func() {
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
	passing.Go(func() {
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
