package redrive

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// A batch ends when it is full, when its first message has waited, when the consumer stops,
// or with nothing when its messages are RabbitMQ's again.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, ended := make(chan amqp.Delivery), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		got := make(chan []amqp.Delivery)
		gather := func() {
			began = time.Now()
			go func() { got <- collect(ctx, in, ended, 3, time.Second) }()
		}
		deliver := func(n int) {
			for range n {
				in <- amqp.Delivery{}
			}
		}
		expect := func(what string, n int, after time.Duration) {
			t.Helper()
			if b, took := <-got, time.Since(began); len(b) != n || took != after {
				t.Errorf("%s: %d messages after %s, want %d after %s", what, len(b), took, n, after)
			}
		}
		gather()
		deliver(3)
		expect("full", 3, 0)
		gather()
		time.Sleep(time.Hour)
		deliver(1)
		time.Sleep(time.Second / 2)
		deliver(1)
		expect("the first has waited", 2, time.Hour+time.Second)
		gather()
		deliver(2)
		cancel()
		expect("stopped", 2, 0)
		ctx = t.Context()
		gather()
		deliver(2)
		close(ended)
		expect("the connection is lost", 0, 0)
	})
}

// A consumer declares no levels that its policy cannot reach.
func TestAConsumerHasTheLevelsOfItsPolicy(t *testing.T) {
	c := Consumer{Queue: "q", Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(2 * time.Second)},
		Wait: Levels()}
	if err := c.validateSettings(); err != nil || len(c.Wait.Limits().Levels) != 2 ||
		len(Levels().Limits().Levels) != 12 {
		t.Errorf("%v, levels %v", err, c.Wait.Limits().Levels)
	}
}

// The service is asked for the delay in whole milliseconds, and never for less than the handler asked.
func TestTheServiceIsAskedForNoShorterDelay(t *testing.T) {
	a := &acknowledger{way: delay.Report{}, limits: delay.Report{}.Limits()}
	for delay, want := range map[time.Duration]any{
		0: nil, -time.Second: nil, 1: int64(1), time.Millisecond: int64(1), 1500 * time.Microsecond: int64(2),
		time.Minute:   int64(60_000),
		math.MaxInt64: int64(math.MaxInt64/int64(time.Millisecond)) + 1,
	} {
		_, ticket := a.verdict(&Message{}, &failure{retryAfter: &RetryAfterError{Delay: delay}}, "")
		expect.Equal(t, ticket.Headers[wire.HeaderDelay], want,
			"for a delay of %s the service is asked for … ms", delay)
	}
}

// Whatever an error's text has, its header is valid UTF-8 of bounded length.
func TestAnErrorsHeaderIsBounded(t *testing.T) {
	for _, text := range []string{"", "no stock", strings.Repeat("\xffa", 3000), strings.Repeat("\xff", 3000),
		strings.Repeat("é", 3000), "a" + strings.Repeat("é", 3000)} {
		got := (&failure{text: text}).header()
		if len(got) > maxErrorText || !utf8.ValidString(got) || text != "" && got == "" {
			t.Errorf("%.10q…: %d bytes, valid: %t", text, len(got), utf8.ValidString(got))
		}
	}
	expect.Equal(t, (&failure{text: "no stock"}).header(), "no stock", "the header")
}

// A hook that hangs holds up only itself: calls beyond a bound are dropped, and
// Close is over within its grace.
func TestAHookThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var returned, dropped atomic.Int32
		c := &Client{config: Config{
			Log:      slog.New(slog.NewTextHandler(io.Discard, nil)),
			OnParked: func(ctx context.Context, _ ParkedMessage) { <-ctx.Done() },
			Metrics: Metrics{Hook: func(e HookEvent) {
				if e.Result == HookDropped {
					dropped.Add(1)
				} else {
					returned.Add(1)
				}
			}},
		}}
		h := newHook(c)
		h.add(ParkedMessage{})
		synctest.Wait() // it hangs in the call
		for range hookBuffer + 7 {
			h.add(ParkedMessage{})
		}
		expect.Equal(t, dropped.Load(), 7, "calls are dropped")
		began := time.Now()
		h.close()
		expect.Equal(t, time.Since(began), hookGrace, "it closed after")
		if r, d := returned.Load(), dropped.Load(); r != 1 || d != hookBuffer+7 {
			t.Errorf("%d calls returned and %d were dropped", r, d)
		}
	})
}

// acked notes acknowledgements.
type acked struct {
	tags []uint64
	told func()
}

func (a *acked) Ack(tag uint64, _ bool) error {
	a.told()
	a.tags = append(a.tags, tag)
	return nil
}

func (a *acked) Nack(uint64, bool, bool) error { return nil }

func (a *acked) Reject(uint64, bool) error { return nil }

// A message of a batch that may have ended the process is handled alone, and RabbitMQ has its
// acknowledgement before the next one is handled, by whichever worker: if that is the one that ends
// the process, only it is delivered again.
func TestASuspectOfABatchIsAcknowledgedBeforeTheNext(t *testing.T) {
	told := &acked{}
	var got []uint64      // what RabbitMQ has received of that
	var before [][]uint64 // what it had when each call began
	handler := func(_ context.Context, batch []*Message) map[*Message]error {
		before = append(before, slices.Clone(got))
		return nil
	}
	r := &run{client: &Client{}, handleCtx: t.Context(), deliveries: deliveries{max: defaultMaxDeliveries},
		acknowledger: &acknowledger{consumer: Consumer{Queue: "q", Batch: Batch{Size: 3, Handler: handler}}}}
	free := 0 // messages that were acknowledged while others may be handled
	told.told = func() {
		if r.deliveries.alone.TryRLock() {
			r.deliveries.alone.RUnlock()
			free++
		}
	}
	var in []amqp.Delivery
	var all []attempt
	for tag := range uint64(3) {
		in = append(in, amqp.Delivery{Acknowledger: told, DeliveryTag: tag + 1})
		all = append(all, attempt{m: &Message{}, suspect: tag < 2})
	}
	received := func() { got = slices.Clone(told.tags) }
	sub := subscription{Subscription: broker.Subscription{AwaitAcks: received}, unsettled: new(atomic.Int64)}
	r.attemptBatch(sub, in, all)
	expect.Equal(t, fmt.Sprint(before), "[[] [1] [1 2]]", "received before each call are")
	expect.Equal(t, fmt.Sprint(told.tags), "[1 2 3]", "acknowledged are")
	expect.Equal(t, free, 1, "are acknowledged while others may be handled, of one that is no suspect")
}

// firstYields lets other workers go on when the first message was received, before it is judged.
type firstYields struct {
	context.Context
	asked atomic.Int32
}

func (c *firstYields) Err() error {
	if c.asked.Add(1) == 1 {
		for range 100 {
			runtime.Gosched()
		}
	}
	return c.Context.Err()
}

// Of several messages that reach the limit together the one that RabbitMQ delivers first is parked,
// whichever worker is the quickest: those before it were acknowledged, and those after it were only
// prefetched beside it.
func TestTheFirstMessageAtTheLimitIsParked(t *testing.T) {
	const workers, rounds = 8, 100
	atLimit := amqp.Table{"x-delivery-count": int64(defaultMaxDeliveries)}
	for range rounds {
		in := make(chan amqp.Delivery, workers)
		for tag := range uint64(workers) {
			in <- amqp.Delivery{DeliveryTag: tag + 1, Redelivered: true, Headers: atLimit}
		}
		r := &run{consumeCtx: &firstYields{Context: t.Context()}, acknowledger: &acknowledger{},
			deliveries: deliveries{max: defaultMaxDeliveries}}
		sub := subscription{Subscription: broker.Subscription{In: in}, receiving: make(chan struct{}, 1)}
		var received sync.WaitGroup
		var parked atomic.Uint64 // the sum of their tags
		for range workers {
			received.Go(func() {
				d, a, ok := r.receive(sub)
				if !ok || a.unhandled == a.suspect {
					t.Errorf("message %d: received %t, %+v", d.DeliveryTag, ok, a)
				}
				if a.unhandled {
					parked.Add(d.DeliveryTag)
				}
			})
		}
		received.Wait()
		if tag := parked.Load(); tag != 1 {
			t.Fatalf("message %d is parked, and not the first", tag)
		}
	}
}
