package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

var (
	ErrLocked = hint.New("refused", "is being moved by another process")
	// ErrNotEmpty and ErrInUse say why a queue is not deleted.
	ErrNotEmpty = errors.New("is not empty")
	ErrInUse    = errors.New("has consumers")
	errFull     = errors.New("the new queue takes no more messages (nack): is it full, with overflow reject-publish?")
	errGone     = errors.New("RabbitMQ could not route a message to the new queue: was it deleted?")
)

// Mover moves messages from one queue to another as they are. It consumes and publishes on separate connections.
type Mover struct {
	source, sink *amqp.Connection
	in           *consumingConn
	out          *coalescingConn
	session      *session // of sink
	user         string
	// LostUserIDs counts messages whose user-id RabbitMQ would have refused.
	LostUserIDs int
}

// NewMover connects. It declares the exclusive queue lock; the error is ErrLocked when another process has.
func NewMover(ctx context.Context, c Config, lock string) (_ *Mover, err error) {
	m := &Mover{user: connect.User(c.URL)}
	if m.source, m.in, err = dialThrough(ctx, c, newBufferedConsumingConn); err != nil {
		return nil, err
	}
	m.in.bodies.lift() // its window bounds memory
	if err := m.Do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(lock, false, false, true, false, amqp.Table{"x-queue-type": "classic"})
		var e *amqp.Error
		if errors.As(err, &e) && e.Code == amqp.ResourceLocked {
			err = ErrLocked
		}
		return err
	}); err != nil {
		closeSoon(m.source, m.in)
		return nil, err
	}
	c.Name += " (publishes)"
	if m.sink, m.out, err = dialThrough(ctx, c, newCoalescingConn); err != nil {
		closeSoon(m.source, m.in)
		return nil, err
	}
	if m.session, err = newSession(m.sink); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Close closes both connections. RabbitMQ requeues what is not acknowledged.
func (m *Mover) Close() {
	closeSoon(m.sink, m.out)
	if m.session != nil {
		<-m.session.closed
	}
	closeSoon(m.source, m.in)
}

// Do runs do on the connection that has the lock, so that nothing is changed after the lock is lost.
func (m *Mover) Do(do func(*amqp.Channel) error) error { return onChannel(m.source, do) }

func (m *Mover) BindRetryExchange(queue string) error { return declareOn(m.Do, delay.Retry(queue)) }

func (m *Mover) Depth(queue string) (ready, consumers int, err error) {
	q, err := stateOf(m.source, queue)
	return q.Messages, q.Consumers, err
}

// DeleteClassic deletes a classic queue if it is empty and unused, which RabbitMQ checks in the same step.
func (m *Mover) DeleteClassic(queue string) error {
	err := m.Do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(queue, true, true, false)
		return err
	})
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "in use"):
		return ErrInUse
	case strings.Contains(err.Error(), "not empty"):
		return ErrNotEmpty
	}
	return err
}

// DeleteQuorum deletes a quorum queue that is empty and that no one else consumes. RabbitMQ cannot check that (540), so
// DeleteQuorum does, and consumes and moves what arrives between the check and the deletion. moved counts that,
// whatever the error.
func (m *Mover) DeleteQuorum(ctx context.Context, queue, exchange string) (moved int, err error) {
	ch, err := m.source.Channel()
	if err != nil {
		return 0, explain(err)
	}
	defer ch.Close()
	deliveries, err := ch.Consume(queue, "redrive move", false, false, false, false,
		amqp.Table{"x-priority": int32(-1)})
	if err != nil {
		return 0, explain(err)
	}
	ready, consumers, err := m.Depth(queue)
	switch {
	case err != nil:
	case consumers > 1:
		err = ErrInUse
	case ready > 0:
		err = ErrNotEmpty
	default:
		err = m.Do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(queue, false, false, false)
			return err
		})
	}
	if err != nil { // move what was delivered: requeued, it would count as a failed delivery
		if cancel := ch.Cancel("redrive move", false); cancel != nil {
			return 0, explain(cancel)
		}
	}
	for d := range deliveries { // closed by RabbitMQ with the queue, or by the cancel
		if sent := m.send(ctx, exchange, []amqp.Delivery{d}); sent != nil {
			return moved, sent
		}
		moved++
		_ = ch.Ack(d.DeliveryTag, false)
	}
	return moved, err
}

type move struct {
	queue, exchange string
	maxOutstanding  int // messages
	idle            time.Duration
	moved           func(int) (more bool)
}

// Move consumes queue and publishes each message to exchange, a fanout, with the routing key it had. Each is
// acknowledged when it is confirmed: if this process ends in between, at most maxOutstanding of them are duplicated.
// moved receives the size of each batch.
//
// Move returns nil when nothing has arrived for idle, or moved returns false. Then, and when ctx ends, it leaves
// nothing outstanding, and it begins with one message outstanding: a requeue would count as a failed delivery.
func (m *Mover) Move(
	ctx context.Context, queue, exchange string, maxOutstanding int, idle time.Duration, moved func(int) (more bool),
) error {
	ch, err := m.source.Channel()
	if err != nil {
		return explain(err)
	}
	defer ch.Close()
	do := &move{queue, exchange, maxOutstanding, idle, moved}
	for size := 1; size > 0; {
		if size, err = m.moveWindow(ctx, ch, do, size); err != nil {
			return err
		}
	}
	// Asking about the queue gives the acknowledgements time to arrive.
	_, _ = queueState(ch, queue)
	return ctx.Err()
}

// moveWindow moves messages with at most size outstanding. next is the size of the next window, or 0 at the end.
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
			if q, err := queueState(ch, do.queue); err == nil && q.Messages > 0 && q.Consumers == 1 &&
				time.Since(arrived) < maxStall && ctx.Err() == nil {
				continue
			}
			if err := w.stop(); err != nil {
				return 0, err
			}
			continue
		}
		arrived = time.Now()
		// Cancel the consumer while its window is full and RabbitMQ delivers nothing: a quorum queue also delivers
		// after it has confirmed the cancel, and the client drops that.
		fits := fittingWindow(batch, size, do.maxOutstanding)
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

// fittingWindow returns the size of the next window: larger, as long as bodies like these fit batchBytes.
func fittingWindow(batch []amqp.Delivery, size, limit int) int {
	largest := 1
	for _, d := range batch {
		largest = max(largest, len(d.Body))
	}
	return max(1, min(limit, windowGrowth*size, batchBytes/largest))
}

// moveWindow is a consumer with a prefetch of size, from its start to its end.
type moveWindow struct {
	ch         *amqp.Channel
	queue, tag string
	size       int
	arrived    <-chan amqp.Delivery
	stopping   bool // cancelled; messages that arrive before RabbitMQ's answer are moved too
}

// openMoveWindow consumes queue after all its other consumers.
func openMoveWindow(ctx context.Context, ch *amqp.Channel, queue string, size int) (*moveWindow, error) {
	if err := ch.Qos(size, 0, false); err != nil {
		return nil, explain(err)
	}
	tag := fmt.Sprint("redrive move ", size)
	deliveries, err := ch.ConsumeWithContext(context.WithoutCancel(ctx), queue, tag, false, false, false, false,
		amqp.Table{"x-priority": int32(-1)})
	if err != nil {
		return nil, fmt.Errorf("consuming queue %q: %w", queue, explain(err))
	}
	return &moveWindow{ch: ch, queue: queue, tag: tag, size: size, arrived: bufferDeliveries(deliveries, size)}, nil
}

// stop cancels the consumer. Call it once.
func (w *moveWindow) stop() error {
	w.stopping = true
	if err := w.ch.Cancel(w.tag, false); err != nil {
		return fmt.Errorf("queue %q: %w", w.queue, explain(err))
	}
	return nil
}

// close waits until the deliveries end; after an error it closes the channel first.
func (w *moveWindow) close(err error) {
	if err != nil {
		_ = w.ch.Close()
	}
	drain(w.arrived)
}

const (
	// fillWait is how long fill waits for a message before it asks whether there are any.
	fillWait = 50 * time.Millisecond
	// maxStall is how long a queue that has messages may deliver none: it may deliver to another consumer alone.
	maxStall = 30 * time.Second
)

// fill waits for more messages until the window is full or the queue has none left. It asks twice: RabbitMQ may answer
// before it sends what it has taken from the queue.
func (w *moveWindow) fill(batch []amqp.Delivery) []amqp.Delivery {
	arrived := time.Now()
	for empty := 0; len(batch) < w.size && empty < 2 && time.Since(arrived) < maxStall; {
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

// nextBatch returns what has arrived. It waits for a first message until ctx ends or idle is over; once the window is
// stopping, until the deliveries end.
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

// send publishes a batch in order, and returns when all of it is confirmed and nothing was returned.
func (m *Mover) send(ctx context.Context, exchange string, batch []amqp.Delivery) error {
	pending := make([]*amqp.DeferredConfirmation, len(batch))
	messages := make([]*wire.Message, len(batch))
	put := func(i int) (err error) {
		// Mandatory, without a timeout: RabbitMQ may take as long as it needs.
		pending[i], err = m.session.publish(&wire.Outgoing{Exchange: exchange, RoutingKey: batch[i].RoutingKey,
			Message: messages[i]})
		return err
	}
	for i := range batch {
		var err error
		if messages[i], err = m.republishable(&batch[i]); err == nil {
			err = put(i)
		}
		if errors.Is(err, wire.ErrUnacceptable) {
			err = hint.Errorf("remove it by hand", "a message with the routing key %q: %w", batch[i].RoutingKey, err)
		}
		if err != nil {
			return err
		}
	}
	// Finish the batch when ctx ends, unless RabbitMQ does not answer: under an alarm that may take hours.
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

// republishable returns the message of a delivery without RabbitMQ's delivery counts, and without another user's
// user-id, which RabbitMQ would refuse.
func (m *Mover) republishable(d *amqp.Delivery) (*wire.Message, error) {
	if why := m.in.repairedHeaders(d.ConsumerTag, d.DeliveryTag).cannotRepublish; why != "" {
		return nil, fmt.Errorf("%w: %s", wire.ErrUnacceptable, why)
	}
	message := Received(d)
	delete(message.Headers, "x-delivery-count")
	delete(message.Headers, "x-acquired-count")
	if message.UserID != "" && message.UserID != m.user {
		message.UserID = ""
		m.LostUserIDs++
	}
	return &message, nil
}
