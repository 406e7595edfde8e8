package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// pass is a round in which every message succeeds at once.
type pass struct{ rate, allocations, bytes float64 } // a second, and of a message

// consumers compares the library's consumer with a bare loop, in turn on one broker.
func consumers(ctx context.Context, b brokertest.Broker, kind string) error {
	v, err := newVHost(ctx, b, kind)
	if err != nil {
		return err
	}
	defer v.close()
	if err := onChannel(v.url, func(ch *amqp.Channel) error {
		return declare(ch, work, amqp.Table{"x-queue-type": kind})
	}); err != nil {
		return err
	}
	loops := []struct {
		name string
		run  func(context.Context, *vhost, *counter) error
		all  []pass
	}{{name: "bare amqp091-go loop", run: bareLoop}, {name: "redrive.Consume", run: consumerLoop}}
	for round := range *rounds + 1 {
		for n := range loops {
			l := &loops[(n+round)%len(loops)]
			if err := publish(ctx, v.url, work, prefetch+*messages, 0); err != nil {
				return err
			}
			limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
			var c counter
			err := l.run(limited, v, &c)
			cancel()
			if err != nil {
				return err
			}
			if round > 0 { // the first is not counted: everything is cold
				l.all = append(l.all, c.result)
			}
		}
	}
	var ratios []float64 // of the rounds
	for i := range *rounds {
		ratios = append(ratios, loops[1].all[i].rate/loops[0].all[i].rate)
	}
	fmt.Printf("the library, %d messages, median of %d\n", *messages, *rounds)
	for _, l := range loops {
		slices.SortFunc(l.all, func(a, b pass) int { return cmp.Compare(a.rate, b.rate) })
		m := l.all[len(l.all)/2]
		fmt.Printf("success, %s: %.0f messages/s, %.1f allocations and %.0f bytes a message\n",
			l.name, m.rate, m.allocations, m.bytes)
	}
	fmt.Printf("the consumer against the bare loop: %.2f ×\n", median(ratios))
	return nil
}

// counter counts messages, and the memory and time they take. The first ones, as
// many as are prefetched, are not counted: the client has them before the clock
// starts.
type counter struct {
	seen   int
	first  time.Time
	before runtime.MemStats
	result pass
}

// next counts one, by one goroutine at a time, and reports whether it was the last.
func (c *counter) next() bool {
	switch c.seen++; c.seen {
	case 1:
		runtime.GC()
	case prefetch:
		runtime.ReadMemStats(&c.before)
		c.first = time.Now()
	case prefetch + *messages:
		took := time.Since(c.first).Seconds()
		var after runtime.MemStats
		runtime.ReadMemStats(&after)
		n := float64(*messages)
		c.result = pass{n / took, float64(after.Mallocs-c.before.Mallocs) / n,
			float64(after.TotalAlloc-c.before.TotalAlloc) / n}
		return true
	}
	return false
}

// bareLoop is what a consumer is without the library: take, and acknowledge.
func bareLoop(ctx context.Context, v *vhost, c *counter) error {
	return eachDelivery(ctx, v.url, work, func(d amqp.Delivery) (bool, error) { return c.next(), d.Ack(false) })
}

// consumerLoop is the same by the library.
func consumerLoop(ctx context.Context, v *vhost, c *counter) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	config := redrive.Config{URLs: []string{v.url}, Log: slog.New(slog.DiscardHandler)}
	err := redrive.Consume(running, config, redrive.Consumer{Queue: work, Prefetch: prefetch, Wait: redrive.Levels(),
		Policy: policy.Policy{Attempts: 2, Backoff: policy.Fixed(time.Second)},
		Handler: func(context.Context, *redrive.Message) error {
			if c.next() {
				stop()
			}
			return nil
		}})
	return cmp.Or(err, ctx.Err())
}
