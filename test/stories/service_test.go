// Package stories_test runs the service against real brokers, from the
// publisher's first message to the consumer's last.
package stories_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/api"
	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/internal/broker/brokertest"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/flow"
)

// lateBy is how long a test waits for what must happen.
const lateBy = 20 * time.Second

// service is a running Redrive.
type service struct {
	*app.Service
	client api.Client
	data   string
	events chan flow.Event // the first 10,000
	stop   func() error    // waits for its end; may be called twice
}

// start runs a service on a virtual host with policies in YAML. It ends with the
// test.
func start(t *testing.T, url, policies string) *service {
	return startAt(t, url, policies, t.TempDir())
}

func startAt(t *testing.T, url, policies, data string) *service {
	t.Helper()
	c, err := config.Parse("test.yaml", []byte(policies))
	if err != nil {
		t.Fatal(err)
	}
	c.Broker.URL, c.Store.Disk, c.Listen = url, data, "127.0.0.1:0"
	return run(t, c)
}

func run(t *testing.T, c *config.Config) *service {
	t.Helper()
	log := &lockedBuffer{}
	events := make(chan flow.Event, 10_000)
	s, err := app.New(c, app.Options{Version: "test", Log: slog.New(slog.NewTextHandler(log, nil)), Events: func(e flow.Event) {
		select {
		case events <- e:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("the service ended with: %v", err)
		}
		if t.Failed() {
			t.Logf("the service said:\n%s", log)
		}
	})
	sv := &service{Service: s, client: api.Client{Addr: s.Addr()}, data: c.Store.Disk, events: events, stop: stop}
	return sv
}

func (s *service) ready(t *testing.T) *service {
	t.Helper()
	brokertest.Eventually(t, "the service is ready", func() bool { return len(s.Problems()) == 0 })
	return s
}

// wait waits for the next event of one of the kinds.
func (s *service) wait(t *testing.T, kinds ...flow.Kind) flow.Event {
	t.Helper()
	for {
		select {
		case e := <-s.events:
			if slices.Contains(kinds, e.Kind) {
				return e
			}
		case <-time.After(lateBy):
			t.Fatalf("no event of %v came", kinds)
		}
	}
}

// held is what the service holds for a queue.
func (s *service) held(t *testing.T, queue string) console.Queue {
	t.Helper()
	st, err := s.client.Overview(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range st.Queues {
		if q.Name == queue {
			return q
		}
	}
	return console.Queue{Name: queue}
}

// parked are all parked messages.
func (s *service) parked(t *testing.T) []console.Message {
	t.Helper()
	page, err := s.client.Messages(context.Background(), "state:parked", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	return page.Messages
}

// waitParked waits for n parked messages.
func (s *service) waitParked(t *testing.T, n int) []console.Message {
	t.Helper()
	var all []console.Message
	brokertest.Eventually(t, fmt.Sprintf("%d messages are parked", n), func() bool {
		all = s.parked(t)
		return len(all) >= n
	})
	if len(all) != n {
		t.Fatalf("%d messages are parked, want %d: %+v", len(all), n, all)
	}
	return all
}

// replay sends what a query finds among the parked messages back now.
func (s *service) replay(t *testing.T, query string) int {
	t.Helper()
	page, err := s.client.Messages(context.Background(), "state:parked "+query, "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	act := console.Act{Verb: console.Replay}
	for _, m := range page.Messages {
		act.IDs = append(act.IDs, m.Key)
	}
	done, err := s.client.Act(context.Background(), act)
	if err != nil {
		t.Fatal(err)
	}
	return done.Done
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// deadLettered declares a queue whose dead letters go to Redrive.
func deadLettered(v *brokertest.VHost, queue, kind string) {
	v.Queue(queue, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "redrive"})
}

// consumer takes deliveries of one queue.
type consumer struct {
	t  *testing.T
	ch *amqp.Channel
	in <-chan amqp.Delivery
}

func consume(t *testing.T, v *brokertest.VHost, queue string) *consumer {
	t.Helper()
	ch := v.Channel()
	if err := ch.Qos(1000, 0, false); err != nil {
		t.Fatal(err)
	}
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &consumer{t, ch, in}
}

func (c *consumer) next() amqp.Delivery {
	c.t.Helper()
	select {
	case d, ok := <-c.in:
		if !ok {
			c.t.Fatal("the consumer's channel closed")
		}
		return d
	case <-time.After(lateBy):
		c.t.Fatal("no delivery came")
	}
	return amqp.Delivery{}
}

func (c *consumer) none(within time.Duration) {
	c.t.Helper()
	select {
	case d := <-c.in:
		c.t.Errorf("a delivery came that should not: %q, headers %v", d.Body, d.Headers)
	case <-time.After(within):
	}
}

func reject(t *testing.T, d amqp.Delivery) time.Time {
	t.Helper()
	if err := d.Reject(false); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

// publish waits for RabbitMQ's confirm: a test whose own message is lost proves
// nothing.
func publish(t *testing.T, ch *amqp.Channel, exchange, key string, p amqp.Publishing) {
	t.Helper()
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	c, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, p)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Wait() {
		t.Fatalf("RabbitMQ did not confirm a message to %q with routing key %q", exchange, key)
	}
}
