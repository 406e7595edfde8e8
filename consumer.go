package redrive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/policy"
)

// Config of a consumer. URL, Queue, Policy and Wait are needed, the rest has
// defaults.
type Config struct {
	// URL is RabbitMQ's: amqp:// or amqps://, with credentials. Several, separated by
	// commas, are nodes of one cluster, with the same virtual host, user and password:
	// each connection goes to one of them at random, and to the next when that fails.
	URL   string
	Queue string // the work queue; it must exist
	// Policy says how many attempts, what wait between them and what then. Its
	// Name and Queues may be left out, and its Reasons mean nothing here.
	Policy policy.Policy
	// Wait is how messages wait for their next attempt.
	Wait Way
	// Retry says which errors are retried; others are parked. nil: all are. It is
	// not asked about Discard, nor about what Park and RetryIn made.
	Retry func(error) bool

	Concurrency int           // handlers at once; 0: 1
	Prefetch    int           // messages RabbitMQ may have outstanding; 0: 10 × Concurrency, at least 100
	Timeout     time.Duration // of one attempt, as its context's deadline; 0: none
	// Shutdown is how long handlers may finish, and failures be handed over, when
	// Run is to end. Then the contexts of handlers end, and what has not returned a
	// second later is left behind. 0: 30 s.
	Shutdown time.Duration
	// Verify makes nothing in RabbitMQ, and fails when something is missing: for
	// users who may not declare.
	Verify bool

	Log     *slog.Logger // nil: slog.Default
	Metrics Metrics      // nil: none
}

// Metrics hears what a consumer does. Its methods are called from many
// goroutines at once and must not block.
type Metrics interface {
	// Attempted is told of each attempt: what became of it, and how long the
	// handler took.
	Attempted(queue string, outcome Outcome, took time.Duration)
	// Connected is told when the consumer's connection is there or gone.
	Connected(queue string, yes bool)
}

// Handler is one attempt at a message. An error means another attempt, as the
// policy says, unless it is Discard, or made by Park or RetryIn. A panic is an
// error. It must return when ctx ends; what it failed with then is no failure, and
// RabbitMQ delivers the message again.
//
// What a handler puts in m.Headers goes with the message to its next attempt, if a
// copy is what waits (with every way but Native). Nothing else it changes does; the
// bytes of m.Body are not to be changed.
type Handler func(ctx context.Context, m *Message) error

// Consumer consumes one work queue, with retries. Make it with NewConsumer and
// run it once with Run.
type Consumer struct {
	config  Config
	settler *settler
	ran     atomic.Bool
}

// NewConsumer refuses a configuration that cannot be kept, and says why. It does
// not connect.
func NewConsumer(c Config) (*Consumer, error) {
	switch {
	case c.URL == "":
		return nil, errors.New("redrive: Config.URL is empty")
	case addresses.Check(c.URL, "amqp", "amqps") != nil:
		return nil, fmt.Errorf("redrive: Config.URL %w", addresses.Check(c.URL, "amqp", "amqps"))
	case c.Queue == "":
		return nil, errors.New("redrive: Config.Queue is empty")
	case c.Wait.err != nil:
		return nil, fmt.Errorf("redrive: Config.Wait: %w", c.Wait.err)
	case c.Wait.way == nil:
		return nil, errors.New("redrive: Config.Wait is not set: redrive.Levels() suits most")
	case c.Concurrency < 0 || c.Prefetch < 0 || c.Timeout < 0 || c.Shutdown < 0:
		return nil, errors.New("redrive: Config has a negative number")
	}
	if c.Policy.Name == "" {
		c.Policy.Name = c.Queue
	}
	if len(c.Policy.Queues) == 0 {
		c.Policy.Queues = []string{c.Queue}
	}
	l := c.Wait.Limits()
	if !l.Decides {
		if err := errors.Join(c.Policy.Validate(), l.Check(&c.Policy)); err != nil {
			return nil, fmt.Errorf("redrive: %w", err)
		}
	}
	if !l.Spreads() {
		c.Policy.Jitter = policy.None
	}
	c.Concurrency = max(c.Concurrency, 1)
	if c.Prefetch == 0 {
		c.Prefetch = max(100, 10*c.Concurrency)
	}
	if c.Shutdown == 0 {
		c.Shutdown = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Verify {
		if t, err := c.Wait.way.Hold(c.Queue, 0); err == nil && t.First != nil {
			return nil, fmt.Errorf("redrive: Config.Verify: %s makes its queues when they are needed; without the right to declare choose another way to wait", l.Name)
		}
	}
	p := broker.NewPublisher(broker.Config{URL: c.URL, Name: "redrive " + c.Queue + " hand-over", Log: c.Log, Strict: true})
	s := &settler{queue: c.Queue, policy: &c.Policy, retry: c.Retry, way: c.Wait.way, limits: l, verify: c.Verify, log: c.Log,
		publish: p, sender: newSender(p)}
	return &Consumer{config: c, settler: s}, nil
}
