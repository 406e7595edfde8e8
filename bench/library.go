package main

import (
	"context"
	"flag"
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

var (
	library      = flag.Bool("library", false, "measure the Go library and its ways to wait")
	libraryDelay = flag.Duration("library-delay", time.Second, "with -library: the delay of each failed message")
	only         = flag.String("ways", "", "with -library: only rows that begin so, such as levels")
	handlers     = flag.Int("handlers", 64, "with -library: handlers at once where messages fail")
)

// prefetch of all consumers of -library and -replay.
const prefetch = 1000

// libraryResult is the library on one broker and kind of work queue.
type libraryResult struct {
	RabbitMQ string       `json:"rabbitmq"`
	Kind     string       `json:"kind"`
	Bare     pass         `json:"bare"`
	Consumer pass         `json:"consumer"`
	Ratio    float64      `json:"of_bare"` // the median of the rounds' own ratios
	Delay    float64      `json:"delay_ms"`
	Ways     []*wayResult `json:"ways"`
	Targets  []target     `json:"targets"`
}

// pass is a round in which every message succeeds at once.
type pass struct {
	Rate        float64 `json:"messages_per_s"`
	Allocations float64 `json:"allocations_per_message"`
	Bytes       float64 `json:"bytes_per_message"`
}

func (r *report) withLibrary(ctx context.Context, b brokertest.Broker, kind string) error {
	res := &libraryResult{RabbitMQ: b.Version, Kind: kind, Delay: ms(*libraryDelay)}
	r.printf("\nRabbitMQ %s, %s work queue, the library, %d messages of %d bytes, median of %d\n", b.Version, kind, *messages, *size, *rounds)
	if *only == "" {
		if err := res.success(ctx, r, b, kind); err != nil {
			return err
		}
	}
	if err := res.failing(ctx, r, b, kind); err != nil {
		return err
	}
	r.Library = append(r.Library, res)
	return nil
}

// success compares the consumer with a bare loop, in turn on one broker.
func (res *libraryResult) success(ctx context.Context, r *report, b brokertest.Broker, kind string) error {
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return err
	}
	defer remove()
	if err := onChannel(v.url, func(ch *amqp.Channel) error { return declare(ch, work, amqp.Table{"x-queue-type": kind}) }); err != nil {
		return err
	}
	loops := []func(context.Context, vhost, int) (pass, error){bareLoop, consumerLoop}
	all := make([][]pass, len(loops))
	var ratios []float64
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
			ratios = append(ratios, now[1].Rate/now[0].Rate)
		}
	}
	for i, into := range []*pass{&res.Bare, &res.Consumer} {
		slices.SortFunc(all[i], func(a, b pass) int { return int(a.Rate - b.Rate) })
		*into = all[i][len(all[i])/2]
	}
	slices.Sort(ratios)
	res.Ratio = round(ratios[len(ratios)/2])
	r.printf("success, bare amqp091-go loop: %s\nsuccess, redrive.Consume: %s\n", res.Bare, res.Consumer)
	res.Targets = append(res.Targets, r.atLeast("the consumer against the bare loop", res.Ratio, "×", 0.95))
	return nil
}

func (p pass) String() string {
	return fmt.Sprintf("%.0f messages/s, %.1f allocations and %.0f bytes a message", p.Rate, p.Allocations, p.Bytes)
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

// next counts one, by one goroutine at a time, and tells whether it was the last.
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
	c.result = pass{round(n / took), round(float64(after.Mallocs-c.before.Mallocs) / n), round(float64(after.TotalAlloc-c.before.TotalAlloc) / n)}
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
