package broker

import (
	"context"
	"errors"
	"fmt"
	"net"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/wire"
)

// mostPeekBytes bounds the bodies that RabbitMQ sends for one Peek, and mostPeekDeliveries how often
// a message may have been delivered already: RabbitMQ 4.0 to 4.2 drop a message of a quorum queue at
// its 21st delivery, if it has no dead-letter exchange.
const mostPeekBytes, mostPeekDeliveries = 32 << 20, 10

// Peek shows up to most messages of a queue, from its head on, and requeues them: they are in their
// places again, marked as redelivered. It returns how many messages the queue has, and how many
// consumers.
func Peek(ctx context.Context, c Config, queue string, most int, visit func(*wire.Delivery)) (total, consumers int, err error) {
	var frames *consumingConn
	conn, _, err := dial(ctx, &c, "", func(nc net.Conn) net.Conn {
		frames = newConsumingConn(newCoalescingConn(nc))
		frames.bodies.lift()
		return frames
	})
	if err != nil {
		return 0, 0, err
	}
	defer closeSoon(conn, frames)
	defer context.AfterFunc(ctx, func() { _ = frames.Close() })()
	q, err := stateOf(conn, queue)
	if err != nil {
		return 0, 0, fmt.Errorf("queue %q: %w", queue, err)
	}
	ch, err := conn.Channel()
	if err != nil {
		return 0, 0, explain(err)
	}
	var last uint64
	for n, bytes := 0, 0; n < most && bytes < mostPeekBytes; n++ {
		d, ok, err := ch.Get(queue, false)
		var e *amqp.Error
		if errors.As(err, &e) && e.Code == amqp.NotImplemented {
			err = ErrStream
		}
		if err != nil {
			return 0, 0, fmt.Errorf("queue %q: %w", queue, explain(err))
		}
		if !ok {
			break
		}
		last, bytes = d.DeliveryTag, bytes+len(d.Body)
		visit(&wire.Delivery{Message: Received(&d), Redelivered: d.Redelivered})
		if headers.Deliveries(d.Headers) >= mostPeekDeliveries {
			break
		}
	}
	if last > 0 { // RabbitMQ 4.3 counts a nack less than the end of a channel
		err = ch.Nack(last, true, true)
	}
	if err == nil {
		err = ch.Close() // answered once they are requeued
	}
	return q.Messages, q.Consumers, explain(err)
}
