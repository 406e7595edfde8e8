package broker

import (
	"context"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// Taker takes messages from a queue that is not Redrive's, for who adopts it: after all other
// consumers of the queue, on a connection of its own. Its methods are called from one goroutine.
type Taker struct {
	queue string
	conn  *amqp.Connection
	in    *consumingConn
	size  int           // of the next window
	ch    *amqp.Channel // of the window that is not done; nil: there is none
	last  uint64        // its last delivery
}

// takeIdle is how long Take waits for a first message of a queue that has some: its leader may be
// busy, or another consumer has just taken them.
const takeIdle = 2 * time.Second

// NewTaker connects.
func NewTaker(ctx context.Context, c Config, queue string) (*Taker, error) {
	t := &Taker{queue: queue, size: 1}
	var err error
	t.conn, _, err = dial(ctx, &c, "", func(conn net.Conn) net.Conn {
		t.in = newConsumingConn(newCoalescingConn(conn))
		t.in.bodies.lift() // the window is the bound
		return t.in
	})
	return t, explain(err)
}

// Take returns up to n messages, and fewer than there are of large ones; none where the queue has
// none that are ready. They stay unacknowledged until Done, which comes before the next Take. After
// an error the Taker can only be closed: RabbitMQ then puts back what is not acknowledged.
func (t *Taker) Take(ctx context.Context, n int) (batch []wire.Delivery, err error) {
	defer context.AfterFunc(ctx, func() { _ = t.in.Close() })() // a window would be filled first
	ch, err := t.conn.Channel()
	if err != nil {
		return nil, explain(err)
	}
	if q, err := queueState(ch, t.queue); err != nil || q.Messages == 0 {
		_ = ch.Close()
		return nil, explain(err)
	}
	w, err := openMoveWindow(ctx, ch, t.queue, min(n, t.size))
	if err != nil {
		return nil, err
	}
	defer func() { w.close(err) }()
	all, ended := w.nextBatch(ctx, takeIdle)
	if ended {
		return nil, fmt.Errorf("RabbitMQ ended the consumer of queue %q", t.queue)
	}
	if len(all) > 0 {
		all = w.fill(all)
	}
	if err := w.stop(); err != nil {
		return nil, err
	}
	for d := range w.arrived {
		all = append(all, d)
	}
	if len(all) == 0 {
		return nil, ch.Close()
	}
	t.ch, t.last, t.size = ch, all[len(all)-1].DeliveryTag, fittingWindow(all, t.size, maxTaken)
	for i := range all {
		batch = append(batch, t.in.delivery(&all[i]))
	}
	return batch, nil
}

// maxTaken is how many messages a Taker has unacknowledged at most. store.ReceiptsKept must have room
// for them.
const maxTaken = 1024

// Done acknowledges what Take returned. The channel ends with it: what RabbitMQ sent after the
// consumer's end, and the client dropped, is put back.
func (t *Taker) Done() error {
	ch := t.ch
	t.ch = nil
	if err := ch.Ack(t.last, true); err != nil {
		return fmt.Errorf("acknowledging: %w", explain(err))
	}
	if _, err := queueState(ch, t.queue); err != nil { // or the end of the channel could undo it
		return explain(err)
	}
	return explain(ch.Close())
}

// Ready returns how many messages are ready in the queue.
func (t *Taker) Ready() (int, error) {
	q, err := stateOf(t.conn, t.queue)
	return q.Messages, err
}

// Close closes the connection.
func (t *Taker) Close() { closeSoon(t.conn, t.in) }
