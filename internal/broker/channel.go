package broker

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// onChannel runs do on a channel of its own, which an error closes.
func onChannel(conn *amqp.Connection, do func(*amqp.Channel) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("%w: %w", wire.ErrNoAnswer, explain(err))
	}
	err = do(ch)
	_ = ch.Close()
	return explain(err)
}

// untilEnd runs do, and abandons it when ctx ends first: RabbitMQ reads nothing from a connection
// that an alarm blocks, so it answers nothing either. What an abandoned do returns is passed to
// late, if that is not nil.
func untilEnd[T any](ctx context.Context, do func() (T, error), late func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() { // ends with its connection at the latest
		value, err := do()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
	}
	if late != nil {
		go func() { // as the one above
			if r := <-done; r.err == nil {
				late(r.value)
			}
		}()
	}
	var none T
	return none, ctx.Err()
}

// queueState returns how many consumers and ready messages a queue has, or the error of one that
// does not exist.
func queueState(ch *amqp.Channel, name string) (amqp.Queue, error) {
	return ch.QueueDeclarePassive(name, true, false, false, false, nil)
}

// stateOf is queueState on a channel of its own.
func stateOf(conn *amqp.Connection, name string) (q amqp.Queue, err error) {
	err = onChannel(conn, func(ch *amqp.Channel) error {
		q, err = queueState(ch, name)
		return err
	})
	return q, err
}
