package broker

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// adoptWindow is one window of an Adopter: up to n messages, those that are there, or at least one. The
// consumer is cancelled before they are acknowledged, so that no other message is unacknowledged at
// that moment.
type adoptWindow struct {
	*Adopter
	ch   *amqp.Channel
	with Adopting
	n    int
	// resolves: it looks for the messages in doubt after a crash. They are acknowledged with the others,
	// which are kept.
	resolves bool
	doubts   Doubts
	held     []wire.Delivery // those that doubts saw

	received, adopted int
	last              uint64 // delivery tag
}

// run adopts the window.
func (w *adoptWindow) run(ctx context.Context, conn *amqp.Connection, frames *consumingConn) (err error) {
	if err := w.ch.Qos(w.n, 0, false); err != nil {
		return explain(err)
	}
	w.windows++
	tag := fmt.Sprint(w.link.Name, " ", w.windows)
	deliveries, err := w.ch.ConsumeWithContext(context.WithoutCancel(ctx), w.queue, tag, false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consuming %s: %w", w.queue, explain(err))
	}
	w.largest /= 2
	g := newBatcher(deliveries, frames, w.ch, tag)
	cancelled := make(chan error, 1)
	cancelling := false
	defer func() {
		if err != nil || !cancelling {
			g.drain(conn)
		}
	}()
	for more := true; more; {
		var batch []wire.Delivery
		if batch, more, err = w.next(ctx, g, cancelling); err != nil {
			return err
		}
		if err := w.take(ctx, conn, batch); err != nil {
			return err
		}
		if !cancelling && w.isFull(g, len(batch)) {
			cancelling, more = true, true
			go func() { cancelled <- w.ch.Cancel(tag, false) }() // it ends with the channel
		}
	}
	if !cancelling {
		return endOf(ctx, w.queue)
	}
	if err := <-cancelled; err != nil {
		return explain(err)
	}
	return w.acknowledge(ctx)
}

// next returns what has arrived. A window that resolves waits for a while, since it ends where nothing
// more arrives.
func (w *adoptWindow) next(ctx context.Context, g *batcher, cancelling bool) (batch []wire.Delivery, more bool, err error) {
	waiting := ctx
	if w.received > 0 { // what has begun is finished
		waiting = context.WithoutCancel(ctx)
	}
	if w.resolves && !cancelling {
		var stop context.CancelFunc
		waiting, stop = context.WithTimeout(waiting, adoptWait)
		defer stop()
	}
	batch, last, more := g.next(waiting)
	if len(batch) > 0 {
		w.last = last
	}
	if w.received == 0 && ctx.Err() != nil && len(batch) == 0 {
		return nil, false, ctx.Err()
	}
	return batch, more, nil
}

// isFull tells whether the window takes no more: got is how many messages have just arrived.
func (w *adoptWindow) isFull(g *batcher, got int) bool {
	if w.resolves {
		return w.received == w.n || got == 0 || w.doubts.Left() == 0 && !g.hasMore()
	}
	return got > 0 && (w.received == w.n || !g.hasMore())
}

// take keeps a batch, but for messages that are kept already, or may be.
func (w *adoptWindow) take(ctx context.Context, conn *amqp.Connection, batch []wire.Delivery) error {
	if len(batch) == 0 {
		return nil
	}
	if w.received == 0 {
		if err := w.refuseStream(conn, &batch[0]); err != nil {
			return err
		}
	}
	w.received += len(batch)
	fresh := batch
	if w.resolves {
		fresh = nil
		for i := range batch {
			if w.doubts.Saw(&batch[i]) {
				w.held = append(w.held, batch[i])
			} else {
				fresh = append(fresh, batch[i])
			}
		}
	}
	return w.store(ctx, fresh)
}

func (w *adoptWindow) store(ctx context.Context, batch []wire.Delivery) error {
	if len(batch) == 0 {
		return nil
	}
	if err := w.keep(ctx, w.with, batch); err != nil {
		return err
	}
	for i := range batch {
		w.largest = max(w.largest, len(batch[i].Message.Body))
	}
	w.adopted += len(batch)
	return nil
}

// acknowledge keeps what was held and turned out to be another message, and acknowledges all.
func (w *adoptWindow) acknowledge(ctx context.Context) error {
	if w.resolves {
		var others []wire.Delivery
		for i, kept := range w.doubts.AreKept() {
			if !kept {
				others = append(others, w.held[i])
			}
		}
		if err := w.store(ctx, others); err != nil {
			return err
		}
		w.held = nil
	}
	if w.received > 0 {
		if err := w.ch.Ack(w.last, true); err != nil {
			return fmt.Errorf("acknowledging: %w", explain(err))
		}
		if err := w.ch.Qos(1, 0, false); err != nil { // is answered after the acknowledgement was received
			return explain(err)
		}
	}
	return w.with.Acknowledged(context.WithoutCancel(ctx))
}
