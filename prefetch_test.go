package redrive_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// A consumer with its defaults may take its time over each message, though all together
// take longer than consumer_timeout: none waits unseen. One that takes longer than that
// over one message sees in the log what happened, and what to do.
func TestASlowHandlerAndConsumerTimeout(t *testing.T) {
	brokertest.EachPrivate(t, "consumer_timeout = 10000\n", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		// RabbitMQ 3 looks for what has timed out once a minute.
		if _, err := n.Eval(context.Background(), "application:set_env(rabbit, channel_tick_interval, 500)."); err != nil {
			t.Fatal(err)
		}
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1)})
		const messages = 60
		for range messages {
			v.Publish("", "orders", amqp.Publishing{})
		}
		var mu sync.Mutex
		redelivered := 0
		var seen outcomes
		var log safeLog
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the consumer's log:\n%s", log.String())
			}
		})
		cfg := config(t, v, fast(2))
		cfg.Metrics, cfg.Log = seen.metrics(), slog.New(slog.NewTextHandler(&log, nil))
		consume(t, cfg, func(ctx context.Context, m *redrive.Message) error {
			mu.Lock()
			if m.Redelivered {
				redelivered++
			}
			mu.Unlock()
			if string(m.Body) != "slow" {
				<-time.After(300 * time.Millisecond)
				return nil
			}
			for ctx.Err() == nil && !strings.Contains(log.String(), "consumer_timeout") {
				<-time.After(50 * time.Millisecond)
			}
			return nil
		})
		brokertest.Eventually(t, "all are handled", func() bool { return seen.count(redrive.Succeeded) == messages })
		if mu.Lock(); redelivered > 0 || seen.connections() != 1 {
			t.Errorf("%d messages were delivered again, over %d connections:\n%s", redelivered, seen.connections(), log.String())
		}
		mu.Unlock()
		v.Publish("", "orders", amqp.Publishing{Body: []byte("slow")})
		said := func() bool {
			s := log.String()
			return strings.Contains(s, "consumer_timeout") && strings.Contains(s, "docs/explanation/prefetch.md") && strings.Contains(s, `queue \"orders\"`)
		}
		brokertest.Eventually(t, "the log says that one took too long", func() bool {
			// An idle queue of RabbitMQ 4.3 may miss the timeout: see test/facts.
			v.Publish("", "orders", amqp.Publishing{})
			return said()
		})
		brokertest.Eventually(t, "it is consumed again", func() bool { return seen.connections() == 2 })
	})
}

// A prefetch that AMQP cannot carry, or that leaves handlers without a message, is refused.
func TestPrefetchesThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		concurrency, prefetch, batch int
		want                         string
	}{
		{1, 65536, 0, "65535 at most"},
		{65536, 0, 0, "65535 at most"},
		{10, 9, 0, "some handlers would never get a message"},
		{10, 10, 0, ""},
		{0, 1, 0, ""},
		{65535, 65535, 0, ""},
		{2, 99, 50, "or no full batch"},
		{2, 100, 50, ""},
		{256, 0, 256, "65535 at most"},
		{65536, 0, 65536, "65535 at most"},
	} {
		k := redrive.Consumer{Queue: "q", Policy: fast(2), Wait: redrive.Levels(), Concurrency: c.concurrency, Prefetch: c.prefetch, Batch: redrive.Batch{Size: c.batch}}
		if c.batch > 0 {
			k.Batch.Handler = allSucceed
		}
		_, err := k.Decide(&redrive.Message{}, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("concurrency %d, prefetch %d: %v, want %q", c.concurrency, c.prefetch, err, c.want)
		}
	}
}
