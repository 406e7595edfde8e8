package broker

import (
	"context"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// Taker consumes a queue that is being adopted, after its other consumers, on its own connection. Use it
// from one goroutine.
//
// While a window is unacknowledged, nothing else is delivered. Keeping one consumer would be a quarter faster; but
// after a crash nothing would tell which of several equal messages RabbitMQ had acknowledged.
type Taker struct {
	queue string
	conn  *amqp.Connection
	in    *consumingConn
	size  int           // of the next window
	takes int           // so far
	ch    *amqp.Channel // of the window before Done; nil: there is none
	last  uint64        // its last delivery; of a sample, the last of its channel
	// requeues is set while RabbitMQ may be requeueing messages that the last window dropped.
	requeues bool
}

// requeuesWithin is how long RabbitMQ may take to requeue.
const requeuesWithin = 2 * time.Second

// NewTaker connects.
func NewTaker(ctx context.Context, c Config, queue string) (*Taker, error) {
	conn, in, err := dialThrough(ctx, c, newBufferedConsumingConn)
	return &Taker{queue: queue, size: 1, conn: conn, in: in}, explain(err)
}

// maxTaken is how many messages a Taker has unacknowledged at most.
const maxTaken = 1024

// Take returns up to n messages, fewer when they are large, and none when none is ready. Done acknowledges them; call
// it before the next Take. After an error, close the Taker, so that RabbitMQ requeues them.
func (t *Taker) Take(ctx context.Context, n int) (batch []wire.Delivery, err error) {
	defer context.AfterFunc(ctx, func() { _ = t.in.Close() })() // RabbitMQ may not answer
	ch, err := t.conn.Channel()
	if err != nil {
		return nil, explain(err)
	}
	for asked := time.Now(); ; time.Sleep(fillWait) {
		q, err := queueState(ch, t.queue)
		if err == nil && q.Messages > 0 {
			break
		}
		if err != nil || !t.requeues || time.Since(asked) > requeuesWithin {
			_ = ch.Close()
			return nil, explain(err)
		}
	}
	n = min(n, t.size)
	all, err := t.window(ctx, ch, n)
	if err != nil {
		_ = ch.Close()
		return nil, err
	}
	if len(all) == 0 {
		return nil, ch.Close()
	}
	t.requeues = len(all) < n
	t.ch, t.last = ch, all[len(all)-1].DeliveryTag
	return t.delivered(all), nil
}

// delivered converts the messages of a window, and sizes the next window by them.
func (t *Taker) delivered(all []amqp.Delivery) (batch []wire.Delivery) {
	t.size = fittingWindow(all, t.size, maxTaken)
	for i := range all {
		batch = append(batch, t.in.delivery(&all[i]))
	}
	return batch
}

// window receives up to n messages with a consumer of its own. It drops what RabbitMQ delivers beyond that.
func (t *Taker) window(ctx context.Context, ch *amqp.Channel, n int) ([]amqp.Delivery, error) {
	t.takes++
	tag := fmt.Sprint("redrive adopt ", t.takes) // new each time, since it is the key of repairs
	if err := ch.Qos(n, 0, false); err != nil {
		return nil, explain(err)
	}
	t.in.bodies.bound()
	deliveries, err := ch.ConsumeWithContext(context.WithoutCancel(ctx), t.queue, tag, false, false, false, false,
		amqp.Table{"x-priority": int32(-1)})
	if err != nil {
		return nil, fmt.Errorf("consuming queue %q: %w", t.queue, explain(err))
	}
	all, err := t.collect(ctx, ch, deliveries, n)
	if len(all) > 0 {
		t.last = all[len(all)-1].DeliveryTag
	}
	t.in.bodies.lift()
	var dropping sync.WaitGroup
	dropping.Go(func() {
		for d := range deliveries {
			t.last = d.DeliveryTag
		}
	})
	defer dropping.Wait()
	if err != nil {
		_ = ch.Close() // deliveries ends
		return nil, err
	}
	if err := ch.Cancel(tag, false); err != nil {
		return nil, fmt.Errorf("queue %q: %w", t.queue, explain(err))
	}
	return all, nil
}

const (
	maxSampleBytes = 64 << 20 // of bodies, roughly
	requeuedAtOnce = 32
)

// Sample takes up to n messages and puts each back at its place. RabbitMQ marks them as redelivered. In a quorum
// queue, RabbitMQ before 4.3 counts a failed delivery of each; later versions do only if the connection ends first.
func (t *Taker) Sample(ctx context.Context, n int) (batch []wire.Delivery, err error) {
	defer context.AfterFunc(ctx, func() { _ = t.in.Close() })()
	ch, err := t.conn.Channel()
	if err != nil {
		return nil, explain(err)
	}
	for bytes, asked := 0, 0; len(batch) < n && bytes < maxSampleBytes; {
		asked = min(n-len(batch), t.size)
		all, err := t.window(ctx, ch, asked)
		if err != nil {
			_ = ch.Close()
			return nil, err
		}
		for i := range all {
			bytes += len(all[i].Body)
		}
		if batch = append(batch, t.delivered(all)...); len(all) < asked {
			break
		}
	}
	// Requeue a few at a time and wait for the queue. A quorum queue loses the order of more than 32 in one
	// command, and the channel merges commands that wait (RabbitMQ 3.10 and 4.3, TestASampleIsPutBack).
	for tag := uint64(0); tag < t.last; {
		tag = min(tag+requeuedAtOnce, t.last)
		if err := ch.Nack(tag, true, true); err != nil {
			return nil, fmt.Errorf("requeueing: %w", explain(err))
		}
		if _, err := queueState(ch, t.queue); err != nil {
			return nil, explain(err)
		}
	}
	return batch, explain(ch.Close())
}

// Version returns RabbitMQ's version.
func (t *Taker) Version() string { return versionOf(t.conn) }

// collect receives messages until it has n, or batchBytes of bodies, or the queue is empty: it asks twice, see fill.
func (t *Taker) collect(
	ctx context.Context, ch *amqp.Channel, deliveries <-chan amqp.Delivery, n int,
) (all []amqp.Delivery, err error) {
	bytes, empty, arrived := 0, 0, time.Now()
	for len(all) < n && bytes < batchBytes && empty < 2 {
		t.in.bodies.setIdle(true) // otherwise a large body could not be read whole
		select {
		case d, ok := <-deliveries:
			if !ok {
				return nil, fmt.Errorf("RabbitMQ ended the consumer of queue %q", t.queue)
			}
			t.in.bodies.setIdle(false)
			t.in.bodies.remove(len(d.Body))
			all, bytes, empty, arrived = append(all, d), bytes+len(d.Body), 0, time.Now()
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(fillWait):
			q, err := queueState(ch, t.queue)
			switch {
			case err != nil:
				return nil, explain(err)
			case q.Messages == 0:
				empty++
			case time.Since(arrived) > maxStall && len(all) > 0:
				return all, nil
			case time.Since(arrived) > maxStall:
				return nil, fmt.Errorf("queue %q has %d messages and delivers none: it has no leader, or a single "+
					"active consumer", t.queue, q.Messages)
			}
		}
	}
	return all, nil
}

// Done acknowledges what Take returned.
func (t *Taker) Done() error {
	ch := t.ch
	t.ch = nil
	if err := ch.Ack(t.last, true); err != nil {
		return fmt.Errorf("acknowledging: %w", explain(err))
	}
	if _, err := queueState(ch, t.queue); err != nil { // closing the channel at once could undo it
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
