package redrive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Consumer describes how one queue is consumed. Queue, Policy, Wait and either Handler or
// Batch are required. It is a value: Client.Consume reads it once.
type Consumer struct {
	// Queue is the work queue. It must exist. A quorum queue is the better one.
	Queue string
	// Policy says how many attempts a message gets, what wait is between them, and what becomes of it after the last
	// one. Its Name and Queues may be left out; its Reasons are not used.
	Policy policy.Policy
	// Wait is where messages wait for their next attempt. Levels suits most.
	Wait Way

	// Handler handles one message at a time.
	Handler Handler
	// Middleware wraps Handler, the first one outermost. It does not wrap Batch.Handler.
	Middleware []Middleware
	// Batch handles several messages at once, instead of Handler.
	Batch Batch

	// Retry tells which errors are retried; messages with others are parked. The default is all of them. It is not
	// asked about ErrDiscard, *ParkError and *RetryAfterError. A panic in it is a failure like one in the handler.
	Retry func(error) bool

	// MaxDeliveries is how often RabbitMQ may deliver a message of a quorum queue without an acknowledgement, before it
	// is parked with ErrMaxDeliveries instead of handled once more: its handler may end the process each time. From 2
	// to 1,000,000, or -1 for no limit; the default is 10. Messages that were delivered thrice are handled alone, so
	// that those beside the one at fault are acknowledged. A classic queue counts nothing, so there none is parked for
	// this; after a start the redelivered ones are handled alone until a handler returns. With Native the policy's
	// attempts are the limit.
	MaxDeliveries int

	// Concurrency is the number of handlers at once, from 1 to 65,535. The default is 1.
	Concurrency int
	// Prefetch is the number of messages that RabbitMQ delivers ahead of their acknowledgement, at most 65,535.
	// RabbitMQ's consumer_timeout counts also for those that no handler has seen yet, see docs/how-to/library.md. The
	// default is 2 × Concurrency, so that none waits for more than one other; it may be as low as Concurrency, for
	// handlers that take longer than half of that timeout, and higher for those that take less than about 10 ms. With
	// batches, multiply each of these by Batch.Size.
	Prefetch int
	// Timeout is the deadline of the context of one attempt, or of one batch. The default is none.
	Timeout time.Duration
	// Shutdown is how long handlers, and the publishing of what failed, may take after the consumer was stopped. Then
	// the contexts of handlers end; a handler that has not returned a second later is left behind. The default is 30 s.
	Shutdown time.Duration
}

// Handler is one attempt at a message. A nil error is a success: the message is acknowledged. Any other error, and a
// panic, is a failure that is retried as Consumer.Policy says, except for ErrDiscard, *ParkError and *RetryAfterError,
// alone or wrapped. Handlers run at once, as many as Consumer.Concurrency says.
//
// A handler must return when ctx ends. An error that it returns after the consumer's
// Shutdown is no failure: RabbitMQ delivers the message again.
//
// What it adds to m.Headers is there at the next attempt, with every way but Native.
// If AMQP cannot carry one of them, all headers that the handler has set are dropped. Nothing else
// that it changes is kept. It must not change the bytes of m.Body.
type Handler func(ctx context.Context, m *Message) error

// Middleware wraps a Handler with what comes before and after it: traces, logs, a
// transaction. It is called once, when the consumer starts.
type Middleware func(next Handler) Handler

// maxPrefetch is the largest number that AMQP's basic.qos can carry.
const maxPrefetch = 65535

// validate returns an error for what can be found wrong without a connection, and sets the defaults.
func (c *Consumer) validate(verify bool) (Handler, error) {
	if err := errors.Join(c.validateSettings(), c.validateVerify(verify)); err != nil {
		return nil, err
	}
	return c.handler()
}

// validateVerify refuses a way that declares queues when they are needed, where nothing may be declared.
func (c *Consumer) validateVerify(verify bool) error {
	if !verify || c.Wait.way == nil {
		return nil
	}
	if t, err := c.Wait.way.Ticket(c.Queue, 0); err == nil && t.DeclareFirst != nil {
		return hint.Errorf("choose another way to wait, or leave out Verify",
			"redrive: Config.Verify is set, and Consumer.Wait %s declares queues when they are needed",
			c.Wait.Limits().Name)
	}
	return nil
}

// validateSettings validates all but the handler, and sets the defaults.
func (c *Consumer) validateSettings() error {
	switch {
	case c.Queue == "":
		return errors.New("redrive: Consumer.Queue is empty")
	case len(c.Queue) > 255:
		return fmt.Errorf("redrive: Consumer.Queue has %d bytes, and the names of RabbitMQ's queues have at most 255",
			len(c.Queue))
	case wire.OwnQueue(c.Queue):
		return fmt.Errorf("redrive: Consumer.Queue %q is one of Redrive's own queues", c.Queue)
	case c.Wait.err != nil:
		return fmt.Errorf("redrive: Consumer.Wait: %w", c.Wait.err)
	case c.Wait.way == nil:
		return hint.Errorf("redrive.Levels() suits most", "redrive: Consumer.Wait is not set")
	}
	if err := c.validatePolicy(); err != nil {
		return err
	}
	if err := c.validateNumbers(); err != nil {
		return err
	}
	if c.Shutdown == 0 {
		c.Shutdown = 30 * time.Second
	}
	return nil
}

func (c *Consumer) validatePolicy() error {
	p := &c.Policy
	if p.Exhausted == (policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: c.Queue}}) {
		return hint.Errorf("use more attempts, or another queue",
			"redrive: Consumer.Policy forwards to the queue %q itself: a message would fail and be forwarded again, "+
				"without a wait", c.Queue)
	}
	if p.Name == "" {
		p.Name = c.Queue
	}
	if len(p.Queues) == 0 {
		p.Queues = []string{c.Queue}
	}
	l := c.Wait.way.Limits()
	if !l.ServiceDecides {
		if err := errors.Join(p.Validate(), l.Check(p)); err != nil {
			return fmt.Errorf("redrive: Consumer.Policy: %w", err)
		}
	}
	if !l.Spreads() {
		p.Jitter = policy.None
	}
	c.Wait.way = delay.For(p, c.Wait.way)
	return nil
}

func (c *Consumer) validateNumbers() error {
	b := &c.Batch
	if c.MaxDeliveries == 0 {
		c.MaxDeliveries = defaultMaxDeliveries
	}
	switch {
	case c.MaxDeliveries != -1 && (c.MaxDeliveries < 2 || c.MaxDeliveries > wire.MaxAttempt):
		return hint.Errorf("leave it out for 10, or set -1 for no limit",
			"redrive: Consumer.MaxDeliveries is %d: expected 2 to %d", c.MaxDeliveries, wire.MaxAttempt)
	case c.Concurrency < 0 || c.Prefetch < 0 || c.Timeout < 0 || c.Shutdown < 0 || b.Size < 0 || b.Wait < 0:
		return errors.New("redrive: one of Consumer.Concurrency, Prefetch, Timeout, Shutdown, Batch.Size and " +
			"Batch.Wait is negative")
	case b.Handler != nil && b.Size == 0:
		return hint.Errorf("set it to the number of messages that one call may get",
			"redrive: Consumer.Batch.Size is 0")
	case b.Handler == nil && (b.Size > 0 || b.Wait > 0):
		return hint.Errorf("set Batch.Handler, or leave out Batch.Size and Batch.Wait",
			"redrive: Consumer.Batch.Handler is nil, and Batch.Size or Batch.Wait is set")
	}
	if b.Wait == 0 {
		b.Wait = time.Second
	}
	c.Concurrency = max(c.Concurrency, 1)
	size, of := max(b.Size, 1), "Concurrency"
	if size > 1 {
		of = "Concurrency × Batch.Size"
	}
	if c.Concurrency > maxPrefetch || size > maxPrefetch || c.Prefetch > maxPrefetch ||
		c.Concurrency*size > maxPrefetch {
		return fmt.Errorf("redrive: Consumer.%s is %d and Prefetch %d: AMQP carries a prefetch of %d at most", of,
			c.Concurrency*size, c.Prefetch, maxPrefetch)
	}
	if c.Prefetch > 0 && c.Prefetch < c.Concurrency*size {
		return hint.Errorf(fmt.Sprintf("leave Prefetch out, or set it to %d or more", c.Concurrency*size),
			"redrive: Consumer.Prefetch is %d and %s %d: some handlers would never get a message, or no full batch",
			c.Prefetch, of, c.Concurrency*size)
	}
	if c.Prefetch == 0 {
		c.Prefetch = min(2*c.Concurrency*size, maxPrefetch)
	}
	return nil
}

// handler is Handler in its Middleware; nil for batches.
func (c *Consumer) handler() (Handler, error) {
	switch {
	case c.Handler == nil && c.Batch.Handler == nil:
		return nil, hint.Errorf("set one of them", "redrive: Consumer.Handler is nil, and so is Consumer.Batch.Handler")
	case c.Handler != nil && c.Batch.Handler != nil:
		return nil, hint.Errorf("set one of them", "redrive: Consumer.Handler and Consumer.Batch.Handler are both set")
	case c.Handler == nil && len(c.Middleware) > 0:
		return nil, hint.Errorf("wrap Batch.Handler yourself",
			"redrive: Consumer.Middleware wraps Consumer.Handler, and Consumer.Batch is set")
	}
	h := c.Handler
	for i := len(c.Middleware) - 1; i >= 0; i-- {
		if c.Middleware[i] == nil {
			return nil, fmt.Errorf("redrive: Consumer.Middleware[%d] is nil", i)
		}
		if h = c.Middleware[i](h); h == nil {
			return nil, fmt.Errorf("redrive: Consumer.Middleware[%d] returned a nil Handler", i)
		}
	}
	return h, nil
}

// Message is one attempt at a message: the message as it was first published, and what
// became of it since. Its Expiration is "" from the second attempt on, with all ways but
// Native: it would expire in its queue again. It belongs to the handler until that returns.
type Message struct {
	wire.Message

	// Queue is the work queue.
	Queue string
	// ID is the same at every attempt from the second one on; also on a duplicate after a crash, if the publisher has
	// set a message id. It is "" before the first failure, and at all attempts with Native.
	ID string
	// Attempt is 1 at the first one, and one more after each failure. Once a person has
	// replayed a parked message it begins with 1 again, and ID, FirstFailed and LastError stay.
	Attempt int
	// FirstFailed is when it first failed; zero before.
	FirstFailed time.Time
	// LastError is the text of the error of the attempt before, up to 2 KiB; "" before the first failure.
	LastError string
	// Replays is how often people replayed it; 0 with Native.
	Replays int
	// Redelivered is whether RabbitMQ has delivered it before, and got no acknowledgement.
	Redelivered bool
}

// message reads a delivery. queueCounts is the limit QueueCounts of the consumer's way to wait.
func message(d *amqp.Delivery, queue string, queueCounts bool) *Message {
	m := &Message{Queue: queue, Attempt: 1, Redelivered: d.Redelivered, Message: broker.Received(d)}
	m.Headers = clone(d.Headers)
	switch {
	case len(d.Headers) == 0:
	case queueCounts:
		// On the first delivery RabbitMQ's count would be a publisher's header.
		if d.Redelivered {
			m.Attempt = int(headers.Deliveries(d.Headers)) + 1
			m.Headers = headers.Clean(m.Headers)
		}
	// Our headers count only in what has come through an exchange of Redrive's: every publisher of
	// the queue can write them, and frameworks copy them. Other messages are as first published.
	case strings.HasPrefix(d.Exchange, "redrive."):
		t, ok, _ := headers.Read(&m.Message, queue, true, time.Now())
		if !ok {
			return m
		}
		m.ID, m.Attempt, m.FirstFailed, m.LastError = t.ID, t.Failures+1, t.FirstFailed, t.Error
		m.Replays = t.Replays
		m.Exchange, m.RoutingKey = t.Exchange, t.RoutingKey
		if m.UserID == "" {
			m.UserID = t.UserID
		}
		m.Headers = headers.Clean(m.Headers)
	}
	return m
}

// clone copies headers, so that a handler's changes do not change the delivery.
func clone(t amqp.Table) amqp.Table {
	if t == nil {
		return nil
	}
	c := make(amqp.Table, len(t))
	for k, v := range t {
		c[k] = cloneValue(v)
	}
	return c
}

func cloneValue(v any) any {
	switch v := v.(type) {
	case amqp.Table:
		return clone(v)
	case []any:
		c := make([]any, len(v))
		for i := range v {
			c[i] = cloneValue(v[i])
		}
		return c
	case []byte:
		return bytes.Clone(v)
	}
	return v
}

// ErrDiscard, returned by a handler, discards the message: it is acknowledged, and not retried. It may be wrapped.
var ErrDiscard = errors.New("redrive: discard the message")

// ErrMaxDeliveries is the error of a message that was parked because of Consumer.MaxDeliveries.
var ErrMaxDeliveries = errors.New("redrive: the message was delivered too often without an acknowledgement")

// ParkError, returned by a handler, parks the message at once: it is not retried, and waits
// in the queue redrive.parked for a person. It may be wrapped.
type ParkError struct {
	Err error // why; may be nil
}

// Park returns a *ParkError. err may be nil.
func Park(err error) error { return &ParkError{Err: err} }

// Error is the text of Err, or says that there is none.
func (e *ParkError) Error() string { return textOr(e.Err, "its handler parked it, without an error") }

// Unwrap returns Err.
func (e *ParkError) Unwrap() error { return e.Err }

// RetryAfterError, returned by a handler, retries the message after a delay of its own, as
// an HTTP Retry-After asks for. It counts as an attempt like any other. It may be wrapped.
type RetryAfterError struct {
	Err error // why; may be nil
	// Delay until the next attempt, at least. One of 0 or less is none: the next attempt is made
	// at once or, with Service, after what the service's policy says. A delay longer than
	// policy.Policy.MaxRetryAfter, or else the policy's longest wait, is cut to that.
	Delay time.Duration
}

// RetryAfter returns a *RetryAfterError. err may be nil.
func RetryAfter(err error, delay time.Duration) error {
	return &RetryAfterError{Err: err, Delay: delay}
}

// Error is the text of Err, or says that there is none.
func (e *RetryAfterError) Error() string {
	return textOr(e.Err, fmt.Sprintf("its handler asked for another attempt in %s, without an error", e.Delay))
}

// Unwrap returns Err.
func (e *RetryAfterError) Unwrap() error { return e.Err }

func textOr(err error, without string) string {
	if err == nil {
		return without
	}
	return err.Error()
}

// PanicError is the error of an attempt whose handler panicked. Consumer.Retry and ParkedMessage.Err get it.
type PanicError struct {
	Value any    // as recover returned it
	Stack []byte // the frames of runtime/debug.Stack that are not Redrive's own
}

// Error begins with "panic: ".
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Outcome is the result of one attempt.
type Outcome string

const (
	Succeeded Outcome = "succeeded" // acknowledged
	Retried   Outcome = "retried"   // waits for its next attempt, and comes back to its queue
	Parked    Outcome = "parked"    // in the queue redrive.parked, for a person
	Discarded Outcome = "discarded" // acknowledged, as the handler or the policy decided
	Forwarded Outcome = "forwarded" // published where the policy forwards
	// Unsettled: it was not acknowledged, and no copy of it was confirmed, since the connection
	// was lost, the time to stop was over, or RabbitMQ accepts no copy. RabbitMQ delivers it again.
	Unsettled Outcome = "unsettled"
	// Unacknowledged: it was published to where it waits, is parked or forwarded, but could
	// not be acknowledged. RabbitMQ delivers the original as well, so there are two copies.
	Unacknowledged Outcome = "unacknowledged"
)
