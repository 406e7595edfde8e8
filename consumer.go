package redrive

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Config of a consumer. URL, Queue, Policy and Wait are needed, the rest has
// defaults.
type Config struct {
	// URL is RabbitMQ's: amqp:// or amqps://, with credentials. Several, separated by
	// commas, are nodes of one cluster, with the same virtual host, user and password:
	// each connection goes to one of them at random, and to the next when that fails.
	// Parameters of amqp091-go's are kept: cacertfile, certfile, keyfile (files in PEM,
	// read for each new connection), server_name_indication, auth_mechanism (external is
	// SASL EXTERNAL: the user is the certificate's), heartbeat and connection_timeout.
	URL string
	// TLS is for amqps:// instead of the files that URL names; nil: the authorities of
	// the system, or of SSL_CERT_FILE. Its GetClientCertificate is asked at each
	// connection.
	TLS   *tls.Config
	Queue string // the work queue; it must exist
	// Policy says how many attempts, what wait between them and what then. Its
	// Name and Queues may be left out, and its Reasons mean nothing here.
	Policy policy.Policy
	// Wait is how messages wait for their next attempt.
	Wait Way
	// Retry says which errors are retried; others are parked. nil: all are. It is
	// not asked about Discard, nor about what Park and RetryIn made. A panic in it is a
	// failure like a handler's.
	Retry func(error) bool

	Concurrency int // handlers at once; 0: 1
	// Prefetch is how many messages RabbitMQ may have outstanding, those that no handler has
	// seen yet included: RabbitMQ's consumer_timeout counts for them too, see
	// docs/explanation/prefetch.md. 0: 2 × Concurrency, so that one waits for no more than one other. At
	// least Concurrency, for handlers that take longer than half of that timeout; more for
	// those that take less than some 10 ms; 65,535 at most.
	Prefetch int
	Timeout  time.Duration // of one attempt, as its context's deadline; 0: none
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

// mostPrefetch is the largest number that AMQP's basic.qos has room for.
const mostPrefetch = 65535

// Metrics hears what a consumer does. Its methods are called from many
// goroutines at once and must not block. A panic in them is logged, once.
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
// copy is what waits (with every way but Native). Headers that AMQP cannot carry are left
// out, all that the handler has set. Nothing else it changes goes with the message; the
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
	case c.TLS != nil && !addresses.Secure(c.URL):
		return nil, errors.New("redrive: Config.TLS is set, and Config.URL is not amqps://, or names files for TLS itself: use one of them")
	case c.Queue == "":
		return nil, errors.New("redrive: Config.Queue is empty")
	case len(c.Queue) > 255:
		return nil, fmt.Errorf("redrive: Config.Queue has %d bytes, and the names of RabbitMQ's queues have at most 255", len(c.Queue))
	case wire.OwnQueue(c.Queue):
		return nil, fmt.Errorf("redrive: Config.Queue %q is one of Redrive's own queues", c.Queue)
	case c.Policy.Exhausted == policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: c.Queue}}:
		return nil, fmt.Errorf("redrive: Config.Policy forwards to the queue %q itself: a message would fail and be forwarded again, without a wait; use more attempts, or another queue", c.Queue)
	case c.Wait.err != nil:
		return nil, fmt.Errorf("redrive: Config.Wait: %w", c.Wait.err)
	case c.Wait.way == nil:
		return nil, errors.New("redrive: Config.Wait is not set: redrive.Levels() suits most")
	case c.Concurrency < 0 || c.Prefetch < 0 || c.Timeout < 0 || c.Shutdown < 0:
		return nil, errors.New("redrive: Config has a negative number")
	case c.Concurrency > mostPrefetch || c.Prefetch > mostPrefetch:
		return nil, fmt.Errorf("redrive: Config.Concurrency is %d and Config.Prefetch %d: AMQP carries a prefetch of %d at most", c.Concurrency, c.Prefetch, mostPrefetch)
	case c.Prefetch > 0 && c.Prefetch < c.Concurrency:
		return nil, fmt.Errorf("redrive: Config.Prefetch is %d and Config.Concurrency %d: some handlers would never get a message; leave Prefetch out, or set it to %d or more", c.Prefetch, c.Concurrency, c.Concurrency)
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
		c.Prefetch = min(2*c.Concurrency, mostPrefetch)
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
	p := broker.NewPublisher(broker.Config{URL: c.URL, TLS: c.TLS, Name: "redrive " + c.Queue + " hand-over", Log: c.Log, Strict: true})
	s := &settler{queue: c.Queue, policy: &c.Policy, retry: c.Retry, way: c.Wait.way, limits: l, verify: c.Verify, log: c.Log,
		publish: p, sender: newSender(p)}
	return &Consumer{config: c, settler: s}, nil
}
