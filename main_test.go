package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// TestMain fails when a goroutine outlives the tests.
func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		os.Exit(crasher())
	}
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// fast is a policy whose waits a test can wait for.
func fast(attempts int) policy.Policy {
	return policy.Policy{Attempts: attempts, Backoff: policy.Fixed(50 * time.Millisecond)}
}

// setup is a client with one consumer, and what becomes of it.
type setup struct {
	redrive.Config
	redrive.Consumer
	seen *counter
	said *brokertest.Output // in its log
}

// config of a consumer of the queue orders.
func config(t *testing.T, v *brokertest.VHost, p policy.Policy) setup {
	seen, said := new(counter), new(brokertest.Output)
	return setup{
		redrive.Config{URLs: []string{v.URL()}, Log: slogTo(io.MultiWriter(said, testWriter{t})),
			Metrics: seen.metrics()},
		redrive.Consumer{Queue: "orders", Policy: p, Wait: redrive.Levels(50*time.Millisecond, 200*time.Millisecond)},
		seen, said}
}

// orders declares the queue orders too.
func orders(t *testing.T, v *brokertest.VHost, p policy.Policy) setup {
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
	return config(t, v, p)
}

func slogTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// testWriter logs into the test, while it lasts.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

// consume runs a consumer until the function it returns is called, or the test ends.
func consume(t *testing.T, c setup, handle redrive.Handler) (stop func() error) {
	t.Helper()
	c.Handler = handle
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- redrive.Consume(ctx, c.Config, c.Consumer) }()
	stop = sync.OnceValue(func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) { // as where it had not begun yet
			return err
		}
		return nil
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// connect makes a client that the test closes.
func connect(t *testing.T, c redrive.Config) *redrive.Client {
	t.Helper()
	client, err := redrive.NewClient(t.Context(), c)
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

// settler makes one of a client that the test closes.
func settler(t *testing.T, c setup) *redrive.Settler {
	t.Helper()
	s, err := connect(t, c.Config).NewSettler(t.Context(), c.Consumer)
	must(t, err)
	return s
}

// counter counts outcomes of attempts, and what else a test tells apart.
type counter struct {
	mu sync.Mutex
	n  map[any]int
}

func (c *counter) metrics() redrive.Metrics {
	return redrive.Metrics{
		Attempt:  func(e redrive.AttemptEvent) { c.add(e.Outcome) },
		Consumer: func(e redrive.ConsumerEvent) { c.add(consuming(e.Consuming)) },
	}
}

// consuming is whether a consumer has begun to consume, or was lost.
type consuming bool

func (c *counter) connections() int { return c.count(consuming(true)) }
func (c *counter) losses() int      { return c.count(consuming(false)) }

func (c *counter) add(what any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[any]int{}
	}
	c.n[what]++
}

func (c *counter) count(what any) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[what]
}

// await waits until that many were counted.
func (c *counter) await(t *testing.T, what any, n int) {
	t.Helper()
	brokertest.Eventually(t, fmt.Sprint(n, " ", what), func() bool { return c.count(what) == n })
}

// parked takes the next message from redrive.parked.
func parked(v *brokertest.VHost) amqp.Delivery {
	d := v.Consume(wire.QueueParked).Next()
	_ = d.Ack(false)
	return d
}

var must, errOf = expect.NoError, expect.ErrOf
