package broker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/model"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// handler passes each batch to the test, and the test's answer to the consumer.
type handler struct {
	connected chan struct{}
	batches   chan []wire.Delivery
	answers   chan error
}

func (h *handler) Connected(context.Context) error {
	h.connected <- struct{}{}
	return nil
}

func (h *handler) Disconnected() {}

func (h *handler) Handle(_ context.Context, batch []wire.Delivery) error {
	h.batches <- append([]wire.Delivery(nil), batch...)
	return <-h.answers
}

type testConsumer struct {
	*handler
	stopped chan error
	stop    func() // ends Run and waits for it
	log     brokertest.Output
}

func startConsumer(t *testing.T, url string) *testConsumer {
	t.Helper()
	c := &testConsumer{handler: &handler{make(chan struct{}, 100), make(chan []wire.Delivery), make(chan error)}, stopped: make(chan error, 1000)}
	consumer := broker.NewIntakeConsumer(broker.Config{URL: url, Name: "redrive intake", Log: slog.New(slog.NewTextHandler(&c.log, nil))}, 1000, func(err error) { c.stopped <- err }, func(int) {})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := consumer.Run(ctx, c); err != nil {
			t.Error(err)
		}
	})
	c.stop = sync.OnceFunc(func() {
		cancel()
		done := make(chan struct{})
		go func() { run.Wait(); close(done) }()
		for { // a batch that is offered at the end gets an answer too
			select {
			case <-c.batches:
				c.answers <- errors.New("the test is over")
			case <-done:
				return
			}
		}
	})
	t.Cleanup(c.stop)
	<-c.connected
	return c
}

// fail publishes numbered failures as a client reports them.
func fail(t *testing.T, v *brokertest.VHost, from, to int) {
	t.Helper()
	ch := v.Channel()
	must(t, ch.Confirm(false))
	for n := from; n < to; n++ {
		c, err := ch.PublishWithDeferredConfirm(wire.ExchangeFailures, "work.q", true, false, amqp.Publishing{Body: fmt.Append(nil, n), DeliveryMode: amqp.Persistent})
		must(t, err)
		if !c.Wait() {
			t.Fatal("nacked")
		}
	}
}

// in takes batches until all of from..to came, in order.
func (c *testConsumer) in(t *testing.T, from, to int) (redelivered bool) {
	t.Helper()
	for n := from; n < to; {
		for _, d := range <-c.batches {
			if string(d.Message.Body) != fmt.Sprint(n) || d.Message.Exchange != wire.ExchangeFailures || d.Message.RoutingKey != "work.q" {
				t.Errorf("%q came from %q by %q, want %d", d.Message.Body, d.Message.Exchange, d.Message.RoutingKey, n)
			}
			redelivered = redelivered || d.Redelivered
			n++
		}
		c.answers <- nil
	}
	return redelivered
}

func TestOnlyStoredMessagesAreAcknowledged(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		c := startConsumer(t, v.URL())
		fail(t, v, 0, 200)
		if c.in(t, 0, 200) {
			t.Error("something was delivered twice")
		}
		c.stop()
		// The count may lag; a lost acknowledgement would stay.
		brokertest.Eventually(t, "the intake is empty", func() bool { return v.Depth(wire.QueueIntake) == 0 })
	})
}

// Messages that cannot be stored stay in RabbitMQ, and are passed again until they can.
func TestABatchThatCannotBeStoredIsOfferedAgain(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		c := startConsumer(t, v.URL())
		fail(t, v, 0, 1)
		full := errors.New("the disk is full")
		for range 2 {
			if b := <-c.batches; len(b) != 1 || b[0].Redelivered {
				t.Errorf("%+v", b)
			}
			c.answers <- full
			expect.Err(t, <-c.stopped, full, "stopped")
		}
		c.in(t, 0, 1)
		expect.Err(t, <-c.stopped, nil, "still stopped")
		fail(t, v, 1, 2)
		<-c.batches
		c.answers <- full // and now the service ends: it must not be acknowledged
		<-c.stopped
		c.stop()
		brokertest.Eventually(t, "the message is RabbitMQ's again", func() bool { return v.Depth(wire.QueueIntake) == 1 })
	})
}

// After a cut in the middle of a batch RabbitMQ redelivers all of it, marked as redelivered.
func TestACutConnectionDeliversTheBatchAgain(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		proxy := brokertest.NewProxy(t, v)
		c := startConsumer(t, proxy.URL)
		fail(t, v, 0, 1)
		<-c.batches
		fail(t, v, 1, 20)
		proxy.Cut()
		brokertest.Eventually(t, "RabbitMQ has all back", func() bool { return v.Depth(wire.QueueIntake) == 20 })
		c.answers <- nil // too late to acknowledge
		<-c.connected
		if !c.in(t, 0, 20) {
			t.Error("nothing is marked as delivered again")
		}
	})
}

// While the store is away for longer than consumer_timeout, RabbitMQ redelivers what the intake holds.
// The intake drops its copies, so none is stored twice; if one was stored already, the log says so.
func TestWhatConsumerTimeoutTakesBackIsStoredOnce(t *testing.T) {
	brokertest.EachPrivate(t, "consumer_timeout = 3000\n", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		_, err := n.Eval(context.Background(), "application:set_env(rabbit, channel_tick_interval, 500).") // or once a minute
		must(t, err)
		c := startConsumer(t, v.URL())
		to := 0
		more := func() { // also for an idle queue of RabbitMQ 4.3, which may miss the timeout: see test/facts
			fail(t, v, to, to+1)
			to++
		}
		more()
		brokertest.Eventually(t, "RabbitMQ has taken back what cannot be stored", func() bool {
			select {
			case <-c.connected:
				return true
			case <-c.batches:
				c.answers <- errors.New("the store is away")
			default:
				more()
			}
			return false
		})
		c.in(t, 0, to)
		if said := c.log.String(); strings.Contains(said, "retried twice") {
			t.Errorf("the log says:\n%s", said)
		}

		from := to
		more()
		<-c.batches
		brokertest.Eventually(t, "RabbitMQ has taken back what is being stored", func() bool {
			more()
			return v.Depth(wire.QueueIntake) == to-from
		})
		c.answers <- nil // the store has it
		<-c.connected
		c.in(t, from, to)
		if said := c.log.String(); !strings.Contains(said, "1 messages were stored too late to acknowledge them") || !strings.Contains(said, map[bool]string{true: "consumer_timeout", false: "timed out"}[v.Since4()]) {
			t.Errorf("the log says:\n%s", said)
		}
	})
}

// The end of a connection counts as a failed delivery, with the first window of one message.
func TestConnectionsThatEndDoNotUseUpTheDeliveryLimit(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		proxy := brokertest.NewProxy(t, v)
		c := startConsumer(t, proxy.URL)
		const messages, cuts = 100, 10
		first := make(chan struct{})
		go func() {
			defer close(first)
			for range cuts {
				<-c.batches
				proxy.Cut()
				c.answers <- errors.New("too late")
			}
		}()
		fail(t, v, 0, messages)
		<-first
		deliveryCounts := map[string]int64{}
		for len(deliveryCounts) < messages {
			for _, d := range <-c.batches {
				deliveryCounts[string(d.Message.Body)], _ = d.Message.Headers["x-delivery-count"].(int64)
			}
			c.answers <- nil
		}
		for body, n := range deliveryCounts {
			if body != "0" && n > 0 || body == "0" && (n == 0 || n > cuts) {
				t.Errorf("message %s has the delivery count %d", body, n)
			}
		}
	})
}

// failsFrom stores so many batches, and then fails.
type failsFrom struct {
	batches, from int
}

func (*failsFrom) Connected(context.Context) error { return nil }
func (*failsFrom) Disconnected()                   {}

func (h *failsFrom) Handle(context.Context, []wire.Delivery) error {
	time.Sleep(time.Second) // and more arrive
	if h.batches == h.from {
		return errors.New("the store fails")
	}
	h.batches++
	return nil
}

// intakeOfModel runs an intake on a model of RabbitMQ until the test ends. publish publishes to it.
func intakeOfModel(t *testing.T, version string, h broker.Handler) (b *model.Broker, publish func(body []byte)) {
	b = model.New(model.Options{Version: version})
	t.Cleanup(b.Close)
	config := broker.Config{URL: "amqp://guest:guest@model/%2F", Log: slog.New(slog.DiscardHandler),
		AMQP: amqp.Config{Dial: b.Dial}}
	ctx, stop := context.WithCancel(context.Background())
	var run sync.WaitGroup
	t.Cleanup(run.Wait)
	t.Cleanup(stop)
	run.Go(func() {
		_ = broker.NewIntakeConsumer(config, 1000, func(error) {}, func(int) {}).Run(ctx, h)
	})
	time.Sleep(5 * time.Second)
	conn, err := amqp.DialConfig(config.URL, config.AMQP)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	must(t, err)
	return b, func(body []byte) {
		must(t, ch.PublishWithContext(ctx, "", wire.QueueIntake, false, false,
			amqp.Publishing{Body: body, DeliveryMode: amqp.Persistent}))
	}
}

// Otherwise, after a crash or a stop, RabbitMQ would redeliver messages stored long before.
func TestWhatIsStoredIsAcknowledgedWhileTheNextBatchCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &failsFrom{from: 2}
		b, publish := intakeOfModel(t, "4.3.6", h)
		// The first fills the first window; no two of the others fit one batch.
		for range 5 {
			publish(make([]byte, 5<<20))
		}
		time.Sleep(time.Minute)
		if q, _ := b.Queue(wire.QueueIntake); h.batches != 2 || q.Messages != 3 {
			t.Errorf("%d batches are stored, and RabbitMQ has %d messages, want 3: those that are not stored", h.batches, q.Messages)
		}
	})
}

// counter stores what it is given.
type counter struct{ messages atomic.Int32 }

func (*counter) Connected(context.Context) error { return nil }

func (*counter) Disconnected() {}

func (h *counter) Handle(_ context.Context, batch []wire.Delivery) error {
	h.messages.Add(int32(len(batch)))
	return nil
}

// A busy RabbitMQ 3.10 does not always cancel a deleted queue's consumer. The queue is declared again, and its messages
// must not wait for ever.
func TestADeletedQueueIsConsumedAgainWithoutAWordOfRabbitMQs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		b, publish := intakeOfModel(t, "3.10.8", h)
		for n := range 3 {
			publish([]byte("x"))
			time.Sleep(time.Minute)
			expect.Equal(t, h.messages.Load(), int32(n+1), "are stored a minute later")
			b.DeleteQuietly(wire.QueueIntake)
			time.Sleep(10 * time.Second) // it is declared again
		}
	})
}
