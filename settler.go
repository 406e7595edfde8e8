package redrive

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/hint"
)

// Settler settles deliveries for programs that keep an amqp091-go loop of their own. Make
// one with Client.NewSettler. It is safe for concurrent use, one delivery each.
type Settler struct {
	acknowledger *acknowledger
}

var errZeroSettler = hint.Errorf("make one with Client.NewSettler", "redrive: the Settler is nil or its zero value")

// NewSettler makes a Settler for one queue, which lasts until Client.Close. It declares what
// consumer.Wait needs in RabbitMQ, for as long as it takes or until ctx ends. Of consumer,
// Queue, Policy, Wait and Retry are used. Its errors are those with which Consume cannot
// begin.
func (c *Client) NewSettler(ctx context.Context, consumer Consumer) (*Settler, error) {
	if c == nil || c.publish == nil {
		return nil, errZero
	}
	if err := errors.Join(consumer.validateSettings(), consumer.validateVerify(c.config.Verify)); err != nil {
		return nil, err
	}
	if !c.enter() {
		return nil, errClosed
	}
	defer c.consumers.Done()
	s := c.newAcknowledger(consumer)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(c.consumeCtx, func() { stop(errClosed) })()
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	return &Settler{s}, nil
}

// Message returns a delivery as a Handler would see it. It returns nil for a nil d.
func (s *Settler) Message(d *amqp.Delivery) *Message {
	if s == nil || s.acknowledger == nil || d == nil {
		return nil
	}
	m := message(d, s.acknowledger.consumer.Queue, s.acknowledger.limits.QueueCounts)
	s.acknowledger.checkEarly(m)
	return m
}

// Settle ends an attempt as a Handler's return of failure does: with nil it acknowledges d;
// otherwise it publishes the message to where it waits for its next attempt, or is parked,
// waits for RabbitMQ's confirm until ctx ends, and then acknowledges d. On an error d is
// not acknowledged, and RabbitMQ will deliver it again; if the Outcome is Unacknowledged,
// the copy exists all the same.
func (s *Settler) Settle(ctx context.Context, d *amqp.Delivery, failure error) (Outcome, error) {
	switch {
	case s == nil || s.acknowledger == nil:
		return Unsettled, errZeroSettler
	case d == nil:
		return Unsettled, errors.New("redrive: Settle needs a delivery")
	case failure == nil:
		return outcomeOf(Succeeded, Unsettled, d.Ack(false))
	}
	return s.acknowledger.acknowledge(ctx, d, s.Message(d), "", s.acknowledger.classify(failure))
}
