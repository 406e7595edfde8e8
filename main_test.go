package redrive_test

import (
	"context"
	"errors"
	"fmt"
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

// setup is a client with one consumer.
type setup struct {
	redrive.Config
	redrive.Consumer
}

// config of a consumer of the queue orders.
func config(t *testing.T, v *brokertest.VHost, p policy.Policy) setup {
	return setup{redrive.Config{URLs: []string{v.URL()}, Log: slog.New(slog.NewTextHandler(testWriter{t}, nil))},
		redrive.Consumer{Queue: "orders", Policy: p, Wait: redrive.Levels(50*time.Millisecond, 200*time.Millisecond)}}
}

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

// outcomes counts what became of attempts, and waits for what is to become.
type outcomes struct {
	mu              sync.Mutex
	n               map[redrive.Outcome]int
	connected, lost int
}

func (o *outcomes) metrics() redrive.Metrics {
	return redrive.Metrics{
		Attempt: func(e redrive.AttemptEvent) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.n == nil {
				o.n = map[redrive.Outcome]int{}
			}
			o.n[e.Outcome]++
		},
		Consumer: func(e redrive.ConsumerEvent) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if e.Consuming {
				o.connected++
			} else {
				o.lost++
			}
		},
	}
}

func (o *outcomes) count(outcome redrive.Outcome) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n[outcome]
}

func (o *outcomes) connections() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.connected
}

// parked takes the next message from redrive.parked.
func parked(v *brokertest.VHost) amqp.Delivery {
	d := v.Consume(wire.QueueParked).Next()
	_ = d.Ack(false)
	return d
}

func (o *outcomes) losses() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost
}

var must, errOf = expect.NoError, expect.ErrOf
