package redrive_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// The queue itself delays: it counts, and what keeps failing is parked. An older
// broker, which would ignore the arguments, is refused.
func TestNative(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		var seen outcomes
		cfg := config(t, v, policy.Policy{Attempts: 3, Backoff: policy.Linear(100*time.Millisecond, 100*time.Millisecond, time.Second)})
		cfg.Wait, cfg.Metrics = redrive.Native(), seen.metrics()
		if !v.Since4() {
			v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
			cfg.Handler = nothing
			if err := redrive.Consume(t.Context(), cfg.Config, cfg.Consumer); err == nil || !strings.Contains(err.Error(), "4.3") {
				t.Errorf("RabbitMQ %s is taken: %v", v.Version, err)
			}
			return
		}
		v.Queue("orders", redrive.NativeArguments(100*time.Millisecond, time.Second))
		type attempt struct {
			n  int
			at time.Time
		}
		came := make(chan attempt, 10)
		stop := consume(t, cfg, func(_ context.Context, m *redrive.Message) error {
			came <- attempt{m.Attempt, time.Now()}
			return errDown
		})
		v.Publish("", "orders", amqp.Publishing{Headers: amqp.Table{"x-delivery-count": int64(50)}})
		var last attempt
		for n := 1; n <= 3; n++ {
			var a attempt
			select {
			case a = <-came:
			case <-time.After(30 * time.Second):
				t.Fatalf("attempt %d did not come", n)
			}
			if a.n != n || n > 1 && a.at.Sub(last.at) < time.Duration(n-1)*100*time.Millisecond {
				t.Errorf("attempt %d is counted as %d, and came after %s", n, a.n, a.at.Sub(last.at))
			}
			last = a
		}
		brokertest.Eventually(t, "it is parked", func() bool { return seen.count(redrive.Parked) == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := parked(v); d.Headers["x-delivery-count"] != nil || d.Headers["x-redrive-attempt"] != int64(3) {
			t.Errorf("parked with %v", d.Headers)
		}
	})
}

// A queue without delay arguments brings each rejected message back at once. That is
// logged at the first one, and a queue that delays is not blamed.
func TestNativeNoticesAQueueThatDoesNotDelay(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		if !v.Since4() {
			return // refused there: TestNative
		}
		for queue, args := range map[string]amqp.Table{
			"delays": redrive.NativeArguments(200*time.Millisecond, time.Second),
			"not":    {"x-queue-type": "quorum", "x-delivery-limit": int64(-1)},
		} {
			v.Queue(queue, args)
			var said brokertest.Output
			cfg := config(t, v, policy.Policy{Attempts: 3, Backoff: policy.Linear(200*time.Millisecond, 200*time.Millisecond, time.Second)})
			cfg.Queue, cfg.Wait, cfg.Log = queue, redrive.Native(), slog.New(slog.NewTextHandler(&said, nil))
			came := make(chan int, 10)
			stop := consume(t, cfg, func(_ context.Context, m *redrive.Message) error {
				came <- m.Attempt
				if m.Attempt == 2 {
					return nil // noticed though it goes well now
				}
				return errDown
			})
			v.Publish("", queue, amqp.Publishing{Body: []byte("a")})
			for range 2 {
				select {
				case <-came:
				case <-time.After(30 * time.Second):
					t.Fatal("it did not come")
				}
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			if noticed := strings.Contains(said.String(), "delivered again too soon"); noticed != (queue == "not") {
				t.Errorf("queue %q: noticed: %v; it said:\n%s", queue, noticed, said.String())
			}
		}
	})
}

// People who keep their own loop settle each delivery.
func TestSettler(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		cfg := config(t, v, fast(2))
		s := settler(t, cfg)
		in := v.Consume("orders")
		v.Publish("", "orders", amqp.Publishing{Body: []byte("7")})
		for attempt, want := range []redrive.Outcome{redrive.Retried, redrive.Parked} {
			d := in.Next()
			if m := s.Message(&d); m.Attempt != attempt+1 || m.RoutingKey != "orders" || string(m.Body) != "7" {
				t.Errorf("attempt %d: %+v", attempt+1, m)
			}
			if o, err := s.Settle(t.Context(), &d, errDown); o != want || err != nil {
				t.Errorf("attempt %d: %s, %v", attempt+1, o, err)
			}
		}
		v.Publish("", "orders", amqp.Publishing{})
		d := in.Next()
		if o, err := s.Settle(t.Context(), &d, nil); o != redrive.Succeeded || err != nil {
			t.Errorf("%s, %v", o, err)
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		v.Publish("", "orders", amqp.Publishing{})
		d = in.Next()
		if o, err := s.Settle(ended, &d, errDown); o != redrive.Unsettled || !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %s, %v", o, err)
		}
	})
}
