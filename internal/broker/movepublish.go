package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// send publishes a batch in order, and returns when all of it is confirmed and none of it was
// returned.
func (m *Mover) send(ctx context.Context, exchange string, batch []amqp.Delivery) error {
	pending := make([]*amqp.DeferredConfirmation, len(batch))
	messages := make([]*wire.Message, len(batch))
	put := func(i int) (err error) {
		// Mandatory. RabbitMQ alone decides how long it takes: there is no timeout here.
		pending[i], err = m.session.publish(&wire.Outgoing{Exchange: exchange, RoutingKey: batch[i].RoutingKey, Message: messages[i]})
		return err
	}
	for i := range batch {
		var err error
		if messages[i], err = m.republishable(&batch[i]); err == nil {
			err = put(i)
		}
		if errors.Is(err, wire.ErrUnacceptable) {
			err = hint.Errorf("remove it by hand", "a message with the routing key %q: %w", batch[i].RoutingKey, err)
		}
		if err != nil {
			return err
		}
	}
	// A batch that was begun is finished, unless RabbitMQ does not answer: under an alarm that
	// may take hours.
	waiting, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeLimit, giveUp) })()
	for i := range batch {
		for wait := minReconnectWait; ; wait = min(2*wait, maxReconnectWait) {
			err := m.session.answer(waiting, pending[i])
			if err == nil {
				break
			}
			if !errors.Is(err, wire.ErrNacked) {
				return err
			}
			select {
			case <-ctx.Done():
				return errFull
			case <-time.After(wait):
			}
			if err := put(i); err != nil {
				return err
			}
		}
	}
	if m.session.hasReturned() {
		return errGone
	}
	return nil
}

// republishable is a delivery without RabbitMQ's counts of deliveries, which would look as if they
// were of the new queue, and without the user-id of another user, which RabbitMQ would refuse.
func (m *Mover) republishable(d *amqp.Delivery) (*wire.Message, error) {
	if why := m.in.repairedHeaders(d.ConsumerTag, d.DeliveryTag).cannotRepublish; why != "" {
		return nil, fmt.Errorf("%w: %s", wire.ErrUnacceptable, why)
	}
	message := Received(d)
	delete(message.Headers, "x-delivery-count")
	delete(message.Headers, "x-acquired-count")
	if message.UserID != "" && message.UserID != m.user {
		message.UserID = ""
		m.LostUserIDs++
	}
	return &message, nil
}
