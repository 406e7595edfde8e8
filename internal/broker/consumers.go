package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// consumersTimeout is how long RabbitMQ may take to count the consumers of one queue: of one
// without a leader it does not answer at all.
const consumersTimeout = 10 * time.Second

// errRefused: RabbitMQ has closed the channel over one queue, see refusesQueue.
var errRefused = errors.New("RabbitMQ refuses to count the consumers")

// Consumers passes the consumers and ready messages of each queue to visit, and -1 and 0 where
// RabbitMQ does not answer it: since the queue is gone, exclusive to another connection, crashed, or without a
// leader. It declares queues passively, on a channel of its own, which RabbitMQ closes over such
// a queue. They need no permission on 3.10, and any permission for the queue on 4.3: the write
// permission that BindRetryExchange needs is enough. [measured on 3.10.8 and 4.3.6] Safe for
// concurrent use.
func (p *Publisher) Consumers(ctx context.Context, queues []string, visit func(queue string, consumers, ready int)) error {
	queues = slices.DeleteFunc(slices.Clone(queues), func(q string) bool {
		impossible := canExist(q) != nil
		if impossible {
			visit(q, -1, 0)
		}
		return impossible
	})
	for len(queues) > 0 {
		remaining, answers := queues, make(chan amqp.Queue, len(queues)) // all that an abandoned count shares
		countCtx, cancel := context.WithTimeout(ctx, consumersTimeout)
		err := p.onChannel(countCtx, func(ch *amqp.Channel) error {
			for _, q := range remaining {
				is, err := queueState(ch, q)
				switch {
				case refusesQueue(err):
					answers <- amqp.Queue{Consumers: -1}
					return fmt.Errorf("%w: %v", errRefused, err)
				case err != nil:
					return err
				}
				answers <- is
			}
			return nil
		})
		late := countCtx.Err() != nil // cancel sets it too
		cancel()
		for range len(answers) {
			is := <-answers
			visit(queues[0], is.Consumers, is.Messages)
			queues = queues[1:]
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return err
		case errors.Is(err, errRefused):
		case late && p.Ready() && len(queues) > 0:
			visit(queues[0], -1, 0)
			queues = queues[1:]
		default:
			return fmt.Errorf("%w: %v", wire.ErrNoAnswer, err)
		}
	}
	return nil
}

// refusesQueue tells whether RabbitMQ has closed the channel over the queue, or the connection,
// which it does over a queue that crashes.
func refusesQueue(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Server && (!connectionEnded(e) || e.Code == amqp.InternalError)
}
