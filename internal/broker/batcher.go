package broker

import (
	"context"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

const (
	maxBatch   = 512
	batchBytes = 8 << 20
)

// batcher makes batches of the deliveries that have arrived, so that their size follows the
// load: one message when there is one, hundreds in a storm.
type batcher struct {
	deliveries <-chan amqp.Delivery
	frames     *consumingConn
	ch         *amqp.Channel
	tag        string
	batch      []wire.Delivery
	ahead      *amqp.Delivery // did not fit the last batch
}

// newBatcher buffers deliveries while a batch is being stored: amqp091-go passes them on one by
// one, so that without a buffer every batch would be of one message.
func newBatcher(deliveries <-chan amqp.Delivery, frames *consumingConn, ch *amqp.Channel, tag string) *batcher {
	arrived := make(chan amqp.Delivery, maxBatch)
	go func() { // ends when the client closes deliveries; drain waits for it
		defer close(arrived)
		for d := range deliveries {
			arrived <- d
		}
	}()
	return &batcher{deliveries: arrived, frames: frames, ch: ch, tag: tag}
}

// hasMore tells whether next would not wait.
func (b *batcher) hasMore() bool { return b.ahead != nil || len(b.deliveries) > 0 }

// next waits for a message and adds those that have arrived already. more is false when there
// will be no other batch.
func (b *batcher) next(ctx context.Context) (batch []wire.Delivery, last uint64, more bool) {
	if ctx.Err() != nil {
		return nil, 0, false // messages of a dead connection are delivered again
	}
	clear(b.batch) // or their bodies stay in memory until as many messages have come
	b.batch = b.batch[:0]
	bytes := 0
	add := func(d *amqp.Delivery) {
		m := b.frames.repairedHeaders(d.ConsumerTag, d.DeliveryTag)
		b.batch = append(b.batch, wire.Delivery{Message: Received(d), Redelivered: d.Redelivered,
			Note: m.note, CannotRepublish: m.cannotRepublish, DuplicateHeader: m.duplicateHeader})
		last = d.DeliveryTag
		bytes += len(d.Body)
		b.frames.bodies.remove(len(d.Body))
	}
	if b.ahead != nil {
		add(b.ahead)
		b.ahead = nil
	} else {
		b.frames.bodies.setIdle(true)
		select {
		case <-ctx.Done():
			return nil, 0, false
		case d, ok := <-b.deliveries:
			b.frames.bodies.setIdle(false)
			if !ok {
				return nil, 0, false
			}
			add(&d)
		}
	}
	for len(b.batch) < maxBatch {
		select {
		case d, ok := <-b.deliveries:
			if !ok {
				return b.batch, last, false
			}
			if bytes+len(d.Body) > batchBytes {
				b.ahead = &d
				return b.batch, last, true
			}
			add(&d)
		default:
			return b.batch, last, true
		}
	}
	return b.batch, last, true
}

// drain closes the connection, and receives its deliveries, for which amqp091-go waits.
func (b *batcher) drain(conn *amqp.Connection) {
	b.frames.bodies.lift()
	var d sync.WaitGroup
	d.Go(func() {
		for range b.deliveries {
		}
	})
	// The consumer is cancelled first: a connection that closes right after many
	// acknowledgements can undo some, and those messages are delivered again. [seen on 3.10.8
	// and 4.3.6]
	force := time.AfterFunc(2*time.Second, func() { _ = b.frames.Close() })
	_ = b.ch.Cancel(b.tag, false)
	force.Stop()
	closeSoon(conn, b.frames)
	d.Wait()
}
