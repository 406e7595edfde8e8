package redrive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Consumer describes how one queue is consumed. Queue, Policy, Wait and either Handler or
// Batch are required. It is a value: Client.Consume reads it once.
type Consumer struct {
	// Queue is the work queue. It must exist. A quorum queue is the better one.
	Queue string
	// Policy says how many attempts a message gets, what wait is between them, and what
	// becomes of it after the last one. Its Name and Queues may be left out; its Reasons
	// are not used.
	Policy policy.Policy
	// Wait is where messages wait for their next attempt. Levels suits most.
	Wait Way

	// Handler handles one message at a time.
	Handler Handler
	// Middleware wraps Handler, the first one outermost. It does not wrap Batch.Handler.
	Middleware []Middleware
	// Batch handles several messages at once, instead of Handler.
	Batch Batch

	// Retry tells which errors are retried; messages with others are parked. The default
	// is all of them. It is not asked about ErrDiscard, *ParkError and *RetryAfterError. A
	// panic in it is a failure like one in the handler.
	Retry func(error) bool

	// Concurrency is the number of handlers at once, from 1 to 65,535. The default is 1.
	Concurrency int
	// Prefetch is the number of messages that RabbitMQ delivers ahead of their
	// acknowledgement, at most 65,535. RabbitMQ's consumer_timeout counts also for those
	// that no handler has seen yet, see docs/explanation/prefetch.md. The default is 2 × Concurrency,
	// so that none waits for more than one other; it may be as low as Concurrency, for
	// handlers that take longer than half of that timeout, and higher for those that take
	// less than some 10 ms. In batches each of these is times Batch.Size.
	Prefetch int
	// Timeout is the deadline of the context of one attempt, or of one batch. The default
	// is none.
	Timeout time.Duration
	// Shutdown is how long handlers, and the publishing of what failed, may take after the
	// consumer was stopped. Then the contexts of handlers end; a handler that has not
	// returned a second later is left behind. The default is 30 s.
	Shutdown time.Duration
}

// Handler is one attempt at a message. A nil error is a success: the message is
// acknowledged. Any other error, and a panic, is a failure that is retried as
// Consumer.Policy says, but for ErrDiscard, *ParkError and *RetryAfterError, alone or
// wrapped. Handlers run at once, as many as Consumer.Concurrency says.
//
// A handler must return when ctx ends. An error that it returns after the consumer's
// Shutdown is no failure: RabbitMQ delivers the message again.
//
// What it adds to m.Headers is there at the next attempt, with every way but Native;
// headers that AMQP cannot carry are left out, all that the handler has set. Nothing else
// that it changes is kept. It must not change the bytes of m.Body.
type Handler func(ctx context.Context, m *Message) error

// Middleware wraps a Handler with what comes before and after it: traces, logs, a
// transaction. It is called once, when the consumer starts.
type Middleware func(next Handler) Handler

// mostPrefetch is the largest number that AMQP's basic.qos has room for.
const mostPrefetch = 65535

// ready sets the defaults, after it has checked all that can be without a connection.
func (k *Consumer) ready(verify bool) (Handler, error) {
	if err := errors.Join(k.complete(), k.verifies(verify)); err != nil {
		return nil, err
	}
	return k.handler()
}

// verifies refuses a way that declares as it goes, where nothing may be declared.
func (k *Consumer) verifies(verify bool) error {
	if !verify || k.Wait.way == nil {
		return nil
	}
	if t, err := k.Wait.way.Ticket(k.Queue, 0); err == nil && t.DeclareFirst != nil {
		return fmt.Errorf("redrive: Config.Verify is set, and Consumer.Wait %s declares queues when they are needed: choose another way to wait, or leave out Verify", k.Wait.Limits().Name)
	}
	return nil
}

// complete sets the defaults, after it has checked all but the handler.
func (k *Consumer) complete() error {
	switch {
	case k.Queue == "":
		return errors.New("redrive: Consumer.Queue is empty")
	case len(k.Queue) > 255:
		return fmt.Errorf("redrive: Consumer.Queue has %d bytes, and the names of RabbitMQ's queues have at most 255", len(k.Queue))
	case wire.OwnQueue(k.Queue):
		return fmt.Errorf("redrive: Consumer.Queue %q is one of Redrive's own queues", k.Queue)
	case k.Wait.err != nil:
		return fmt.Errorf("redrive: Consumer.Wait: %w", k.Wait.err)
	case k.Wait.way == nil:
		return errors.New("redrive: Consumer.Wait is not set: redrive.Levels() suits most")
	}
	if err := k.completePolicy(); err != nil {
		return err
	}
	if err := k.completeNumbers(); err != nil {
		return err
	}
	if k.Shutdown == 0 {
		k.Shutdown = 30 * time.Second
	}
	return nil
}

func (k *Consumer) completePolicy() error {
	p := &k.Policy
	if p.Exhausted == (policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: k.Queue}}) {
		return fmt.Errorf("redrive: Consumer.Policy forwards to the queue %q itself: a message would fail and be forwarded again, without a wait; use more attempts, or another queue", k.Queue)
	}
	if p.Name == "" {
		p.Name = k.Queue
	}
	if len(p.Queues) == 0 {
		p.Queues = []string{k.Queue}
	}
	l := k.Wait.way.Limits()
	if !l.Decides {
		if err := errors.Join(p.Validate(), l.Check(p)); err != nil {
			return fmt.Errorf("redrive: Consumer.Policy: %w", err)
		}
	}
	if !l.Spreads() {
		p.Jitter = policy.None
	}
	return nil
}

func (k *Consumer) completeNumbers() error {
	b := &k.Batch
	switch {
	case k.Concurrency < 0 || k.Prefetch < 0 || k.Timeout < 0 || k.Shutdown < 0 || b.Size < 0 || b.Wait < 0:
		return errors.New("redrive: one of Consumer.Concurrency, Prefetch, Timeout, Shutdown, Batch.Size and Batch.Wait is negative")
	case b.Handler != nil && b.Size == 0:
		return errors.New("redrive: Consumer.Batch.Size is 0: how many messages may one call get?")
	case b.Handler == nil && (b.Size > 0 || b.Wait > 0):
		return errors.New("redrive: Consumer.Batch.Handler is nil, and Batch.Size or Batch.Wait is set")
	}
	if b.Wait == 0 {
		b.Wait = time.Second
	}
	k.Concurrency = max(k.Concurrency, 1)
	size, of := max(b.Size, 1), "Concurrency"
	if size > 1 {
		of = "Concurrency × Batch.Size"
	}
	if k.Concurrency > mostPrefetch || size > mostPrefetch || k.Prefetch > mostPrefetch || k.Concurrency*size > mostPrefetch {
		return fmt.Errorf("redrive: Consumer.%s is %d and Prefetch %d: AMQP carries a prefetch of %d at most", of, k.Concurrency*size, k.Prefetch, mostPrefetch)
	}
	if k.Prefetch > 0 && k.Prefetch < k.Concurrency*size {
		return fmt.Errorf("redrive: Consumer.Prefetch is %d and %s %d: some handlers would never get a message, or no full batch; leave Prefetch out, or set it to %d or more", k.Prefetch, of, k.Concurrency*size, k.Concurrency*size)
	}
	if k.Prefetch == 0 {
		k.Prefetch = min(2*k.Concurrency*size, mostPrefetch)
	}
	return nil
}

// handler is Handler in its Middleware; nil for batches.
func (k *Consumer) handler() (Handler, error) {
	switch {
	case k.Handler == nil && k.Batch.Handler == nil:
		return nil, errors.New("redrive: Consumer.Handler is nil, and so is Consumer.Batch.Handler: set one of them")
	case k.Handler != nil && k.Batch.Handler != nil:
		return nil, errors.New("redrive: Consumer.Handler and Consumer.Batch.Handler are both set: set one of them")
	case k.Handler == nil && len(k.Middleware) > 0:
		return nil, errors.New("redrive: Consumer.Middleware wraps Consumer.Handler, and Consumer.Batch is set: wrap Batch.Handler yourself")
	}
	h := k.Handler
	for i := len(k.Middleware) - 1; i >= 0; i-- {
		if k.Middleware[i] == nil {
			return nil, fmt.Errorf("redrive: Consumer.Middleware[%d] is nil", i)
		}
		if h = k.Middleware[i](h); h == nil {
			return nil, fmt.Errorf("redrive: Consumer.Middleware[%d] returned a nil Handler", i)
		}
	}
	return h, nil
}
