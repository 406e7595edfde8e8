package redrive

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Settler is for those who keep their own amqp091-go loop: it does with a delivery
// what its attempt's error asks for. Make it with NewSettler, and Close it.
type Settler struct {
	settler *settler
	stop    func()
}

// NewSettler makes what the way needs in RabbitMQ and connects, for as long as it
// takes or until ctx ends. Config's Concurrency, Prefetch, Timeout and Shutdown
// mean nothing to it. Its connection is its own, for publishing alone: an alarm of
// RabbitMQ's stops reading from those, their acknowledgements too.
func NewSettler(ctx context.Context, c Config) (*Settler, error) {
	consumer, err := NewConsumer(c)
	if err != nil {
		return nil, err
	}
	stop, err := consumer.settler.start(ctx)
	if err != nil {
		return nil, err
	}
	return &Settler{consumer.settler, stop}, nil
}

// Message is a delivery as a Handler would see it.
func (s *Settler) Message(d *amqp.Delivery) *Message {
	m := message(d, s.settler.queue, s.settler.limits.Linear)
	s.settler.came(m)
	return m
}

// Settle ends an attempt: with a nil error d is acknowledged; otherwise it is
// handed over to where it waits for the next one, or to the parking lot, and then
// acknowledged. It waits for RabbitMQ's confirm until ctx ends. On an error d is
// not acknowledged, and RabbitMQ will deliver it again; with Unacknowledged the copy
// exists all the same. Safe for concurrent use, one delivery each.
func (s *Settler) Settle(ctx context.Context, d *amqp.Delivery, failure error) (Outcome, error) {
	if failure == nil {
		return ended(Succeeded, Unsettled, d.Ack(false))
	}
	return s.settler.settle(ctx, d, s.Message(d), "", s.settler.read(failure))
}

// Close ends the connection. Call it when no Settle is under way.
func (s *Settler) Close() { s.stop() }
