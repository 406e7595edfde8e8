package redrive_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
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
	list := policy.Policy{Attempts: 3, Backoff: policy.List(50*time.Millisecond, 200*time.Millisecond)}
	discards, forwards, nowhere := fast(1), fast(1), fast(1)
	discards.Exhausted.Action = policy.Discard
	forwards.Exhausted = policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: "rest"}}
	nowhere.Exhausted = policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{Exchange: "missing",
		RoutingKey: "k"}}
	for _, c := range []struct {
		name   string
		policy policy.Policy
		change func(*setup)
		err    func() error // of each attempt; nil: errDown
		want   string       // outcomes
		why    string       // in redrive.parked; "" when it is empty
		last   string       // the error there; "": errDown's
	}{
		{name: "nil", policy: fast(3), err: func() error { return nil }, want: "succeeded"},
		{name: "an error, as often as the policy allows", policy: fast(3), want: "retried retried parked",
			why: "it failed 3 times"},
		{name: "Park", policy: fast(3), err: func() error { return fmt.Errorf("order 7: %w", redrive.Park(errDown)) },
			want: "parked", why: "its handler parked it", last: "order 7: the shop is down"},
		{name: "Discard", policy: fast(3), err: func() error {
			return fmt.Errorf("old: %w", redrive.ErrDiscard)
		}, want: "discarded"},
		{name: "RetryAfter", policy: list, err: func() error { return redrive.RetryAfter(errDown, time.Hour) },
			want: "retried retried parked", why: "it failed 3 times"},
		{name: "a panic", policy: fast(2), err: func() error { panic("no such order") },
			want: "retried parked", why: "it failed 2 times", last: "panic: no such order\n"},
		{name: "an error that Retry does not take", policy: fast(3),
			change: func(c *setup) { c.Retry = func(err error) bool { return !errors.Is(err, errDown) } },
			want:   "parked", why: "does not retry its error"},
		{name: "Park without an error", policy: fast(3), err: func() error { return redrive.Park(nil) },
			want: "parked", why: "its handler parked it", last: "its handler parked it"},
		{name: "RetryAfter without an error", policy: fast(2),
			err:  func() error { return redrive.RetryAfter(nil, time.Millisecond) },
			want: "retried parked", why: "it failed 2 times", last: "its handler asked for another attempt in 1ms"},
		{name: "an error that is a nil pointer", policy: fast(2), err: func() error { return (*badError)(nil) },
			want: "retried parked", why: "it failed 2 times",
			last: "a *redrive_test.badError, whose Error method panics"},
		{name: "Park with an error that panics", policy: fast(2), err: func() error {
			return redrive.Park(&badError{})
		},
			want: "parked", why: "its handler parked it",
			last: "a *redrive.ParkError, whose Error method panics: in Error"},
		{name: "an error whose Is panics", policy: fast(2), err: func() error { return worseError{} },
			want: "retried parked", why: "it failed 2 times", last: "panic: in Is\n"},
		{name: "Retry panics", policy: fast(2), change: func(c *setup) {
			c.Retry = func(error) bool { panic("in Retry") }
		},
			want: "retried parked", why: "it failed 2 times", last: "panic: in Retry\n"},
		{name: "Metrics panics", policy: fast(2), change: func(c *setup) { c.Metrics = badMetrics(c.Metrics) },
			want: "retried parked", why: "it failed 2 times"},
		{name: "discard after the last attempt", policy: discards, want: "discarded"},
		{name: "forward after the last attempt", policy: forwards, want: "forwarded"},
		{name: "forward to what is missing", policy: nowhere, want: "parked",
			why: `cannot be forwarded to exchange "missing"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				cfg := orders(t, v, c.policy)
				v.Queue("rest", amqp.Table{"x-queue-type": "quorum"})
				if c.change != nil {
					c.change(&cfg)
				}
				stop := consume(t, cfg, func(context.Context, *redrive.Message) error {
					if c.err != nil {
						return c.err()
					}
					return errDown
				})
				v.Publish("", "orders", amqp.Publishing{Body: []byte("7")})
				for _, outcome := range strings.Fields(c.want) {
					cfg.seen.await(t, redrive.Outcome(outcome), strings.Count(c.want, outcome))
				}
				must(t, stop())
				expect.Equal(t, v.Depth("orders"), 0, "messages are left")
				if c.want == "forwarded" {
					v.Consume("rest").Take("7")
				}
				if c.why == "" {
					expect.Equal(t, v.Depth(wire.QueueParked), 0, "messages are parked")
					return
				}
				d := parked(v)
				why, _ := d.Headers[wire.HeaderParkReason].(string)
				last, _ := d.Headers[wire.HeaderError].(string)
				if !strings.Contains(why, c.why) || !strings.HasPrefix(last, cmp.Or(c.last, errDown.Error())) ||
					string(d.Body) != "7" || d.Headers[wire.HeaderQueue] != "orders" {
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
		must(t, v.Channel().QueueBind("orders", "order.*", "shop", false, nil))
		type seen struct {
			redrive.Message
			at       time.Time
			deadline bool
		}
		came := make(chan seen, 10)
		cfg := config(t, v, policy.Policy{Attempts: 5, Backoff: policy.List(50*time.Millisecond, 200*time.Millisecond)})
		cfg.Timeout = time.Minute
		counted := make(chan int, 10)
		cfg.Metrics.Attempt = func(e redrive.AttemptEvent) { counted <- e.Attempt }
		consume(t, cfg, func(ctx context.Context, m *redrive.Message) error {
			_, deadline := ctx.Deadline()
			s := seen{*m, time.Now(), deadline}
			s.Headers = maps.Clone(m.Headers)
			came <- s
			m.Headers["carried"] = int64(m.Attempt)
			m.Body, m.RoutingKey, m.Attempt = []byte("changed"), "changed", 9
			if s.Attempt == 3 {
				return nil
			}
			return fmt.Errorf("failure %d", s.Attempt)
		})
		at := time.Now().Truncate(time.Second)
		v.Publish("shop", "order.created", amqp.Publishing{Body: []byte("7"), MessageId: "m7", UserId: "guest",
			AppId: "shop", Type: "order", Priority: 3,
			ContentType: "text/plain", ContentEncoding: "none", CorrelationId: "c", ReplyTo: "r", Timestamp: at,
			DeliveryMode: amqp.Persistent,
			Headers: amqp.Table{"tenant": "a", wire.HeaderAttempt: int64(40), wire.HeaderUserID: "root",
				wire.HeaderExchange: "forged"}})
		var first seen
		for attempt := 1; attempt <= 3; attempt++ {
			s := brokertest.Receive(t, came, fmt.Sprint("attempt ", attempt))
			if s.Attempt != attempt || s.Queue != "orders" || s.Exchange != "shop" || s.RoutingKey != "order.created" ||
				string(s.Body) != "7" ||
				s.MessageID != "m7" || s.UserID != "guest" || s.AppID != "shop" || s.Type != "order" ||
				s.Priority != 3 || s.ContentType != "text/plain" ||
				s.ContentEncoding != "none" || s.CorrelationID != "c" || s.ReplyTo != "r" || !s.Timestamp.Equal(at) ||
				s.Headers["tenant"] != "a" || !s.deadline || s.Redelivered {
				t.Errorf("attempt %d: %+v", attempt, s)
			}
			expect.Equal(t, brokertest.Receive(t, counted, "the count of an attempt"), attempt, "counted as attempt")
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
				s.LastError != fmt.Sprint("failure ", attempt-1) || s.Headers["carried"] != int64(attempt-1) ||
				s.Headers["x-death"] != nil || s.Headers[wire.HeaderID] != nil {
				t.Errorf("attempt %d: %+v", attempt, s)
			}
		}
	})
}

// What has the headers of another message, as frameworks copy them, is at its first attempt, also
// where it was published to an exchange of Redrive's.
func TestADerivedMessageIsAnother(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		v.Exchange(wire.RetryExchange("orders"), "fanout", "orders")
		came := make(chan redrive.Message, 100)
		consume(t, config(t, v, fast(2)), func(_ context.Context, m *redrive.Message) error {
			if came <- *m; m.Attempt == 1 {
				return errDown
			}
			return nil
		})
		order := wire.Message{Body: []byte("order")}
		sent := headers.History{ID: headers.NewID(&order).String(), Failures: 1, Replays: 3,
			Queue: "orders"}.ApplyTo(order)
		v.Publish(wire.RetryExchange("orders"), "", amqp.Publishing{Body: order.Body, Headers: sent.Headers})
		if m := brokertest.Receive(t, came, "the delivery itself"); m.Attempt != 2 || m.Replays != 3 ||
			m.ID != sent.Headers[wire.HeaderID] {
			t.Errorf("the delivery itself is %+v", m)
		}
		ids := map[string]bool{"": true, headers.NewID(&order).String(): true}
		for i := range 10 {
			body := order.Body
			if sent.Headers[wire.HeaderQueue] = "elsewhere"; i > 0 {
				sent.Headers[wire.HeaderQueue], body = "orders", fmt.Append(nil, "derived ", i)
			}
			v.Publish(wire.RetryExchange("orders"), "", amqp.Publishing{Body: body, Headers: sent.Headers})
			for attempt := 1; attempt <= 2; attempt++ {
				m := brokertest.Receive(t, came, string(body))
				if m.Attempt != attempt || m.Replays != 0 || ids[m.ID] != (attempt == 1) ||
					m.ID == sent.Headers[wire.HeaderID] {
					t.Errorf("%s at attempt %d: %+v", body, attempt, m)
				}
				ids[m.ID] = true
			}
		}
	})
}

// A shorter wish of RetryAfter is kept as the policy's own waits are: rounded up.
func TestDecide(t *testing.T) {
	c := redrive.Consumer{Queue: "q", Wait: redrive.Levels(time.Second, time.Minute, time.Hour),
		Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(30 * time.Minute)}, Retry: func(err error) bool {
			return !errors.Is(err, errDown)
		}}
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
		if got, err := c.Decide(&redrive.Message{Attempt: d.attempt}, d.err); err != nil || got.Outcome != d.want ||
			got.Delay != d.delay {
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
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				came := make(chan amqp.Table, 10)
				cfg := orders(t, v, fast(3))
				consume(t, cfg, func(_ context.Context, m *redrive.Message) error {
					if m.Attempt == 1 {
						c.set(m.Headers)
						return errDown
					}
					came <- m.Headers
					return nil
				})
				v.Publish("", "orders", amqp.Publishing{Headers: amqp.Table{"tenant": "a",
					"nested": amqp.Table{"n": int64(1)}}})
				h := brokertest.Receive(t, came, "an attempt")
				want := amqp.Table{"tenant": "a", "nested": amqp.Table{"n": int64(1)}}
				if !reflect.DeepEqual(h, want) {
					t.Errorf("it came again with %v, want %v", h, want)
				}
				if s := cfg.said.String(); strings.Count(s, "headers that a handler has set") != 1 ||
					strings.Contains(s, "trying again") {
					t.Error(s)
				}
			})
		})
	}
}

// Settle tells what was published and not acknowledged from what was not published.
func TestSettleTellsUnacknowledgedFromUnsettled(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := orders(t, v, policy.Policy{Attempts: 3, Backoff: policy.Fixed(time.Hour)})
		cfg.Wait = redrive.Levels(time.Hour)
		s := settler(t, cfg)
		for _, c := range []struct {
			failure error
			want    redrive.Outcome
		}{{errDown, redrive.Unacknowledged}, {redrive.Park(errDown), redrive.Unacknowledged},
			{redrive.ErrDiscard, redrive.Unsettled}, {nil, redrive.Unsettled}} {
			v.Publish("", "orders", amqp.Publishing{})
			in := v.Consume("orders")
			d := in.Next()
			must(t, in.Channel.Close())
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

func allSucceed(context.Context, []*redrive.Message) map[*redrive.Message]error { return nil }

// Each message of a batch has an outcome of its own, and each is accounted for.
func TestTheOutcomesOfABatch(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		const n = 60
		for i := range n {
			v.Publish("", "orders", amqp.Publishing{MessageId: fmt.Sprint(i),
				Body: []byte([]string{"succeeds", "parks", "fails once", "discards", "panics"}[i%5])})
		}
		var mu sync.Mutex
		var sizes []int
		attempts := map[string]int{}
		c := config(t, v, fast(6))
		c.Concurrency = 2
		c.Batch = redrive.Batch{Size: 20, Wait: 100 * time.Millisecond, Handler: func(
			_ context.Context, batch []*redrive.Message) map[*redrive.Message]error {
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
		c.seen.await(t, redrive.Succeeded, 3*n/5)
		c.seen.await(t, redrive.Parked, n/5)
		c.seen.await(t, redrive.Discarded, n/5)
		must(t, stop())
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
		total := c.seen.count(redrive.Succeeded) + c.seen.count(redrive.Parked) + c.seen.count(redrive.Discarded) +
			c.seen.count(redrive.Retried)
		for _, s := range sizes {
			total -= s
		}
		if total != 0 || c.seen.count(redrive.Unsettled) != 0 {
			t.Errorf("%d outcomes more than messages in batches; %d unsettled", total, c.seen.count(redrive.Unsettled))
		}
	})
}

// A batch that is not full is handled when the consumer stops, and what was prefetched
// goes back.
func TestAPartialBatchIsHandledAtTheEnd(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		c := orders(t, v, fast(3))
		began, full := make(chan struct{}), make(chan struct{})
		c.Batch = redrive.Batch{Size: 2, Wait: time.Hour, Handler: func(
			_ context.Context, batch []*redrive.Message) map[*redrive.Message]error {
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
		c.seen.await(t, redrive.Succeeded, 2)
		brokertest.Eventually(t, "RabbitMQ has delivered the third", func() bool { return v.Depth("orders") == 0 })
		must(t, stop())
		expect.Equal(t, c.seen.count(redrive.Succeeded)+v.Depth("orders"), 3, "messages")
	})
}

// Middleware is called in its order, the first one outermost; what it returns is what
// counts.
func TestMiddleware(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
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
		c := orders(t, v, fast(3))
		c.Middleware = []redrive.Middleware{named("outer"), parks, named("inner")}
		consume(t, c, func(context.Context, *redrive.Message) error { say("handler"); return errDown })
		v.Publish("", "orders", amqp.Publishing{})
		c.seen.await(t, redrive.Parked, 1)
		if want := []string{"outer", "inner", "handler", "end of inner", "end of outer"}; !slices.Equal(order, want) {
			t.Errorf("%q, want %q", order, want)
		}
	})
}

// OnParked is called for each parked message; that it panics ends nothing, and is counted.
func TestOnParked(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		parks, results := make(chan redrive.ParkedMessage, 10), make(chan redrive.HookEvent, 10)
		c := orders(t, v, fast(2))
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
		if m := <-parks; m.Attempt != 2 || m.Queue != "orders" || m.ID == "" || m.MessageID != "m7" ||
			!strings.Contains(m.Reason, "it failed 2 times") || !errors.Is(m.Err, errDown) {
			t.Errorf("%+v", m)
		}
		for _, want := range []redrive.HookResult{redrive.HookPanicked, redrive.HookReturned} {
			if e := <-results; e != (redrive.HookEvent{Queue: "orders", Result: want}) {
				t.Errorf("%+v, want %s", e, want)
			}
		}
		must(t, stop())
		if s := c.said.String(); strings.Count(s, "Config.OnParked panicked") != 1 {
			t.Error(s)
		}
	})
}

// RetryAfter may ask for up to MaxRetryAfter; what is more is cut, and that is logged.
func TestARetryAfterBeyondThePolicyIsLogged(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := orders(t, v, policy.Policy{Attempts: 3, Backoff: policy.Fixed(50 * time.Millisecond),
			MaxRetryAfter: 200 * time.Millisecond})
		const told = "longer delay than the policy allows"
		came := make(chan time.Time, 3)
		stop := consume(t, cfg, func(_ context.Context, m *redrive.Message) error {
			came <- time.Now()
			switch m.Attempt {
			case 1:
				return redrive.RetryAfter(errDown, 150*time.Millisecond)
			case 2:
				if strings.Contains(cfg.said.String(), told) {
					t.Error("a wait that the policy allows was cut")
				}
				return redrive.RetryAfter(errors.New("later"), time.Hour)
			}
			return nil
		})
		v.Publish("", "orders", amqp.Publishing{Body: []byte("7")})
		var last time.Time
		for n, least := range []time.Duration{0, 150 * time.Millisecond, 200 * time.Millisecond} {
			at := brokertest.Receive(t, came, "an attempt")
			if n > 0 && at.Sub(last) < least {
				t.Errorf("attempt %d came after %s, want %s", n+1, at.Sub(last), least)
			}
			last = at
		}
		must(t, stop())
		expect.Contains(t, cfg.said.String(), "it said", told, "asked=1h0m0s")
	})
}

// A consumer with its defaults may take its time over each message, though all together
// take longer than consumer_timeout: none waits unseen. One that takes longer than that
// over one message sees in the log what happened, and what to do.
func TestASlowHandlerAndConsumerTimeout(t *testing.T) {
	brokertest.EachPrivate(t, "consumer_timeout = 10000\n", func(t *testing.T, v *brokertest.VHost,
		n *rabbitnode.Node) {
		// RabbitMQ 3 looks for what has timed out once a minute.
		must(t, errOf(n.Eval(context.Background(), "application:set_env(rabbit, channel_tick_interval, 500).")))
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1)})
		const messages = 60
		for range messages {
			v.Publish("", "orders", amqp.Publishing{})
		}
		cfg := config(t, v, fast(2))
		consume(t, cfg, func(ctx context.Context, m *redrive.Message) error {
			if m.Redelivered {
				cfg.seen.add("redelivered")
			}
			if string(m.Body) != "slow" {
				<-time.After(300 * time.Millisecond)
				return nil
			}
			for ctx.Err() == nil && !strings.Contains(cfg.said.String(), "consumer_timeout") {
				<-time.After(50 * time.Millisecond)
			}
			return nil
		})
		cfg.seen.await(t, redrive.Succeeded, messages)
		expect.Equal(t, cfg.seen.count("redelivered"), 0, "messages were delivered again")
		expect.Equal(t, cfg.seen.connections(), 1, "connections")
		v.Publish("", "orders", amqp.Publishing{Body: []byte("slow")})
		said := func() bool {
			s := cfg.said.String()
			return strings.Contains(s, "consumer_timeout") && strings.Contains(s, "docs/how-to/library.md") &&
				strings.Contains(s, `queue \"orders\"`)
		}
		brokertest.Eventually(t, "the log says that one took too long", func() bool {
			// An idle queue of RabbitMQ 4.3 may miss the timeout: see test/facts.
			v.Publish("", "orders", amqp.Publishing{})
			return said()
		})
		cfg.seen.await(t, consuming(true), 2)
	})
}

// The queue itself delays: it counts, and what keeps failing is parked. An older
// broker, which would ignore the arguments, is refused.
func TestNative(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := config(t, v, policy.Policy{Attempts: 3, Backoff: policy.Linear(100*time.Millisecond,
			100*time.Millisecond, time.Second)})
		cfg.Wait = redrive.Native()
		if !v.Since4() {
			v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
			cfg.Handler = nothing
			expect.ErrSays(t, redrive.Consume(t.Context(), cfg.Config, cfg.Consumer), "RabbitMQ "+v.Version, "4.3")
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
			a := brokertest.Receive(t, came, fmt.Sprint("attempt ", n))
			if a.n != n || n > 1 && a.at.Sub(last.at) < time.Duration(n-1)*100*time.Millisecond {
				t.Errorf("attempt %d is counted as %d, and came after %s", n, a.n, a.at.Sub(last.at))
			}
			last = a
		}
		cfg.seen.await(t, redrive.Parked, 1)
		must(t, stop())
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
			cfg := config(t, v, policy.Policy{Attempts: 3, Backoff: policy.Linear(200*time.Millisecond,
				200*time.Millisecond, time.Second)})
			cfg.Queue, cfg.Wait = queue, redrive.Native()
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
				brokertest.Receive(t, came, "an attempt")
			}
			must(t, stop())
			expect.Equal(t, strings.Contains(cfg.said.String(), "delivered again too soon"), (queue == "not"),
				"queue %q: it was noticed; it said:\n%s", queue, cfg.said.String())
		}
	})
}

// People who keep their own loop settle each delivery.
func TestSettler(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := orders(t, v, fast(2))
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

// An error whose remedy is known has it apart from its text, for a log or a page that shows
// them separately.
func TestAnErrorHasItsRemedyApart(t *testing.T) {
	_, err := redrive.NewClient(t.Context(), redrive.Config{})
	var with interface{ ErrorHint() string }
	if !errors.As(err, &with) || with.ErrorHint() != "give at least one, such as amqp://user:password@host/vhost" {
		t.Errorf("%v has no remedy of its own", err)
	}
	if _, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{""}}); errors.As(err, &with) {
		t.Errorf("%v has a remedy", err)
	}
}

// Zero values and settings that cannot be kept are errors that name the field; nothing
// panics, and nothing connects.
func TestZeroValuesAreErrors(t *testing.T) {
	good := redrive.Consumer{Queue: "q", Policy: fast(2), Wait: redrive.Levels(), Handler: nothing}
	consumer := func(change func(*redrive.Consumer)) error {
		k := good
		change(&k)
		return redrive.Consume(t.Context(), redrive.Config{}, k)
	}
	client := func(c redrive.Config) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return errOf(redrive.NewClient(ctx, c))
	}
	amqpConfig := func(a amqp.Config) error {
		return client(redrive.Config{URLs: []string{"amqp://localhost"}, AMQP: a})
	}
	byTLS := func(at string) error {
		return client(redrive.Config{URLs: []string{at}, AMQP: amqp.Config{TLSClientConfig: &tls.Config{}}})
	}
	prefetches := func(concurrency, prefetch, batch int) error {
		return consumer(func(k *redrive.Consumer) {
			if k.Concurrency, k.Prefetch, k.Batch.Size = concurrency, prefetch, batch; batch > 0 {
				k.Handler, k.Batch.Handler = nil, allSucceed
			}
		})
	}
	forwards := func(queue string) error {
		return consumer(func(k *redrive.Consumer) {
			k.Policy.Queues = []string{"q*"} // which Validate cannot compare
			k.Policy.Exhausted = policy.Exhausted{Action: policy.Forward,
				Destination: policy.Destination{RoutingKey: queue}}
		})
	}
	for _, fits := range [][3]int{{10, 10, 0}, {0, 1, 0}, {65535, 65535, 0}, {2, 100, 50}} {
		expect.ErrSays(t, prefetches(fits[0], fits[1], fits[2]), fmt.Sprint("concurrency, prefetch and batch ", fits),
			"Config.URLs is empty")
	}
	var none *redrive.Client
	for _, c := range []struct {
		want string
		got  error
	}{
		{"Config.AMQP.TLSClientConfig needs every URL", byTLS("amqp://h/")},
		{"Config.AMQP.TLSClientConfig needs every URL", byTLS("amqps://h/?certfile=c&keyfile=k")},
		{"Config.AMQP.TLSClientConfig needs every URL", byTLS("amqps://h1/,amqp://h2/")},
		{"always verified", byTLS("amqps://h/?verify=verify_none")},
		{"expected plain, amqplain or external", byTLS("amqps://h/?auth_mechanism=nobody")},
		{"65535 at most", prefetches(1, 65536, 0)},
		{"65535 at most", prefetches(65536, 0, 0)},
		{"65535 at most", prefetches(256, 0, 256)},
		{"65535 at most", prefetches(65536, 0, 65536)},
		{"some handlers would never get a message", prefetches(10, 9, 0)},
		{"or no full batch", prefetches(2, 99, 50)},
		{"forwards to the queue \"q\" itself", forwards("q")},
		{"which is Redrive's own", forwards("redrive.parked")},
		{"at most 255", consumer(func(k *redrive.Consumer) {
			k.Queue = strings.Repeat("x", 256)
		})},
		{"one of Redrive's own queues", consumer(func(k *redrive.Consumer) { k.Queue = "redrive.intake" })},
		{"lets consumers ask for delays", consumer(func(k *redrive.Consumer) {
			k.Policy.MaxRetryAfter = 2 * time.Hour
		})},
		{"Config.URLs is empty", client(redrive.Config{})},
		{"Config.URLs has an empty string", client(redrive.Config{URLs: []string{""}})},
		{"Config.AMQP.Heartbeat is 1ms", amqpConfig(amqp.Config{Heartbeat: time.Millisecond})},
		{"Config.AMQP.FrameSize is set", amqpConfig(amqp.Config{FrameSize: 4096})},
		{"Config.AMQP.Recovery is set", amqpConfig(amqp.Config{Recovery: &amqp.Recovery{}})},
		{"Config.AMQP.SASL has a nil", amqpConfig(amqp.Config{SASL: []amqp.Authentication{nil}})},
		{"make one with NewClient", none.Consume(t.Context(), good)},
		{"make one with NewClient", (&redrive.Client{}).Consume(t.Context(), good)},
		{"Consumer.Queue is empty", redrive.Consume(t.Context(), redrive.Config{}, redrive.Consumer{})},
		{"Consumer.Wait is not set", consumer(func(k *redrive.Consumer) { k.Wait = redrive.Way{} })},
		{"Consumer.Wait:", consumer(func(k *redrive.Consumer) { k.Wait = redrive.Levels(-1) })},
		{"Consumer.Policy:", consumer(func(k *redrive.Consumer) { k.Policy = policy.Policy{} })},
		{"Consumer.Handler is nil", consumer(func(k *redrive.Consumer) { k.Handler = nil })},
		{"are both set", consumer(func(k *redrive.Consumer) {
			k.Batch = redrive.Batch{Size: 2, Handler: allSucceed}
		})},
		{"Consumer.Batch.Size is 0", consumer(func(k *redrive.Consumer) {
			k.Handler, k.Batch.Handler = nil, allSucceed
		})},
		{"Consumer.Batch.Handler is nil", consumer(func(k *redrive.Consumer) { k.Batch.Size = 2 })},
		{"wrap Batch.Handler yourself", consumer(func(k *redrive.Consumer) {
			k.Handler, k.Batch, k.Middleware = nil, redrive.Batch{Size: 2, Handler: allSucceed},
				make([]redrive.Middleware, 1)
		})},
		{"Consumer.Middleware[0] is nil", consumer(func(k *redrive.Consumer) {
			k.Middleware = make([]redrive.Middleware, 1)
		})},
		{"Consumer.Middleware[0] returned a nil Handler", consumer(func(k *redrive.Consumer) {
			k.Middleware = []redrive.Middleware{func(redrive.Handler) redrive.Handler { return nil }}
		})},
		{"is negative", consumer(func(k *redrive.Consumer) { k.Shutdown = -1 })},
		{"MaxDeliveries is 1: expected 2 to 1000000; leave it out for 10, or set -1 for no limit",
			consumer(func(k *redrive.Consumer) { k.MaxDeliveries = 1 })},
	} {
		if c.got == nil || !strings.Contains(c.got.Error(), c.want) {
			t.Errorf("%v; want %q", c.got, c.want)
		}
	}
	none.Close()
	(&redrive.Client{}).Close()
	if _, err := (&redrive.Settler{}).Settle(t.Context(), &amqp.Delivery{}, nil); err == nil {
		t.Error("a zero Settler settles")
	}
	if (&redrive.Settler{}).Message(nil) != nil {
		t.Error("a zero Settler has a message")
	}
	if _, err := good.Decide(nil, errDown); err == nil {
		t.Error("Decide takes a nil message")
	}
	expect.Equal(t, (redrive.Way{}).Limits().Name, "", "the zero Way has limits of")
	if redrive.Park(nil).Error() == "" || redrive.RetryAfter(nil, 0).Error() == "" ||
		(&redrive.PanicError{}).Error() == "" {
		t.Error("an error without a text")
	}
}

// What a handler returns can be asserted, however it is wrapped.
func TestErrorsCanBeAsserted(t *testing.T) {
	handler := func(err error) error { return fmt.Errorf("order 7: %w", err) }
	var park *redrive.ParkError
	if err := handler(redrive.Park(errDown)); !errors.As(err, &park) || park.Err != errDown ||
		!errors.Is(err, errDown) {
		t.Errorf("Park: %v", err)
	}
	var after *redrive.RetryAfterError
	if err := handler(redrive.RetryAfter(errDown, time.Minute)); !errors.As(err, &after) ||
		after.Delay != time.Minute || !errors.Is(err, errDown) {
		t.Errorf("RetryAfter: %v", err)
	}
	if !errors.Is(handler(redrive.ErrDiscard), redrive.ErrDiscard) {
		t.Error("ErrDiscard")
	}
}

// A program imports redrive and policy together: what has one name in both would be read
// for the other. Park is the same in both: an error of a handler asks for it, and so does
// a policy.
func TestNoNameIsInBothPackages(t *testing.T) {
	names := func(dir string) map[string]bool {
		all := map[string]bool{}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		must(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			must(t, err)
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil {
						all[d.Name.Name] = true
					}
				case *ast.GenDecl:
					for _, s := range d.Specs {
						switch s := s.(type) {
						case *ast.TypeSpec:
							all[s.Name.Name] = true
						case *ast.ValueSpec:
							for _, n := range s.Names {
								all[n.Name] = true
							}
						}
					}
				}
			}
		}
		return all
	}
	of := names("policy")
	for name := range names(".") {
		if ast.IsExported(name) && of[name] && name != "Park" {
			t.Errorf("redrive.%s and policy.%s", name, name)
		}
	}
}

// A consumer works by amqps: with the files that its URL names, and with a TLS config,
// as the user of its client certificate (SASL EXTERNAL).
func TestAConsumerByTLS(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ca, user := v.CA(t), "consumer-"+v.Name
		v.User(user, "s3cret")
		v.Grant(user, ".*", ".*", ".*")
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
		must(t, ca.Issue(authority.Leaf{User: user}, cert, key))
		byFiles, byConfig := config(t, v, fast(3)), config(t, v, fast(3))
		byFiles.URLs[0] = v.SecureURL("", "", url.Values{"auth_mechanism": {"external"}, "certfile": {cert},
			"keyfile": {key}})
		bare, _, _ := strings.Cut(v.SecureURL("", "", nil), "?")
		byConfig.URLs[0] = bare + "?auth_mechanism=external"
		pem, err := os.ReadFile(ca.CAFile())
		must(t, err)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		byConfig.AMQP.TLSClientConfig = &tls.Config{RootCAs: roots,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				pair, err := tls.LoadX509KeyPair(cert, key)
				return &pair, err
			}}
		for _, c := range []setup{byFiles, byConfig} {
			seen := make(chan int, 10)
			stop := consume(t, c, func(_ context.Context, m *redrive.Message) error {
				seen <- m.Attempt
				if m.Attempt < 2 {
					return errors.New("not yet")
				}
				return nil
			})
			v.Publish("", "orders", amqp.Publishing{Body: []byte("1")})
			for want := 1; want <= 2; want++ {
				got := brokertest.Receive(t, seen, "an attempt")
				expect.Equal(t, got, want, "attempt")
			}
			must(t, stop())
		}
	})
}
