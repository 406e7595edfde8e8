package broker

import (
	"context"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

const (
	batchMost  = 512
	batchBytes = 8 << 20
)

// gathering makes batches of whatever has arrived, so that their size follows
// the load: one message when there is one, hundreds in a storm.
type gathering struct {
	deliveries <-chan amqp.Delivery
	repairing  *intakeConn
	ch         *amqp.Channel
	tag        string
	batch      []wire.Delivery
	ahead      *amqp.Delivery // did not fit the last batch
}

// gather lets deliveries pile up while a batch is being taken: amqp091-go hands
// them over one by one, so that without it every batch would be of one message.
func gather(deliveries <-chan amqp.Delivery, repairing *intakeConn, ch *amqp.Channel, tag string) *gathering {
	arrived := make(chan amqp.Delivery, batchMost)
	go func() { // ends when the client closes deliveries; drain waits for it
		defer close(arrived)
		for d := range deliveries {
			arrived <- d
		}
	}()
	return &gathering{deliveries: arrived, repairing: repairing, ch: ch, tag: tag}
}

// waiting tells whether next would not wait.
func (g *gathering) waiting() bool { return g.ahead != nil || len(g.deliveries) > 0 }

// next waits for a message and adds those that are there already. more is false
// when there will be no other batch.
func (g *gathering) next(ctx context.Context) (batch []wire.Delivery, last uint64, more bool) {
	if ctx.Err() != nil {
		return nil, 0, false // what a dead connection left behind will be delivered again
	}
	clear(g.batch) // or their bodies stay in memory until as many messages have come
	g.batch = g.batch[:0]
	bytes := 0
	add := func(d *amqp.Delivery) {
		m := g.repairing.repairedHeaders(d.ConsumerTag, d.DeliveryTag)
		g.batch = append(g.batch, wire.Delivery{Message: Received(d), From: d.Exchange, Redelivered: d.Redelivered,
			Note: m.note, Unreadable: m.unreadable, Doubled: m.doubled})
		last = d.DeliveryTag
		bytes += len(d.Body)
		g.repairing.gate.taken(len(d.Body))
	}
	if g.ahead != nil {
		add(g.ahead)
		g.ahead = nil
	} else {
		g.repairing.gate.waiting(true)
		select {
		case <-ctx.Done():
			return nil, 0, false
		case d, ok := <-g.deliveries:
			g.repairing.gate.waiting(false)
			if !ok {
				return nil, 0, false
			}
			add(&d)
		}
	}
	for len(g.batch) < batchMost {
		select {
		case d, ok := <-g.deliveries:
			if !ok {
				return g.batch, last, false
			}
			if bytes+len(d.Body) > batchBytes {
				g.ahead = &d
				return g.batch, last, true
			}
			add(&d)
		default:
			return g.batch, last, true
		}
	}
	return g.batch, last, true
}

// drain lets amqp091-go close: it waits for its deliveries to be received.
func (g *gathering) drain(conn *amqp.Connection) {
	g.repairing.gate.open()
	var d sync.WaitGroup
	d.Go(func() {
		for range g.deliveries {
		}
	})
	// Cancelled first: a connection that closes right after many acknowledgements
	// can undo some, and what was taken is delivered again. [seen on 3.10.8 and 4.3.6]
	force := time.AfterFunc(2*time.Second, func() { _ = g.repairing.Close() })
	_ = g.ch.Cancel(g.tag, false)
	force.Stop()
	closeSoon(conn, g.repairing)
	d.Wait()
}
