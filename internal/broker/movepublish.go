package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// send publishes a batch in order, and returns when all of it is confirmed and none of it was
// returned.
func (m *Mover) send(ctx context.Context, exchange string, batch []amqp.Delivery) error {
	pending := make([]*amqp.DeferredConfirmation, len(batch))
	raws := make([][]byte, len(batch))
	put := func(i int) (err error) {
		m.out.push(raws[i])
		// Mandatory. RabbitMQ alone decides how long it takes: there is no timeout here.
		pending[i], err = m.publish.PublishWithDeferredConfirm(exchange, batch[i].RoutingKey, true, false, amqp.Publishing{Body: batch[i].Body})
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
		if raws[i] = raw; put(i) != nil {
			return m.closed()
		}
	}
	// A batch that was begun is finished, unless RabbitMQ does not answer: under an alarm that
	// may take hours.
	waiting, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeLimit, giveUp) })()
	for i := range batch {
		for wait := minReconnectWait; ; wait = min(2*wait, maxReconnectWait) {
			acked, err := pending[i].WaitContext(waiting)
			if acked {
				break
			}
			if err != nil || m.publish.IsClosed() {
				return m.closed()
			}
			select {
			case <-ctx.Done():
				return errFull
			case <-time.After(wait):
			}
			if put(i) != nil {
				return m.closed()
			}
		}
	}
	select {
	case <-m.seen:
	case <-m.ended:
	}
	if m.returned {
		return errGone
	}
	return nil
}

func (m *Mover) closed() error {
	return errors.New("the connection that publishes has ended")
}
