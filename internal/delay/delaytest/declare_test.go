package delaytest

import (
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/plugin"
	"github.com/redrive-mq/redrive/internal/delay/report"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// Whoever may not declare finds out what is missing, and nothing is made.
func TestVerify(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		ctx := t.Context()
		b.v.Queue("orders", b.queue)
		topology := b.way.Topology("orders")
		for range 2 {
			if err := b.p.Verify(ctx, topology); !errors.Is(err, wire.ErrUnroutable) {
				t.Errorf("with nothing there: %v", err)
			}
		}
		b.declare("orders")
		b.declare("orders") // twice is as good as once
		if err := b.p.Verify(ctx, topology); err != nil {
			t.Errorf("with everything there: %v", err)
		}
		for _, q := range topology.Queues[:min(2, len(topology.Queues))] {
			b.v.DeleteQueue(q.Name)
			if err := b.p.Verify(ctx, topology); !errors.Is(err, wire.ErrQueueGone) {
				t.Errorf("without the queue %s: %v", q.Name, err)
			}
			b.declare("orders")
		}
		if err := b.p.Declare(ctx, b.way.Topology("missing")); b.name != "Native" && !errors.Is(err, wire.ErrQueueGone) {
			t.Errorf("for a work queue that does not exist: %v", err)
		}
	})
}

// What exists with other settings is reported, one by one.
func TestADelayQueueWithOtherArgumentsIsReported(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		b.v.Queue("orders", b.queue)
		topology := b.way.Topology("orders")
		ticket, err := b.way.Ticket("orders", b.delays[0])
		if err != nil {
			t.Fatal(err)
		}
		if ticket.DeclareFirst != nil {
			topology = topology.With(*ticket.DeclareFirst)
		}
		ch := b.v.Channel()
		differs := func(what string) {
			t.Helper()
			if err := b.p.Declare(t.Context(), topology); !errors.Is(err, wire.ErrDiffers) {
				t.Errorf("%s exists with other settings: %v", what, err)
			}
		}
		for _, q := range topology.Queues {
			if _, err := ch.QueueDeclare(q.Name, true, false, false, false, amqp.Table{"x-queue-type": q.Args["x-queue-type"], "x-max-length": int32(5)}); err != nil {
				t.Fatal(err)
			}
			differs("queue " + q.Name)
			if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range topology.Exchanges {
			if err := ch.ExchangeDelete(e.Name, false, false); err != nil {
				t.Fatal(err)
			}
			if err := ch.ExchangeDeclare(e.Name, amqp.ExchangeHeaders, true, false, false, false, nil); err != nil {
				t.Fatal(err)
			}
			differs("exchange " + e.Name)
			if err := ch.ExchangeDelete(e.Name, false, false); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.p.Declare(t.Context(), topology); err != nil {
			t.Error(err)
		}
	})
}

// Where the plugin is missing, the error says so; and the publisher is as
// good as before.
func TestAMissingPluginIsReported(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		p := publisher(t, v.URL())
		v.Queue("orders", quorum)
		if thePlugin(t, v) == "" {
			t.Skip("not run: the broker has the plugin")
		}
		for range 2 {
			if err := p.Declare(t.Context(), plugin.Way{}.Topology("orders")); !errors.Is(err, wire.ErrNoType) {
				t.Errorf("declaring it: %v", err)
			}
		}
		brokertest.Eventually(t, "the publisher works", func() bool { return p.Declare(t.Context(), delay.Due("orders")) == nil })
	})
}

// Why the delayed exchange is published to without mandatory, and has no
// alternate exchange. It fails when the plugin has learnt better.
func TestThePluginKnowsNoMandatory(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		if lacks := thePlugin(t, v); lacks != "" {
			t.Skip("not run: " + lacks)
		}
		b := newSuite(t, v, suiteWay{way: plugin.Way{}, queue: quorum})
		c := b.work("orders")
		ticket, err := b.way.Ticket("orders", 300*ms)
		if err != nil {
			t.Fatal(err)
		}
		ticket.Unchecked = false
		if err := b.hold(ticket, "orders", wire.Message{Body: []byte("a")}); !errors.Is(err, wire.ErrUnroutable) {
			t.Errorf("as mandatory: %v", err)
		}
		c.Take("a")

		b.v.Queue("copies", amqp.Table{"x-queue-type": "classic"})
		b.v.Exchange("copies", amqp.ExchangeDirect, "copies")
		if err := v.Channel().ExchangeDeclare("with an alternate", "x-delayed-message", true, false, false, false,
			amqp.Table{"x-delayed-type": "fanout", "alternate-exchange": "copies"}); err != nil {
			t.Fatal(err)
		}
		v.Publish("with an alternate", "copies", amqp.Publishing{Headers: amqp.Table{"x-delay": int32(time.Hour / ms)}, Body: []byte("at once")})
		v.Consume("copies").Take("at once")
	})
}

// The service retries what is reported to it, and without it nothing is lost.
func TestAReportWaitsInTheService(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		b := newSuite(t, v, suiteWay{name: "Service", way: report.Way{}})
		ticket, err := b.way.Ticket("orders", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		b.declare("orders")
		if err := b.hold(ticket, "orders", wire.Message{}); !errors.Is(err, wire.ErrUnroutable) {
			t.Errorf("before the service has ever run: %v", err)
		}
		v.Queue(wire.QueueIntake, quorum) // as the service makes it
		v.Exchange(wire.ExchangeFailures, amqp.ExchangeTopic)
		if err := v.Channel().QueueBind(wire.QueueIntake, "#", wire.ExchangeFailures, false, nil); err != nil {
			t.Fatal(err)
		}
		if err := b.hold(ticket, "orders.created", wire.Message{Headers: everyHeader(), Body: []byte("a")}); err != nil {
			t.Fatal(err)
		}
		d := v.Consume(wire.QueueIntake).Take("a")
		if d.RoutingKey != "orders" || d.Headers[wire.HeaderError] != "no reason but a test" {
			t.Errorf("it came with routing key %q and headers %v", d.RoutingKey, d.Headers)
		}
		ran("Service", v.Version, "ok, as far as redrive.intake: the service brings messages back, and has its own tests")
	})
}
