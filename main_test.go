package redrive_test

import (
	"context"
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
	"github.com/redrive-mq/redrive/internal/broker/brokertest"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// TestMain fails when a goroutine outlives the tests.
func TestMain(m *testing.M) {
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

// config of a consumer of the queue orders.
func config(t *testing.T, v *brokertest.VHost, p policy.Policy) redrive.Config {
	return redrive.Config{URL: v.URL(), Queue: "orders", Policy: p, Wait: redrive.Levels(50*time.Millisecond, 200*time.Millisecond),
		Log: slog.New(slog.NewTextHandler(testWriter{t}, nil))}
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
func consume(t *testing.T, c redrive.Config, handle redrive.Handler) (stop func() error) {
	t.Helper()
	consumer, err := redrive.NewConsumer(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx, handle) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// outcomes counts what became of attempts, and waits for what is to become.
type outcomes struct {
	mu              sync.Mutex
	n               map[redrive.Outcome]int
	connected, lost int
}

func (o *outcomes) Attempted(_ string, outcome redrive.Outcome, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n == nil {
		o.n = map[redrive.Outcome]int{}
	}
	o.n[outcome]++
}

func (o *outcomes) Connected(_ string, yes bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if yes {
		o.connected++
	} else {
		o.lost++
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

// parked takes the next message from the parking lot.
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
