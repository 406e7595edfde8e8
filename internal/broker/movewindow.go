package broker

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// move is one call of Move.
type move struct {
	queue, exchange string
	most            int // messages outstanding
	idle            time.Duration
	moved           func(int) (more bool)
}

// Move consumes queue and publishes each message to exchange, a fanout, with the routing key it
// had. Each is acknowledged when it is confirmed, so none is lost; whatever ends this process
// in between duplicates at most `most` of them. moved receives the size of each batch.
//
// Move returns nil when nothing has arrived for idle, or moved wants no more. It leaves nothing
// outstanding then, nor when ctx ends: what is requeued would count as a failed delivery. For
// the same reason it begins with one message outstanding.
func (m *Mover) Move(ctx context.Context, queue, exchange string, most int, idle time.Duration, moved func(int) (more bool)) error {
	ch, err := m.source.Channel()
	if err != nil {
		return explain(err)
	}
	defer ch.Close()
	do := &move{queue, exchange, most, idle, moved}
	for size := 1; size > 0; {
		if size, err = m.moveWindow(ctx, ch, do, size); err != nil {
			return err
		}
	}
	// Each answer about the queue is time in which acknowledgements arrive.
	_, _ = queueState(ch, queue)
	return ctx.Err()
}

// moveWindow moves messages of which at most size are outstanding. next is the size of the
// window after it; 0 at the end.
func (m *Mover) moveWindow(ctx context.Context, ch *amqp.Channel, do *move, size int) (next int, err error) {
	w, err := openMoveWindow(ctx, ch, do.queue, size)
	if err != nil {
		return 0, err
	}
	defer func() { w.close(err) }()
	arrived := time.Now()
	for last := false; ; {
		wait := do.idle
		if last {
			wait = fillWait
		}
		batch, ended := w.nextBatch(ctx, wait)
		if ended && !w.stopping {
			return 0, fmt.Errorf("RabbitMQ ended the consumer of queue %q", do.queue)
		}
		if len(batch) == 0 {
			if ended {
				return next, nil
			}
			// A quorum queue may stand for more than a second (3.10.8, under load).
			if q, err := queueState(ch, do.queue); err == nil && q.Messages > 0 && q.Consumers == 1 && time.Since(arrived) < standsAtMost && ctx.Err() == nil && !w.stopping {
				continue
			}
			if err := w.stop(); err != nil {
				return 0, err
			}
			continue
		}
		arrived = time.Now()
		// The consumer is cancelled while its window is full, when RabbitMQ delivers nothing: a
		// quorum queue delivers after it has confirmed the cancel, and the client drops that.
		fits := fittingWindow(batch, size, do.most)
		if !w.stopping && (last || fits < size) {
			batch = w.fill(batch)
		}
		if !w.stopping && (last || len(batch) == size && fits != size) {
			if !last {
				next = fits
			}
			if err := w.stop(); err != nil {
				return 0, err
			}
		}
		if err := m.send(ctx, do.exchange, batch); err != nil {
			return 0, err
		}
		if err := ch.Ack(batch[len(batch)-1].DeliveryTag, true); err != nil {
			return 0, fmt.Errorf("acknowledging: %w", explain(err))
		}
		if !do.moved(len(batch)) {
			last, next = true, 0
		}
	}
}

// fittingWindow is the size of the next window: larger than this one, as long as bodies of
// that size fit batchBytes.
func fittingWindow(batch []amqp.Delivery, size, most int) int {
	largest := 1
	for _, d := range batch {
		largest = max(largest, len(d.Body))
	}
	return max(1, min(most, windowGrowth*size, batchBytes/largest))
}

// moveWindow is a consumer with a prefetch of size, from its start to its end.
type moveWindow struct {
	ch         *amqp.Channel
	queue, tag string
	size       int
	arrived    <-chan amqp.Delivery
	stopping   bool // it is cancelled; what arrives before RabbitMQ's answer is moved too
}

// openMoveWindow consumes queue after all its other consumers.
func openMoveWindow(ctx context.Context, ch *amqp.Channel, queue string, size int) (*moveWindow, error) {
	if err := ch.Qos(size, 0, false); err != nil {
		return nil, explain(err)
	}
	tag := fmt.Sprint("redrive move ", size)
	deliveries, err := ch.ConsumeWithContext(context.WithoutCancel(ctx), queue, tag, false, false, false, false, amqp.Table{"x-priority": int32(-1)})
	if err != nil {
		return nil, fmt.Errorf("consuming queue %q: %w", queue, explain(err))
	}
	arrived := make(chan amqp.Delivery, size)
	go func() { // ends when the client closes deliveries, which close waits for
		defer close(arrived)
		for d := range deliveries {
			arrived <- d
		}
	}()
	return &moveWindow{ch: ch, queue: queue, tag: tag, size: size, arrived: arrived}, nil
}

// stop cancels the consumer, once.
func (w *moveWindow) stop() error {
	if w.stopping {
		return nil
	}
	w.stopping = true
	if err := w.ch.Cancel(w.tag, false); err != nil {
		return fmt.Errorf("queue %q: %w", w.queue, explain(err))
	}
	return nil
}

// close waits for the end of the deliveries; after an error it closes the channel first.
func (w *moveWindow) close(err error) {
	if err != nil {
		_ = w.ch.Close()
	}
	for range w.arrived {
	}
}

const (
	// fillWait is how long fill waits for each further message before it asks whether there are any.
	fillWait = 50 * time.Millisecond
	// standsAtMost is how long a queue may deliver nothing although it has messages: it may be one
	// that delivers to another consumer alone.
	standsAtMost = 30 * time.Second
)

// fill waits for more messages until the window is full or the queue has none left. It asks twice:
// RabbitMQ may answer the first time before it sends what it has taken from the queue.
func (w *moveWindow) fill(batch []amqp.Delivery) []amqp.Delivery {
	arrived := time.Now()
	for empty := 0; len(batch) < w.size && empty < 2 && time.Since(arrived) < standsAtMost; {
		select {
		case d, ok := <-w.arrived:
			if !ok {
				return batch
			}
			batch, empty, arrived = append(batch, d), 0, time.Now()
		case <-time.After(fillWait):
			if q, err := queueState(w.ch, w.queue); err != nil || q.Messages == 0 {
				empty++
			}
		}
	}
	return batch
}

// nextBatch returns what has arrived. It waits for the first message, unless ctx ends or none
// arrives for idle; once the window is stopping, it waits for the end of the deliveries alone.
func (w *moveWindow) nextBatch(ctx context.Context, idle time.Duration) (batch []amqp.Delivery, ended bool) {
	done, late := ctx.Done(), time.After(idle)
	if w.stopping {
		done, late = nil, nil
	}
	select {
	case d, ok := <-w.arrived:
		if !ok {
			return nil, true
		}
		batch = append(batch, d)
	case <-done:
		return nil, false
	case <-late:
		return nil, false
	}
	for len(batch) < w.size {
		select {
		case d, ok := <-w.arrived:
			if !ok {
				return batch, false // the next call returns ended
			}
			batch = append(batch, d)
		default:
			return batch, false
		}
	}
	return batch, false
}
