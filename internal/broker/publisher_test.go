package broker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// publisher runs one until the test ends.
func publisher(t *testing.T, url string) *broker.Publisher {
	t.Helper()
	p := broker.NewPublisher(broker.Config{URL: url, Name: "redrive retries", Log: slog.New(slog.DiscardHandler)})
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

func message(exchange, key, body string, headers amqp.Table) wire.Outgoing {
	id := uuid.NewString()
	h := amqp.Table{wire.HeaderID: id}
	for k, v := range headers {
		h[k] = v
	}
	return wire.Outgoing{Exchange: exchange, RoutingKey: key, ID: id, Message: &wire.Message{Headers: h, Body: []byte(body)}}
}

// One batch with every kind of message: each gets its own answer, whatever
// becomes of its neighbours, and the good ones arrive once and stay safe.
func TestEachMessageOfABatchHasItsOwnResult(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("q", amqp.Table{"x-queue-type": "classic"})
		v.Queue("full", amqp.Table{"x-queue-type": "classic", "x-max-length": int32(1), "x-overflow": "reject-publish"})
		if err := v.Channel().Publish("", "full", false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
		brokertest.Eventually(t, "the queue is full", func() bool { return v.Depth("full") == 1 })
		if err := v.Channel().ExchangeDeclare("internal", "fanout", true, false, true, false, nil); err != nil {
			t.Fatal(err)
		}
		twin := message("", "q", "twin", nil)
		lost := message("", "nowhere", "twin", nil)
		lost.ID, lost.Message.Headers[wire.HeaderID] = twin.ID, twin.ID
		stolen := message("", "q", "", nil)
		stolen.Message.UserID = "somebody-else"
		batch := []struct {
			name string
			out  wire.Outgoing
			want error
		}{
			{"good", message("", "q", "1", nil), nil},
			{"unroutable", message("", "nowhere", "", nil), wire.ErrUnroutable},
			{"full queue", message("", "full", "", nil), wire.ErrNacked},
			{"no exchange", message("none", "q", "", nil), wire.ErrUnroutable},
			{"good between", message("", "q", "2", nil), nil},
			{"internal exchange", message("internal", "", "", nil), wire.ErrForbidden},
			{"no exchange either", message("none", "q", "", nil), wire.ErrUnroutable},
			{"somebody else's user-id", stolen, wire.ErrUnacceptable},
			{"a CC that is no list", message("", "q", "", amqp.Table{"CC": "q"}), wire.ErrUnacceptable},
			{"headers over a frame", message("", "q", "", amqp.Table{"h": strings.Repeat("x", 140_000)}), wire.ErrUnacceptable},
			{"a header of a kind of Go's own", message("", "q", "", amqp.Table{"h": struct{}{}}), wire.ErrUnacceptable},
			{"unroutable with an id that arrives too", lost, wire.ErrUnroutable},
			{"good at last", message("", "q", "3", nil), nil},
		}
		p := publisher(t, v.URL())
		ctx := context.Background()
		arrived := map[string]bool{}
		out := make([]wire.Outgoing, len(batch))
		for i := range batch {
			out[i] = batch[i].out
		}
		errs := p.Send(ctx, out)(ctx)
		for i, b := range batch {
			err := errs[i]
			for errors.Is(err, wire.ErrNoAnswer) { // its channel ended as it was written: the caller sends again
				err = p.Send(ctx, out[i:i+1])(ctx)[0]
			}
			if !errors.Is(err, b.want) {
				t.Errorf("%s: %v, want %v", b.name, err, b.want)
			}
		}
		if err := p.Send(ctx, []wire.Outgoing{twin})(ctx)[0]; err != nil {
			t.Errorf("the twin of an unroutable message: %v", err)
		}
		ch := v.Channel()
		for {
			d, ok, err := ch.Get("q", true)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if d.DeliveryMode != amqp.Persistent {
				t.Errorf("%q is not persistent", d.Body)
			}
			arrived[string(d.Body)] = true
		}
		if len(arrived) != 4 || !arrived["1"] || !arrived["2"] || !arrived["3"] || !arrived["twin"] {
			t.Errorf("%v arrived", arrived)
		}
		if n := v.Depth("full"); n != 1 {
			t.Errorf("the full queue has %d", n)
		}
	})
}

// A message that came back as unroutable is sent again once its queue is there, on the same
// channel, and that answer is its own.
func TestAReturnedMessageIsConfirmedOnceItIsRoutable(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		p, ctx := publisher(t, v.URL()), context.Background()
		out := []wire.Outgoing{message("", "later", "x", nil)}
		if err := p.Send(ctx, out)(ctx)[0]; !errors.Is(err, wire.ErrUnroutable) {
			t.Fatal(err)
		}
		v.Queue("later", nil)
		if err := p.Send(ctx, out)(ctx)[0]; err != nil {
			t.Errorf("its queue is there: %v", err)
		}
	})
}

// A body over the limit ends the channel; only that message is blamed.
func TestOnlyTheMessageOverTheSizeLimitIsRefused(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		if !v.Since4() {
			t.Skip("RabbitMQ 3 takes up to 128 MiB")
		}
		v.Queue("q", amqp.Table{"x-queue-type": "classic"})
		p, ctx := publisher(t, v.URL()), context.Background()
		huge := message("", "q", "", nil)
		huge.Message.Body = bytes.Repeat([]byte("x"), 16<<20+1)
		for range 2 { // the second time too: it must not end what comes after
			errs := p.Send(ctx, []wire.Outgoing{message("", "q", "a", nil), huge, message("", "q", "b", nil)})(ctx)
			if errs[0] != nil || !errors.Is(errs[1], wire.ErrUnacceptable) || errs[2] != nil {
				t.Errorf("%v", errs)
			}
		}
		if n := v.Depth("q"); n != 4 {
			t.Errorf("%d arrived", n)
		}
	})
}

// Without a broker nothing hangs, and no password is shown.
func TestWithoutABrokerNothingHangs(t *testing.T) {
	var said broker.State
	heard := make(chan struct{})
	var once sync.Once
	p := broker.NewPublisher(broker.Config{URL: "amqp://u:hunter2@127.0.0.1:1/", Log: slog.New(slog.DiscardHandler), Observe: func(s broker.State) {
		once.Do(func() { said = s; close(heard) })
	}})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { _ = p.Run(ctx) })
	<-heard
	cancel()
	run.Wait()
	if said.Connected || said.Err == nil || strings.Contains(said.Err.Error(), "hunter2") {
		t.Errorf("%+v", said)
	}
	if err := p.Send(ctx, []wire.Outgoing{message("", "q", "", nil)})(ctx)[0]; !errors.Is(err, wire.ErrNoAnswer) {
		t.Error(err)
	}
}
