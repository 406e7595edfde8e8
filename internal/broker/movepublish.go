package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// send publishes a batch in order, and returns when all of it is confirmed and none of it was
// returned.
func (m *Mover) send(ctx context.Context, exchange string, batch []amqp.Delivery) error {
	pending := make([]*amqp.DeferredConfirmation, len(batch))
	raws := make([][]byte, len(batch))
	put := func(i int) (err error) {
		m.out.push(raws[i])
		// Mandatory. RabbitMQ alone decides how long it takes: there is no timeout here.
		pending[i], err = m.session.publish(&wire.Outgoing{Exchange: exchange, RoutingKey: batch[i].RoutingKey, Message: &wire.Message{Body: batch[i].Body}})
		return err
	}
	for i, d := range batch {
		raw, lost := republishable(m.in.takeRaw(d.DeliveryTag), m.user)
		if len(raw)+propertiesOffset+frameHead+1 > m.sink.Config.FrameSize {
			return fmt.Errorf("a message with the routing key %q: %w", d.RoutingKey, errTooLarge)
		}
		if lost {
			m.LostUserIDs++
		}
		raws[i] = raw
		if err := put(i); err != nil {
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
