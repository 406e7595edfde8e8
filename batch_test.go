package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

func allSucceed(context.Context, []*redrive.Message) map[*redrive.Message]error { return nil }

// Each message of a batch has an outcome of its own, and each is accounted for.
func TestTheOutcomesOfABatch(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		const n = 60
		for i := range n {
			v.Publish("", "orders", amqp.Publishing{MessageId: fmt.Sprint(i), Body: []byte([]string{"succeeds", "parks", "fails once", "discards", "panics"}[i%5])})
		}
		var seen outcomes
		var mu sync.Mutex
		var sizes []int
		attempts := map[string]int{}
		c := config(t, v, fast(6))
		c.Metrics, c.Concurrency = seen.metrics(), 2
		c.Batch = redrive.Batch{Size: 20, Wait: 100 * time.Millisecond, Handler: func(ctx context.Context, batch []*redrive.Message) map[*redrive.Message]error {
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(batch))
			failed := map[*redrive.Message]error{}
			panics := false
			for _, m := range batch {
				attempts[m.MessageID]++
				switch body := string(m.Body); {
				case body == "parks":
					failed[m] = redrive.Park(errDown)
				case body == "fails once" && m.Attempt == 1:
					failed[m] = errDown
				case body == "discards":
					failed[m] = fmt.Errorf("old: %w", redrive.ErrDiscard)
				case body == "panics" && m.Attempt == 1:
					panics = true
				}
			}
			slices.Reverse(batch) // it is the handler's
			if panics && len(failed) == 0 {
				panic("all that is left")
			}
			if panics {
				failed[&redrive.Message{}] = errDown // of no batch: fails those without an error
			}
			return failed
		}}
		stop := consume(t, c, nil)
		brokertest.Eventually(t, "all have ended", func() bool {
			return seen.count(redrive.Succeeded) == 3*n/5 && seen.count(redrive.Parked) == n/5 && seen.count(redrive.Discarded) == n/5
		})
		if err := stop(); err != nil {
			t.Error(err)
		}
		if left, parked := v.Depth("orders"), v.Depth(wire.QueueParked); left != 0 || parked != n/5 {
			t.Errorf("%d messages are left and %d parked", left, parked)
		}
		lot := v.Consume(wire.QueueParked)
		for range n / 5 {
			lot.Take("parks")
		}
		if slices.Max(sizes) > 20 || !slices.Contains(sizes, 20) || len(attempts) != n {
			t.Errorf("batches of %v, of %d messages", sizes, len(attempts))
		}
		total := seen.count(redrive.Succeeded) + seen.count(redrive.Parked) + seen.count(redrive.Discarded) + seen.count(redrive.Retried)
		for _, s := range sizes {
			total -= s
		}
		if total != 0 || seen.count(redrive.Unsettled) != 0 {
			t.Errorf("%d outcomes more than messages in batches; %d unsettled", total, seen.count(redrive.Unsettled))
		}
	})
}

// A batch that is not full is handled when the consumer stops, and what was prefetched
// goes back.
func TestAPartialBatchIsHandledAtTheEnd(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		var seen outcomes
		c := config(t, v, fast(3))
		c.Metrics = seen.metrics()
		began, full := make(chan struct{}), make(chan struct{})
		c.Batch = redrive.Batch{Size: 2, Wait: time.Hour, Handler: func(_ context.Context, batch []*redrive.Message) map[*redrive.Message]error {
			if len(batch) == 2 {
				close(began)
				<-full
			}
			return nil
		}}
		for range 3 {
			v.Publish("", "orders", amqp.Publishing{})
		}
		stop := consume(t, c, nil)
		<-began
		close(full)
		brokertest.Eventually(t, "the full one is settled", func() bool { return seen.count(redrive.Succeeded) == 2 })
		brokertest.Eventually(t, "RabbitMQ has delivered the third", func() bool { return v.Depth("orders") == 0 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if n := seen.count(redrive.Succeeded) + v.Depth("orders"); n != 3 {
			t.Errorf("%d messages of 3", n)
		}
	})
}

// Middleware is called in its order, the first one outermost; what it returns is what
// counts.
func TestMiddleware(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		var mu sync.Mutex
		var order []string
		say := func(s string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, s)
		}
		named := func(name string) redrive.Middleware {
			return func(next redrive.Handler) redrive.Handler {
				return func(ctx context.Context, m *redrive.Message) error {
					say(name)
					err := next(ctx, m)
					say("end of " + name)
					return err
				}
			}
		}
		parks := func(next redrive.Handler) redrive.Handler {
			return func(ctx context.Context, m *redrive.Message) error { return redrive.Park(next(ctx, m)) }
		}
		var seen outcomes
		c := config(t, v, fast(3))
		c.Metrics, c.Middleware = seen.metrics(), []redrive.Middleware{named("outer"), parks, named("inner")}
		consume(t, c, func(context.Context, *redrive.Message) error { say("handler"); return errDown })
		v.Publish("", "orders", amqp.Publishing{})
		brokertest.Eventually(t, "it is parked", func() bool { return seen.count(redrive.Parked) == 1 })
		if want := []string{"outer", "inner", "handler", "end of inner", "end of outer"}; !slices.Equal(order, want) {
			t.Errorf("%q, want %q", order, want)
		}
	})
}

// OnParked is called for each parked message; that it panics ends nothing, and is counted.
func TestOnParked(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		var log safeLog
		var seen outcomes
		parks, results := make(chan redrive.ParkedMessage, 10), make(chan redrive.HookEvent, 10)
		c := config(t, v, fast(2))
		c.Log = slogTo(&log)
		c.Metrics = seen.metrics()
		c.Metrics.Hook = func(e redrive.HookEvent) { results <- e }
		c.OnParked = func(_ context.Context, m redrive.ParkedMessage) {
			parks <- m
			if m.MessageID == "panics" {
				panic("in the hook")
			}
		}
		stop := consume(t, c, func(_ context.Context, m *redrive.Message) error {
			if m.MessageID == "panics" {
				return redrive.Park(errDown)
			}
			return fmt.Errorf("order 7: %w", errDown)
		})
		v.Publish("", "orders", amqp.Publishing{MessageId: "panics"})
		if m := <-parks; m.Attempt != 1 || m.Queue != "orders" || m.ID == "" || m.Reason != "its handler parked it" {
			t.Errorf("%+v", m)
		}
		v.Publish("", "orders", amqp.Publishing{MessageId: "m7"})
		if m := <-parks; m.Attempt != 2 || m.Queue != "orders" || m.ID == "" || m.MessageID != "m7" || !strings.Contains(m.Reason, "it failed 2 times") || !errors.Is(m.Err, errDown) {
			t.Errorf("%+v", m)
		}
		for _, want := range []redrive.HookResult{redrive.HookPanicked, redrive.HookReturned} {
			if e := <-results; e != (redrive.HookEvent{Queue: "orders", Result: want}) {
				t.Errorf("%+v, want %s", e, want)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if s := log.String(); strings.Count(s, "Config.OnParked panicked") != 1 {
			t.Error(s)
		}
	})
}
