package broker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// alarm raises a memory alarm of a node; over ends it.
func alarm(t *testing.T, n *rabbitnode.Node) (over func()) {
	t.Helper()
	watermark := func(to string) {
		if _, err := n.Eval(context.Background(), "vm_memory_monitor:set_vm_memory_high_watermark("+to+")."); err != nil {
			t.Error(err)
		}
	}
	watermark("0.00001")
	return func() { watermark("{absolute, 4000000000}") }
}

func TestNothingIsPublishedIntoABlockedConnection(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		v.Queue("q", amqp.Table{"x-queue-type": "classic"})
		v.Queue("stops", amqp.Table{"x-queue-type": "classic"})
		// A connection that is blocked publishes nothing, outlasts the alarm, and goes on
		// with what waited.
		t.Run("nothing is published into a blocked connection", func(t *testing.T) { blockedConnection(t, v, n) })
		// A stop does not wait for answers that cannot come.
		t.Run("a stop ends", func(t *testing.T) { stopDuringAlarm(t, v, n) })
	})
}

func blockedConnection(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	var mu sync.Mutex
	connections := 0
	blocked := make(chan struct{}, 100)
	p := broker.NewPublisher(broker.Config{URL: v.URL(), Name: "redrive retries", Log: slog.New(slog.DiscardHandler), Observe: func(s broker.State) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case s.Blocked != "":
			blocked <- struct{}{}
		case !s.Connected:
			connections++
		}
	}})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { _ = p.Run(ctx) })
	defer run.Wait()
	defer cancel()
	if err := p.Send(ctx, []wire.Outgoing{message("", "q", "before", nil)})(ctx)[0]; err != nil {
		t.Fatal(err)
	}
	over := alarm(t, n)
	// RabbitMQ says that it blocks a connection when something is published there:
	// here a message that is larger than what TCP and the gathered writes hold.
	large := message("", "q", strings.Repeat("x", 12<<20), nil)
	answered := make(chan error, 1)
	go func() { answered <- p.Send(ctx, []wire.Outgoing{large})(ctx)[0] }()
	<-blocked
	short, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	batch := []wire.Outgoing{message("", "q", "during", nil), message("", "q", "during", nil)}
	for _, err := range p.Send(short, batch)(short) {
		if !errors.Is(err, wire.ErrNoAnswer) {
			t.Errorf("during the alarm: %v", err)
		}
	}
	waits := make(chan error, 1)
	go func() { waits <- p.Send(ctx, []wire.Outgoing{message("", "q", "after", nil)})(ctx)[0] }()
	// Longer than the client lives without heartbeats.
	<-time.After(20 * time.Second)
	over()
	if err := errors.Join(<-answered, <-waits); err != nil {
		t.Error(err)
	}
	got := map[string]int{}
	brokertest.Eventually(t, "all have arrived", func() bool { return v.Depth("q") >= 3 })
	arrived, in := v.Depth("q"), v.Consume("q")
	for range arrived { // the large one has a channel of its own, so it may be the last
		d := in.Next()
		_ = d.Ack(false)
		got[string(bytes.TrimLeft(d.Body, "x"))]++
	}
	if got["before"] != 1 || got[""] != 1 || got["after"] != 1 || got["during"] != 0 {
		t.Errorf("%v arrived", got)
	}
	if mu.Lock(); connections != 0 {
		t.Errorf("the connection ended %d times", connections)
	}
	mu.Unlock()
}

func stopDuringAlarm(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	over := alarm(t, n)
	defer over()
	for range 3 {
		blocked := make(chan struct{}, 100)
		p := broker.NewPublisher(broker.Config{URL: v.URL(), Name: "redrive retries", Log: slog.New(slog.DiscardHandler), Observe: func(s broker.State) {
			if s.Blocked != "" {
				blocked <- struct{}{}
			}
		}})
		ctx, cancel := context.WithCancel(context.Background())
		var run sync.WaitGroup
		run.Go(func() { _ = p.Run(ctx) })
		p.Send(ctx, []wire.Outgoing{message("", "stops", "", nil)})
		<-blocked
		cancel()
		run.Wait()
	}
}
