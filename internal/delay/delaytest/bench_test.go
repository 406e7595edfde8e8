package delaytest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// suite is one way in one virtual host.
type suite struct {
	suiteWay
	t *testing.T
	v *brokertest.VHost
	p *broker.Publisher
}

func newSuite(t *testing.T, v *brokertest.VHost, l suiteWay) *suite {
	t.Helper()
	return &suite{suiteWay: l, t: t, v: v, p: publisher(t, v.URL())}
}

// publisher runs one until the test ends.
func publisher(t *testing.T, url string) *broker.Publisher {
	t.Helper()
	p := broker.NewPublisher(broker.Config{URL: url, Name: "redrive delaytest", Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); run.Wait() })
	return p
}

// work declares a work queue, and what it needs so that its messages can wait.
func (b *suite) work(queue string) *brokertest.Consumer {
	b.t.Helper()
	b.v.Queue(queue, b.queue)
	b.declare(queue)
	return b.v.Consume(queue)
}

func (b *suite) declare(queue string) {
	b.t.Helper()
	if err := b.p.Declare(b.t.Context(), b.way.Topology(queue)); err != nil {
		b.t.Fatal(err)
	}
}

// delayedMessage is a message that waits.
type delayedMessage struct {
	since time.Time // before it was passed
	asked time.Duration
	delay.Ticket
}

// fail does with a delivery what the library does: it is marked and published to
// where it waits, and acknowledged after the confirm; or rejected, when its own
// queue delays it.
func (b *suite) fail(d amqp.Delivery, queue string, wait time.Duration) delayedMessage {
	b.t.Helper()
	h := delayedMessage{since: time.Now(), asked: wait}
	var err error
	if h.Ticket, err = b.way.Ticket(queue, wait); err != nil {
		b.t.Fatal(err)
	}
	if h.Requeue {
		if err := d.Reject(true); err != nil {
			b.t.Fatal(err)
		}
		return h
	}
	m := broker.Received(&d)
	if err := b.hold(h.Ticket, queue, m); err != nil {
		b.t.Fatalf("handing over to exchange %q: %v", h.Exchange, err)
	}
	if err := d.Ack(false); err != nil {
		b.t.Fatal(err)
	}
	return h
}

// hold makes a message wait.
func (b *suite) hold(ticket delay.Ticket, queue string, m wire.Message) error {
	if ticket.DeclareFirst != nil {
		if err := b.p.Declare(b.t.Context(), *ticket.DeclareFirst); err != nil {
			return err
		}
	}
	return b.send(ticket, queue, m)
}

// waitMany makes many messages wait, without a pause between them, and returns when
// each was published; their bodies are the queue and a number.
func (b *suite) waitMany(queue string, wait time.Duration, many int) map[string]time.Time {
	b.t.Helper()
	ticket, err := b.way.Ticket(queue, wait)
	if err == nil && ticket.DeclareFirst != nil {
		err = b.p.Declare(b.t.Context(), *ticket.DeclareFirst)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	sent := make(map[string]time.Time, many)
	answers := make([]func(context.Context) []error, 0, many)
	for i := range many {
		body := fmt.Sprint(queue, " ", i)
		out := outgoing(ticket, queue, wire.Message{Body: []byte(body)})
		sent[body] = time.Now()
		answers = append(answers, b.p.Send(b.t.Context(), []wire.Outgoing{out}))
	}
	for _, answer := range answers {
		if err := answer(b.t.Context())[0]; err != nil {
			b.t.Fatal(err)
		}
	}
	return sent
}

// send publishes it to where it waits.
func (b *suite) send(ticket delay.Ticket, queue string, m wire.Message) error {
	return b.p.Send(b.t.Context(), []wire.Outgoing{outgoing(ticket, queue, m)})(b.t.Context())[0]
}

func outgoing(ticket delay.Ticket, queue string, m wire.Message) wire.Outgoing {
	tr := headers.History{ID: uuid.NewString(), Failures: 1, Queue: queue, FirstFailed: time.Now(), Reason: wire.ReasonReported, Error: "no reason but a test"}
	return ticket.Outgoing(tr.ID, tr.ApplyTo(m))
}

// back waits for a message to come back, which must not be early.
func (b *suite) back(c *brokertest.Consumer, body string, h delayedMessage) amqp.Delivery {
	b.t.Helper()
	d := c.Next()
	took := time.Since(h.since)
	if string(d.Body) != body {
		b.t.Fatalf("%q came back, want %q", d.Body, body)
	}
	if took < h.asked {
		b.t.Errorf("%q was asked to wait %s and came back after %s", body, h.asked, took)
	}
	if h.Delay < h.asked {
		b.t.Errorf("%q was asked to wait %s, and its ticket says %s", body, h.asked, h.Delay)
	}
	return d
}
