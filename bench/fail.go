package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// startPlain is a work queue without anything.
func startPlain(_ context.Context, v vhost, _ time.Duration) (way, error) {
	return way{stop: func() {}}, onChannel(v.url, func(ch *amqp.Channel) error {
		return declare(ch, work, amqp.Table{"x-queue-type": v.kind})
	})
}

// startPlugin is startPlain where the delayed-message plugin is.
func startPlugin(ctx context.Context, v vhost, delay time.Duration) (way, error) {
	if err := v.hasPlugin(ctx); err != nil {
		return way{}, err
	}
	return startPlain(ctx, v, delay)
}

// attempts is what handlers see: each message twice.
type attempts struct {
	n     int
	stay  bool
	done  func() // called when all have come back, or failed
	mu    sync.Mutex
	first time.Time
	fails []time.Time
	back  []bool
	left  int
	seen  returns
	err   error
}

func newAttempts(n int, stay bool, done func()) *attempts {
	return &attempts{n: n, stay: stay, done: done, fails: make([]time.Time, n), back: make([]bool, n), left: n}
}

// attempt tells whether a message is to fail.
func (a *attempts) attempt(messageID string) bool {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	id, err := strconv.Atoi(messageID)
	if err != nil || id < 0 || id >= a.n {
		a.err = fmt.Errorf("a message %q arrived that was not sent", messageID)
		a.done()
		return false
	}
	if a.first.IsZero() {
		a.first = now
	}
	fails := a.fails[id].IsZero()
	switch {
	case fails:
		a.fails[id] = now
	case a.back[id]:
		a.seen.duplicates++
	default:
		a.back[id] = true
		a.seen.waits = append(a.seen.waits, now.Sub(a.fails[id]))
	}
	if fails == a.stay {
		if a.left--; a.left == 0 {
			a.seen.ended = now
			a.done()
		}
	}
	return fails
}

// result is after the last attempt.
func (a *attempts) result(ctx context.Context, delay time.Duration, err error) (returns, error) {
	slices.Sort(a.seen.waits)
	if err = errors.Join(err, a.err); err != nil {
		return a.seen, err
	}
	if a.left > 0 {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			a.seen.lost = a.left
			return a.seen, nil
		}
		return a.seen, errors.Join(ctx.Err(), errors.New("the consumer ended before its messages did"))
	}
	a.seen.rate = float64(a.n) / (a.seen.ended.Sub(a.first) - delay).Seconds()
	return a.seen, nil
}

// failBy has a consumer of the library's fail them.
func failBy(make func(time.Duration) redrive.Way) failer {
	return func(ctx context.Context, v vhost, n int, delay time.Duration, stay bool) (returns, error) {
		running, stop := context.WithCancel(ctx)
		defer stop()
		a := newAttempts(n, stay, stop)
		config := redrive.Config{URLs: []string{v.url}, Log: slog.New(slog.DiscardHandler)}
		err := redrive.Consume(running, config, redrive.Consumer{Queue: work, Wait: make(delay), Prefetch: prefetch, Concurrency: *handlers,
			Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(delay), Jitter: policy.None},
			Handler: func(_ context.Context, m *redrive.Message) error {
				if a.attempt(m.MessageID) {
					return errors.New("the payment service does not answer")
				}
				return nil
			}})
		return a.result(ctx, delay, err)
	}
}

// rejectEach is what a consumer of the fixed recipe does.
func rejectEach(ctx context.Context, v vhost, n int, delay time.Duration, stay bool) (returns, error) {
	return byLoop(ctx, v, n, delay, stay, 1, func(_ *amqp.Channel, d amqp.Delivery) error { return d.Reject(false) })
}

// republishEach is the fixed recipe plus a confirmed publish: the delivery is
// acknowledged when RabbitMQ has confirmed it in the delay queue.
func republishEach(ctx context.Context, v vhost, n int, delay time.Duration, stay bool) (returns, error) {
	return republish(ctx, v, n, delay, stay, nil)
}

// republishMarked also carries what the library's messages do: who it is, how
// often it failed and why. RabbitMQ's work grows with the headers.
func republishMarked(ctx context.Context, v vhost, n int, delay time.Duration, stay bool) (returns, error) {
	t := headers.History{ID: uuid.NewString(), Failures: 1, Queue: work, FirstFailed: time.Now(), Reason: wire.ReasonReported, Error: "the payment service does not answer"}
	return republish(ctx, v, n, delay, stay, t.ApplyTo(wire.Message{RoutingKey: work}).Headers)
}

func republish(ctx context.Context, v vhost, n int, delay time.Duration, stay bool, headers amqp.Table) (returns, error) {
	return byLoop(ctx, v, n, delay, stay, *handlers, func(ch *amqp.Channel, d amqp.Delivery) error {
		c, err := ch.PublishWithDeferredConfirm("", "wait", true, false, amqp.Publishing{MessageId: d.MessageId, DeliveryMode: amqp.Persistent, Headers: headers, Body: d.Body})
		if err != nil {
			return err
		}
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return errors.Join(err, errors.New("RabbitMQ did not confirm a failed message"))
		}
		return d.Ack(false)
	})
}

// byLoop is a consumer without the library, which publishes on a connection of
// its own.
func byLoop(ctx context.Context, v vhost, n int, delay time.Duration, stay bool, workers int, fail func(*amqp.Channel, amqp.Delivery) error) (r returns, err error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	a := newAttempts(n, stay, stop)
	err = onChannel(v.url, func(out *amqp.Channel) error {
		if err := out.Confirm(false); err != nil {
			return err
		}
		return onChannel(v.url, func(ch *amqp.Channel) error {
			if err := ch.Qos(prefetch, 0, false); err != nil {
				return err
			}
			const tag = "bench"
			in, err := ch.Consume(work, tag, false, false, false, false, nil)
			if err != nil {
				return err
			}
			failures := make(chan error, workers)
			var working sync.WaitGroup
			for range workers {
				working.Go(func() {
					for {
						select {
						case <-running.Done():
							return
						case d, ok := <-in:
							if !ok {
								failures <- errors.New("the channel of the consumer closed")
								return
							}
							do := func() error { return d.Ack(false) }
							if a.attempt(d.MessageId) {
								do = func() error { return fail(out, d) }
							}
							if err := do(); err != nil {
								failures <- err
								stop()
								return
							}
						}
					}
				})
			}
			working.Wait()
			close(failures)
			return errors.Join(<-failures, ch.Cancel(tag, false))
		})
	})
	return a.result(ctx, delay, err)
}
