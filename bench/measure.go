package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
	"github.com/redrive-mq/redrive/internal/management"
)

// vhost is where one round of one row runs.
type vhost struct {
	url string
	api *management.Client
}

type result struct {
	rate             float64       // returned and acknowledged per second, from the first delivery on
	p50, p99, max    time.Duration // from reject to the message's return
	lost, duplicates int
	usage
}

// usage of a row's own process; zero where it has none.
type usage struct {
	cpu  float64 // seconds
	peak float64 // MiB
}

const work = "work"

func measure(b brokertest.Broker, kind string, r row) (res result, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	name := "redrive-bench-" + uuid.NewString()
	root, err := management.New(b.Management, name)
	if err != nil {
		return res, err
	}
	if err := root.Call(ctx, http.MethodPut, "vhosts/"+name, map[string]any{}, nil); err != nil {
		return res, err
	}
	defer root.Call(context.WithoutCancel(ctx), http.MethodDelete, "vhosts/"+name, nil, nil)
	if err := root.Call(ctx, http.MethodPut, "permissions/"+name+"/guest", map[string]any{"configure": ".*", "write": ".*", "read": ".*"}, nil); err != nil {
		return res, err
	}
	u, err := url.Parse(b.AMQP)
	if err != nil {
		return res, err
	}
	u.Path = "/" + name
	if err := r.start(ctx, vhost{u.String(), root}, work, kind); err != nil {
		return res, err
	}
	defer func() { res.usage = r.stop() }()
	if err := preload(u.String()); err != nil {
		return res, err
	}
	return cycle(ctx, u.String())
}

// preload fills the work queue, so that the round measures the way back alone.
func preload(url string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	body := []byte(strings.Repeat("x", *size))
	var last *amqp.DeferredConfirmation
	for i := range *messages {
		if last, err = ch.PublishWithDeferredConfirm("", work, false, false, amqp.Publishing{MessageId: fmt.Sprint(i), DeliveryMode: amqp.Persistent, Body: body}); err != nil {
			return err
		}
	}
	if !last.Wait() {
		return fmt.Errorf("RabbitMQ did not confirm")
	}
	return nil
}

// cycle is the consumer: it rejects each message once and acknowledges it when
// it comes back.
func cycle(ctx context.Context, url string) (res result, err error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return res, err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return res, err
	}
	if err := ch.Qos(1000, 0, false); err != nil {
		return res, err
	}
	in, err := ch.Consume(work, "", false, false, false, false, nil)
	if err != nil {
		return res, err
	}
	rejected := map[string]time.Time{}
	back := map[string]int{}
	var waits []time.Duration
	var began time.Time
	for len(back) < *messages {
		select {
		case <-ctx.Done():
			res.lost = *messages - len(back)
			return res, nil
		case d, ok := <-in:
			if !ok {
				return res, fmt.Errorf("the consumer's channel closed")
			}
			now := time.Now()
			if began.IsZero() {
				began = now
			}
			at, again := rejected[d.MessageId]
			if !again {
				rejected[d.MessageId] = now
				err = d.Reject(false)
			} else {
				if back[d.MessageId]++; back[d.MessageId] > 1 {
					res.duplicates++
				}
				waits = append(waits, now.Sub(at))
				err = d.Ack(false)
			}
			if err != nil {
				return res, err
			}
		}
	}
	res.rate = float64(*messages) / time.Since(began).Seconds()
	slices.Sort(waits)
	res.p50, res.p99, res.max = waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1]
	return res, nil
}
