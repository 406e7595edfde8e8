package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/wire"
)

// far is the queue whose messages wait for an hour.
const (
	far      = "far"
	farDelay = time.Hour
)

// progress prints how far a filling is, every two seconds and at its end.
func (r *report) progress(n int) func(done int) {
	began := time.Now()
	shown := began
	return func(done int) {
		if time.Since(shown) > 2*time.Second || done == n {
			shown = time.Now()
			r.printf("  %d of %d wait, %.0f per second\n", done, n, float64(done)/time.Since(began).Seconds())
		}
	}
}

// fillByBroker has n messages rejected, the way users' messages get there. The
// service runs.
func (s *service) fillByBroker(ctx context.Context, v vhost, n int, progress func(int)) error {
	const chunk = 20_000 // RabbitMQ holds no more than twice that
	ctx, stop := context.WithCancel(ctx)
	var rejecting sync.WaitGroup
	var failure error
	rejecting.Go(func() {
		defer stop() // without it the filling would wait for ever
		failure = rejectAll(ctx, v.url)
	})
	err := func() error {
		for sent := 0; sent < n; {
			more := min(chunk, n-sent)
			if err := publish(ctx, v.url, far, more, 0); err != nil {
				return err
			}
			sent += more
			least := sent - chunk
			if sent == n {
				least = n
			}
			if err := s.untilWaiting(ctx, far, func(now int) bool {
				progress(now)
				return now >= least
			}); err != nil {
				return err
			}
		}
		return nil
	}()
	stop()
	rejecting.Wait()
	return errors.Join(failure, err)
}

// rejectAll rejects what comes from the far queue until ctx ends.
func rejectAll(ctx context.Context, url string) error {
	return onChannel(url, func(ch *amqp.Channel) error {
		if err := ch.Qos(1000, 0, false); err != nil {
			return err
		}
		in, err := ch.Consume(far, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for {
			select {
			case <-ctx.Done():
				return nil
			case d, ok := <-in:
				if !ok {
					return errors.New("the channel of the consumer of " + far + " closed")
				}
				if err := d.Reject(false); err != nil {
					return err
				}
			}
		}
	})
}

// untilWaiting waits until enough messages of a queue wait in the service, for as
// long as their number changes.
func (s *service) untilWaiting(ctx context.Context, queue string, enough func(now int) bool) error {
	last, changed := -1, time.Now()
	for {
		now, err := s.waiting(ctx, queue)
		if err != nil {
			return err
		}
		if enough(now) {
			return nil
		}
		if now != last {
			last, changed = now, time.Now()
		}
		if time.Since(changed) > time.Minute {
			return fmt.Errorf("%d messages of %s wait, and for a minute no more came", now, queue)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// fillDirectly writes n messages into its store; the service must not run.
func (s *service) fillDirectly(ctx context.Context, n int, progress func(int), record func(i int) *store.Record) error {
	d, err := s.openStore(ctx)
	if err != nil {
		return err
	}
	for done := 0; done < n && err == nil; {
		batch := make([]*store.Record, min(1000, n-done))
		for i := range batch {
			batch[i] = record(done + i)
		}
		if err = d.Add(ctx, batch); err == nil {
			done += len(batch)
			progress(done)
		}
	}
	return errors.Join(err, d.Close())
}

func (s *service) openStore(ctx context.Context) (store.Store, error) {
	if s.redis != nil {
		return redisstore.Open(ctx, redisstore.Options{URL: s.redis.URL(), Log: slog.New(slog.DiscardHandler)}) // no maxmemory, as it knows
	}
	return diskstore.Open(s.data(), diskstore.Options{})
}

// waitsFar makes the messages that wait for an hour.
func waitsFar() func(i int) *store.Record {
	body := []byte(strings.Repeat("x", *size))
	return func(i int) *store.Record {
		now := time.Now()
		return &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: far, State: store.Waiting, Due: now.Add(farDelay),
			Failures: 1, Reason: wire.ReasonRejected, Policy: far, FirstFailed: now, FailedAt: now, Proven: true,
			Message: wire.Message{RoutingKey: far, DeliveryMode: amqp.Persistent, MessageID: strconv.Itoa(i), Body: body}}
	}
}

// troubles are what parked messages failed for; numbers in them are no reason for
// another group.
var troubles = []string{
	"connection refused by payments:%d",
	"timeout after %d ms",
	"order %d has no customer",
	"the invoice of %d is not balanced",
	"no such article: %d",
}

// isParked makes messages that were parked one after another during a day, in
// these queues, each with one of the troubles, some headers and a JSON body.
func isParked(n int, queues []string) func(i int) *store.Record {
	began := time.Now().Add(-24 * time.Hour)
	return func(i int) *store.Record {
		at := began.Add(time.Duration(float64(24*time.Hour) * float64(i) / float64(n)))
		queue := queues[i%len(queues)]
		body := fmt.Sprintf(`{"order":{"id":%d,"total":%d.50,"tenant":"tenant-%d"},"note":"`, i, i%1000, i%50)
		body += strings.Repeat("x", max(0, *size-len(body)-2)) + `"}`
		return &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: store.Parked, Due: at,
			Failures: 5, Reason: wire.ReasonRejected, Error: fmt.Sprintf(troubles[i/len(queues)%len(troubles)], i), Policy: queue,
			FirstFailed: at.Add(-time.Hour), FailedAt: at, ParkedFor: "it has failed 5 times, and its policy allows 5 attempts", Proven: true,
			Message: wire.Message{RoutingKey: queue, DeliveryMode: amqp.Persistent, MessageID: strconv.Itoa(i), Type: "order.placed", ContentType: "application/json",
				Headers: amqp.Table{"tenant": fmt.Sprintf("tenant-%d", i%50), "trace": uuid.NewString()}, Body: []byte(body)}}
	}
}
