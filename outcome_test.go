package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

var errDown = errors.New("the shop is down")

type badError struct{ text string }

func (e *badError) Error() string { panic("in Error" + e.text) }

type worseError struct{}

func (worseError) Error() string { return "worse" }
func (worseError) Is(error) bool { panic("in Is") }

// badMetrics panics after each count.
func badMetrics(m redrive.Metrics) redrive.Metrics {
	return redrive.Metrics{
		Attempt:  func(e redrive.AttemptEvent) { m.Attempt(e); panic("in Attempt") },
		Consumer: func(e redrive.ConsumerEvent) { m.Consumer(e); panic("in Consumer") },
	}
}

// What a handler's error makes of its message; and that no code of the user's, whatever it
// does, ends the process.
func TestOutcomes(t *testing.T) {
	panics := func() error { panic("no such order") }
	list := policy.Policy{Attempts: 3, Backoff: policy.List(50*time.Millisecond, 200*time.Millisecond)}
	discards, forwards, nowhere := fast(1), fast(1), fast(1)
	discards.Exhausted.Action = policy.Discard
	forwards.Exhausted = policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: "rest"}}
	nowhere.Exhausted = policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{Exchange: "missing", RoutingKey: "k"}}
	for _, c := range []struct {
		name   string
		policy policy.Policy
		change func(*setup)
		err    func() error // of each attempt
		want   map[redrive.Outcome]int
		why    string // in redrive.parked; "" when it is empty
		last   string // the error there
	}{
		{name: "nil", policy: fast(3), err: func() error { return nil }, want: map[redrive.Outcome]int{redrive.Succeeded: 1}},
		{name: "an error, as often as the policy allows", policy: fast(3), err: func() error { return errDown },
			want: map[redrive.Outcome]int{redrive.Retried: 2, redrive.Parked: 1}, why: "it failed 3 times", last: "the shop is down"},
		{name: "Park", policy: fast(3), err: func() error { return fmt.Errorf("order 7: %w", redrive.Park(errDown)) },
			want: map[redrive.Outcome]int{redrive.Parked: 1}, why: "its handler parked it", last: "order 7: the shop is down"},
		{name: "Discard", policy: fast(3), err: func() error { return fmt.Errorf("old: %w", redrive.ErrDiscard) }, want: map[redrive.Outcome]int{redrive.Discarded: 1}},
		{name: "RetryAfter", policy: list, err: func() error { return redrive.RetryAfter(errDown, time.Hour) },
			want: map[redrive.Outcome]int{redrive.Retried: 2, redrive.Parked: 1}, why: "it failed 3 times", last: "the shop is down"},
		{name: "a panic", policy: fast(2), err: panics, want: map[redrive.Outcome]int{redrive.Retried: 1, redrive.Parked: 1}, why: "it failed 2 times", last: "panic: no such order\n"},
		{name: "an error that Retry does not take", policy: fast(3), err: func() error { return errDown },
			change: func(c *setup) { c.Retry = func(err error) bool { return !errors.Is(err, errDown) } },
			want:   map[redrive.Outcome]int{redrive.Parked: 1}, why: "does not retry its error", last: "the shop is down"},
		{name: "Park without an error", policy: fast(3), err: func() error { return redrive.Park(nil) },
			want: map[redrive.Outcome]int{redrive.Parked: 1}, why: "its handler parked it", last: "its handler parked it"},
		{name: "RetryAfter without an error", policy: fast(2), err: func() error { return redrive.RetryAfter(nil, time.Millisecond) },
			want: map[redrive.Outcome]int{redrive.Retried: 1, redrive.Parked: 1}, why: "it failed 2 times", last: "its handler asked for another attempt in 1ms"},
		{name: "an error that is a nil pointer", policy: fast(2), err: func() error { return (*badError)(nil) },
			want: map[redrive.Outcome]int{redrive.Retried: 1, redrive.Parked: 1}, why: "it failed 2 times", last: "a *redrive_test.badError, whose Error method panics"},
		{name: "Park with an error that panics", policy: fast(2), err: func() error { return redrive.Park(&badError{}) },
			want: map[redrive.Outcome]int{redrive.Parked: 1}, why: "its handler parked it", last: "a *redrive.ParkError, whose Error method panics: in Error"},
		{name: "an error whose Is panics", policy: fast(2), err: func() error { return worseError{} },
			want: map[redrive.Outcome]int{redrive.Retried: 1, redrive.Parked: 1}, why: "it failed 2 times", last: "panic: in Is\n"},
		{name: "Retry panics", policy: fast(2), err: func() error { return errDown }, change: func(c *setup) { c.Retry = func(error) bool { panic("in Retry") } },
			want: map[redrive.Outcome]int{redrive.Retried: 1, redrive.Parked: 1}, why: "it failed 2 times", last: "panic: in Retry\n"},
		{name: "Metrics panics", policy: fast(2), err: func() error { return errDown }, change: func(c *setup) { c.Metrics = badMetrics(c.Metrics) },
			want: map[redrive.Outcome]int{redrive.Retried: 1, redrive.Parked: 1}, why: "it failed 2 times", last: "the shop is down"},
		{name: "discard after the last attempt", policy: discards, err: func() error { return errDown }, want: map[redrive.Outcome]int{redrive.Discarded: 1}},
		{name: "forward after the last attempt", policy: forwards, err: func() error { return errDown }, want: map[redrive.Outcome]int{redrive.Forwarded: 1}},
		{name: "forward to what is missing", policy: nowhere, err: func() error { return errDown },
			want: map[redrive.Outcome]int{redrive.Parked: 1}, why: `cannot be forwarded to exchange "missing"`, last: "the shop is down"},
	} {
		t.Run(c.name, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
				v.Queue("rest", amqp.Table{"x-queue-type": "quorum"})
				var seen outcomes
				cfg := config(t, v, c.policy)
				cfg.Metrics = seen.metrics()
				if c.change != nil {
					c.change(&cfg)
				}
				stop := consume(t, cfg, func(context.Context, *redrive.Message) error { return c.err() })
				v.Publish("", "orders", amqp.Publishing{Body: []byte("7")})
				for o, n := range c.want {
					brokertest.Eventually(t, fmt.Sprint(n, " ", o), func() bool { return seen.count(o) == n })
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				if n := v.Depth("orders"); n != 0 {
					t.Errorf("%d messages are left", n)
				}
				if c.want[redrive.Forwarded] > 0 {
					v.Consume("rest").Take("7")
				}
				if c.why == "" {
					if n := v.Depth(wire.QueueParked); n != 0 {
						t.Errorf("%d messages are parked", n)
					}
					return
				}
				d := parked(v)
				why, _ := d.Headers[wire.HeaderParkReason].(string)
				last, _ := d.Headers[wire.HeaderError].(string)
				if !strings.Contains(why, c.why) || !strings.HasPrefix(last, c.last) || string(d.Body) != "7" || d.Headers[wire.HeaderQueue] != "orders" {
					t.Errorf("parked for %q with error %q, body %q, headers %v", why, last, d.Body, d.Headers)
				}
			})
		})
	}
}

// A handler sees at each attempt what was first published, and what happened.
func TestTheHandlerSeesTheMessageAsItWasPublished(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		v.Exchange("shop", "topic", "orders")
		if err := v.Channel().QueueBind("orders", "order.*", "shop", false, nil); err != nil {
			t.Fatal(err)
		}
		type seen struct {
			redrive.Message
			at       time.Time
			deadline bool
		}
		came := make(chan seen, 10)
		cfg := config(t, v, policy.Policy{Attempts: 5, Backoff: policy.List(50*time.Millisecond, 200*time.Millisecond)})
		cfg.Timeout = time.Minute
		consume(t, cfg, func(ctx context.Context, m *redrive.Message) error {
			_, deadline := ctx.Deadline()
			s := seen{*m, time.Now(), deadline}
			s.Headers = maps.Clone(m.Headers)
			came <- s
			m.Headers["carried"] = int64(m.Attempt)
			m.Body, m.RoutingKey = []byte("changed"), "changed"
			if m.Attempt == 3 {
				return nil
			}
			return fmt.Errorf("failure %d", m.Attempt)
		})
		at := time.Now().Truncate(time.Second)
		v.Publish("shop", "order.created", amqp.Publishing{Body: []byte("7"), MessageId: "m7", UserId: "guest", AppId: "shop", Type: "order", Priority: 3,
			ContentType: "text/plain", ContentEncoding: "none", CorrelationId: "c", ReplyTo: "r", Timestamp: at, DeliveryMode: amqp.Persistent,
			Headers: amqp.Table{"tenant": "a", wire.HeaderAttempt: int64(40), wire.HeaderUserID: "root", wire.HeaderExchange: "forged"}})
		var first seen
		for attempt := 1; attempt <= 3; attempt++ {
			var s seen
			select {
			case s = <-came:
			case <-time.After(30 * time.Second):
				t.Fatalf("attempt %d did not come", attempt)
			}
			if s.Attempt != attempt || s.Queue != "orders" || s.Exchange != "shop" || s.RoutingKey != "order.created" || string(s.Body) != "7" ||
				s.MessageID != "m7" || s.UserID != "guest" || s.AppID != "shop" || s.Type != "order" || s.Priority != 3 || s.ContentType != "text/plain" ||
				s.ContentEncoding != "none" || s.CorrelationID != "c" || s.ReplyTo != "r" || !s.Timestamp.Equal(at) || s.Headers["tenant"] != "a" || !s.deadline || s.Redelivered {
				t.Errorf("attempt %d: %+v", attempt, s)
			}
			switch attempt {
			case 1:
				first = s
				if s.ID != "" || !s.FirstFailed.IsZero() || s.LastError != "" {
					t.Errorf("at its first attempt: %+v", s)
				}
				continue
			case 2:
				first.ID, first.FirstFailed = s.ID, s.FirstFailed
				if s.at.Sub(first.at) < 50*time.Millisecond {
					t.Errorf("early: after %s", s.at.Sub(first.at))
				}
			}
			if s.ID == "" || s.ID != first.ID || s.FirstFailed.IsZero() || !s.FirstFailed.Equal(first.FirstFailed) ||
				s.LastError != fmt.Sprint("failure ", attempt-1) || s.Headers["carried"] != int64(attempt-1) || s.Headers["x-death"] != nil || s.Headers[wire.HeaderID] != nil {
				t.Errorf("attempt %d: %+v", attempt, s)
			}
		}
	})
}

// A shorter wish of RetryAfter is kept as the policy's own waits are: rounded up.
func TestDecide(t *testing.T) {
	c := redrive.Consumer{Queue: "q", Wait: redrive.Levels(time.Second, time.Minute, time.Hour),
		Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(30 * time.Minute)}, Retry: func(err error) bool { return !errors.Is(err, errDown) }}
	for _, d := range []struct {
		err     error
		attempt int
		want    redrive.Outcome
		delay   time.Duration
	}{
		{errors.New("x"), 1, redrive.Retried, time.Hour},
		{errors.New("x"), 3, redrive.Parked, 0},
		{errDown, 1, redrive.Parked, 0},
		{redrive.RetryAfter(errDown, 2*time.Second), 1, redrive.Retried, time.Minute},
		{redrive.RetryAfter(errDown, -1), 1, redrive.Retried, time.Second},
		{redrive.RetryAfter(errDown, 24*time.Hour), 1, redrive.Retried, time.Hour},
		{redrive.RetryAfter(errDown, time.Second), 3, redrive.Parked, 0},
		{redrive.ErrDiscard, 3, redrive.Discarded, 0},
		{errors.New("x"), 0, redrive.Retried, time.Hour},
		{nil, 1, redrive.Succeeded, 0},
	} {
		if got, err := c.Decide(&redrive.Message{Attempt: d.attempt}, d.err); err != nil || got.Outcome != d.want || got.Delay != d.delay {
			t.Errorf("%v at attempt %d: %+v, %v; want %s in %s", d.err, d.attempt, got, err, d.want, d.delay)
		}
	}
}

// Headers that a handler has set and AMQP cannot carry cost nothing but themselves: the
// message goes on with those it was delivered with.
func TestHeadersThatAMQPCannotCarryAreLeftOut(t *testing.T) {
	circle := amqp.Table{}
	circle["circle"] = circle
	deep := any("x")
	for range 40 {
		deep = []any{deep}
	}
	for _, c := range []struct {
		name string
		set  func(amqp.Table)
	}{
		{"a kind of Go's own", func(h amqp.Table) { h["bad"] = struct{}{} }},
		{"within a table that was there", func(h amqp.Table) { h["nested"].(amqp.Table)["bad"] = make(chan int) }},
		{"a key that is too long", func(h amqp.Table) { h[strings.Repeat("k", 256)] = "x" }},
		{"larger than a frame", func(h amqp.Table) { h["bad"] = strings.Repeat("x", 200_000) }},
		{"a table within itself", func(h amqp.Table) { h["bad"] = circle }},
		{"deeper than the client reads", func(h amqp.Table) { h["bad"] = deep }},
	} {
		t.Run(c.name, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
				came := make(chan amqp.Table, 10)
				var log safeLog
				cfg := config(t, v, fast(3))
				cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
				consume(t, cfg, func(_ context.Context, m *redrive.Message) error {
					if m.Attempt == 1 {
						c.set(m.Headers)
						return errDown
					}
					came <- m.Headers
					return nil
				})
				v.Publish("", "orders", amqp.Publishing{Headers: amqp.Table{"tenant": "a", "nested": amqp.Table{"n": int64(1)}}})
				select {
				case h := <-came:
					if want := (amqp.Table{"tenant": "a", "nested": amqp.Table{"n": int64(1)}}); !reflect.DeepEqual(h, want) {
						t.Errorf("it came again with %v, want %v", h, want)
					}
				case <-time.After(30 * time.Second):
					t.Error("it did not come again")
				}
				if s := log.String(); strings.Count(s, "headers that a handler has set") != 1 || strings.Contains(s, "trying again") {
					t.Error(s)
				}
			})
		})
	}
}

// Settle tells what was published and not acknowledged from what was not published.
func TestSettleTellsUnacknowledgedFromUnsettled(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		cfg := config(t, v, policy.Policy{Attempts: 3, Backoff: policy.Fixed(time.Hour)})
		cfg.Wait = redrive.Levels(time.Hour)
		s := settler(t, cfg)
		for _, c := range []struct {
			failure error
			want    redrive.Outcome
		}{{errDown, redrive.Unacknowledged}, {redrive.Park(errDown), redrive.Unacknowledged}, {redrive.ErrDiscard, redrive.Unsettled}, {nil, redrive.Unsettled}} {
			v.Publish("", "orders", amqp.Publishing{})
			in := v.Consume("orders")
			d := in.Next()
			if err := in.Channel.Close(); err != nil {
				t.Fatal(err)
			}
			if o, err := s.Settle(t.Context(), &d, c.failure); o != c.want || err == nil {
				t.Errorf("%v on a channel that is closed: %s, %v; want %s and an error", c.failure, o, err, c.want)
			}
			again := v.Consume("orders")
			d = again.Next()
			if o, err := s.Settle(t.Context(), &d, redrive.ErrDiscard); o != redrive.Discarded || err != nil {
				t.Errorf("then: %s, %v", o, err)
			}
			_ = again.Channel.Close()
		}
		if waiting, parked := v.Depth("redrive.delay.1h"), v.Depth(wire.QueueParked); waiting != 1 || parked != 1 {
			t.Errorf("%d copies wait and %d are parked, of one each", waiting, parked)
		}
	})
}
