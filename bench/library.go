package main

import (
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

const prefetch = 1000

// pass is a round in which every message succeeds at once.
type pass struct{ rate, allocations, bytes float64 } // a second, and of a message

// consumers compares the library's consumer with a bare loop, in turn on one broker.
func consumers(ctx context.Context, b brokertest.Broker, kind string) error {
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return err
	}
	defer remove()
	if err := onChannel(v.url, func(ch *amqp.Channel) error { return declare(ch, work, amqp.Table{"x-queue-type": kind}) }); err != nil {
		return err
	}
	names := []string{"bare amqp091-go loop", "redrive.Consume"}
	loops := []func(context.Context, vhost, int) (pass, error){bareLoop, consumerLoop}
	all := make([][]pass, len(loops))
	var ratios []float64             // of the rounds
	for round := range *rounds + 1 { // the first is not counted: everything is cold
		var now [2]pass
		for n := range loops {
			i := (n + round) % len(loops)
			if err := publish(ctx, v.url, work, prefetch+*messages, 0); err != nil {
				return err
			}
			limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
			now[i], err = loops[i](limited, v, *messages)
			cancel()
			if err != nil {
				return err
			}
			if round > 0 {
				all[i] = append(all[i], now[i])
			}
		}
		if round > 0 {
			ratios = append(ratios, now[1].rate/now[0].rate)
		}
	}
	fmt.Printf("the library, %d messages, median of %d\n", *messages, *rounds)
	for i, of := range all {
		slices.SortFunc(of, func(a, b pass) int { return int(a.rate - b.rate) })
		m := of[len(of)/2]
		fmt.Printf("success, %s: %.0f messages/s, %.1f allocations and %.0f bytes a message\n", names[i], m.rate, m.allocations, m.bytes)
	}
	fmt.Printf("the consumer against the bare loop: %.2f ×\n", median(ratios))
	return nil
}

// counter counts messages, and the memory and time they take. The first ones, as
// many as are prefetched, are not counted: the client has them before the clock
// starts.
type counter struct {
	n, seen int
	first   time.Time
	before  runtime.MemStats
	result  pass
}

// next counts one, by one goroutine at a time, and reports whether it was the last.
func (c *counter) next() bool {
	switch c.seen++; c.seen {
	case 1:
		runtime.GC()
	case prefetch:
		runtime.ReadMemStats(&c.before)
		c.first = time.Now()
	}
	if c.seen < prefetch+c.n {
		return false
	}
	took := time.Since(c.first).Seconds()
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	n := float64(c.n)
	c.result = pass{n / took, float64(after.Mallocs-c.before.Mallocs) / n, float64(after.TotalAlloc-c.before.TotalAlloc) / n}
	return true
}

// bareLoop is what a consumer is without the library: take, and acknowledge.
func bareLoop(ctx context.Context, v vhost, n int) (pass, error) {
	c := &counter{n: n}
	err := onChannel(v.url, func(ch *amqp.Channel) error {
		if err := ch.Qos(prefetch, 0, false); err != nil {
			return err
		}
		const tag = "bench"
		in, err := ch.Consume(work, tag, false, false, false, false, nil)
		if err != nil {
			return err
		}
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case d, ok := <-in:
				if !ok {
					return fmt.Errorf("the channel of the consumer of %s closed", work)
				}
				last := c.next()
				if err := d.Ack(false); err != nil {
					return err
				}
				if last {
					return ch.Cancel(tag, false)
				}
			}
		}
	})
	return c.result, err
}

// consumerLoop is the same by the library.
func consumerLoop(ctx context.Context, v vhost, n int) (pass, error) {
	c := &counter{n: n}
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
	if err == nil {
		err = ctx.Err()
	}
	return c.result, err
}
