package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/hint"
)

var (
	// ErrLocked: somebody else does the same.
	ErrLocked = errors.New("is being moved by another process")
	// ErrNotEmpty and ErrInUse: a queue is not deleted.
	ErrNotEmpty = errors.New("is not empty")
	ErrInUse    = errors.New("has consumers")
	errFull     = errors.New("the new queue takes no more messages (nack): is it full, with overflow reject-publish?")
	errGone     = errors.New("RabbitMQ could not route a message to the new queue: was it deleted?")
	errTooLarge = hint.Errorf("remove it by hand", "its properties and headers are larger than a frame, so that no client can publish it again")
)

// Carrier carries messages from one queue to another as they are, on two
// connections: an alarm stops RabbitMQ reading from one that publishes, and what
// is taken must not hold up the answers about what is published.
type Carrier struct {
	source, sink *amqp.Connection
	in           *intakeConn
	out          *verbatimConn
	outRaw       net.Conn
	publish      *amqp.Channel
	user         string
	seen         chan struct{} // see listen
	returned     bool          // owned by listen, read after a round over seen
	ended        chan struct{}
	// LostUserIDs counts messages whose user-id RabbitMQ would have refused.
	LostUserIDs int
}

// NewCarrier connects. lock is the name of a queue that belongs to this carrier's
// connection while it lasts: ErrLocked when another has it.
func NewCarrier(ctx context.Context, c Config, lock string) (_ *Carrier, err error) {
	k := &Carrier{seen: make(chan struct{}), ended: make(chan struct{}), user: addresses.User(c.URL)}
	k.source, _, err = dial(ctx, &c, "", func(conn net.Conn) net.Conn {
		k.in = newIntakeConn(newGatheringConn(conn))
		k.in.raw = map[uint64][]byte{}
		k.in.gate.open() // the window is the bound
		return k.in
	})
	if err != nil {
		return nil, err
	}
	if err := k.Do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(lock, false, false, true, false, amqp.Table{"x-queue-type": "classic"})
		return err
	}); err != nil {
		closeSoon(k.source, k.in)
		var e *amqp.Error
		if errors.As(err, &e) && e.Code == amqp.ResourceLocked {
			err = ErrLocked
		}
		return nil, err
	}
	sink := c
	sink.Name += " (publishes)"
	k.sink, _, err = dial(ctx, &sink, "", func(conn net.Conn) net.Conn {
		k.outRaw = newGatheringConn(conn)
		k.out = &verbatimConn{Conn: k.outRaw}
		return k.out
	})
	if err != nil {
		closeSoon(k.source, k.in)
		return nil, err
	}
	if k.publish, err = k.sink.Channel(); err == nil {
		err = k.publish.Confirm(false)
	}
	if err != nil {
		close(k.ended)
		k.Close()
		return nil, explain(err)
	}
	// Not buffered: when the client goes on to the ack, the return before it has
	// been received, and a round over seen makes it known.
	returns := k.publish.NotifyReturn(make(chan amqp.Return))
	go k.listen(returns)
	return k, nil
}

// listen ends with the channel that publishes; Close waits for it.
func (k *Carrier) listen(returns <-chan amqp.Return) {
	defer close(k.ended)
	for {
		select {
		case _, ok := <-returns:
			if !ok {
				return
			}
			k.returned = true
		case k.seen <- struct{}{}:
		}
	}
}

// Close ends both connections. What was taken and not acknowledged goes back.
func (k *Carrier) Close() {
	closeSoon(k.sink, k.outRaw)
	<-k.ended
	closeSoon(k.source, k.in)
}

// Do runs what changes exchanges, queues and bindings, on the connection that has
// the lock: without it nothing changes any more.
func (k *Carrier) Do(do func(*amqp.Channel) error) error {
	ch, err := k.source.Channel()
	if err != nil {
		return explain(err)
	}
	defer ch.Close()
	if err := do(ch); err != nil {
		var e *amqp.Error
		if errors.As(err, &e) && e.Code == amqp.ResourceLocked {
			return err
		}
		return explain(err)
	}
	return nil
}

// Depth is how many messages a queue has ready, and how many consumers.
func (k *Carrier) Depth(queue string) (ready, consumers int, err error) {
	err = k.Do(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		ready, consumers = q.Messages, q.Consumers
		return err
	})
	return ready, consumers, err
}

// Carry takes messages from queue and publishes each to exchange, a fanout, with
// the routing key it had. It is acknowledged when it is confirmed, so it is never
// lost; whatever ends this process in between makes a copy of at most most of
// them. carried receives the size of each batch. Carry returns nil when nothing has come for
// idle, or carried wants no more, and leaves nothing outstanding then, nor when ctx
// ends: what goes back to a queue would count as a failed delivery.
//
// For the same reason it begins with one message outstanding.
func (k *Carrier) Carry(ctx context.Context, queue, exchange string, most int, idle time.Duration, carried func(int) (more bool)) error {
	ch, err := k.source.Channel()
	if err != nil {
		return explain(err)
	}
	defer ch.Close()
	k.forgetRaw()
	for window := 1; window > 0; {
		if window, err = k.carryWindow(ctx, ch, queue, exchange, window, most, idle, carried); err != nil {
			return err
		}
	}
	// Each answer about the queue is time in which acknowledgements arrive.
	_, _ = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return ctx.Err()
}

// carryWindow carries with so many outstanding, and tells how many are to be next;
// 0 at the end.
func (k *Carrier) carryWindow(ctx context.Context, ch *amqp.Channel, queue, exchange string, window, most int, idle time.Duration, carried func(int) bool) (next int, err error) {
	if err := ch.Qos(window, 0, false); err != nil {
		return 0, explain(err)
	}
	tag := fmt.Sprint("redrive move ", window)
	// Whoever else consumes the queue comes first.
	deliveries, err := ch.ConsumeWithContext(context.WithoutCancel(ctx), queue, tag, false, false, false, false, amqp.Table{"x-priority": int32(-1)})
	if err != nil {
		return 0, fmt.Errorf("consuming queue %q: %w", queue, explain(err))
	}
	arrived := make(chan amqp.Delivery, window)
	go func() { // ends when the client closes deliveries, which the end below waits for
		defer close(arrived)
		for d := range deliveries {
			arrived <- d
		}
	}()
	defer func() {
		if err != nil {
			_ = ch.Close()
		}
		for range arrived {
		}
	}()
	stopping := false
	stop := func() error {
		if stopping {
			return nil
		}
		stopping = true // what comes before RabbitMQ's answer is carried too
		if err := ch.Cancel(tag, false); err != nil {
			return fmt.Errorf("queue %q: %w", queue, explain(err))
		}
		return nil
	}
	for last := false; ; {
		wait := idle
		if last {
			wait = filling
		}
		batch, ended := pile(ctx, arrived, window, wait, stopping)
		if ended && !stopping {
			return 0, fmt.Errorf("RabbitMQ ended the consumer of queue %q", queue)
		}
		if len(batch) == 0 {
			if ended {
				return next, nil
			}
			if err := stop(); err != nil {
				return 0, err
			}
			continue
		}
		largest := 0
		for _, d := range batch {
			largest = max(largest, len(d.Body))
		}
		// The consumer ends while its window is full, when nothing is under way: a quorum
		// queue delivers after it has confirmed the end, and the client drops that.
		fits := max(1, min(most, widening*window, batchBytes/max(1, largest)))
		if !stopping && (last || fits < window) {
			batch = fill(batch, arrived, window)
		}
		if !stopping && (last || len(batch) == window && fits != window) {
			if !last {
				next = fits
			}
			if err := stop(); err != nil {
				return 0, err
			}
		}
		if err := k.send(ctx, exchange, batch); err != nil {
			return 0, err
		}
		if err := ch.Ack(batch[len(batch)-1].DeliveryTag, true); err != nil {
			return 0, fmt.Errorf("acknowledging: %w", explain(err))
		}
		if !carried(len(batch)) {
			last, next = true, 0
		}
	}
}

// filling is for how long a window that is to be full may get nothing more.
const filling = 50 * time.Millisecond

// fill waits for more until most are there or nothing comes.
func fill(batch []amqp.Delivery, arrived <-chan amqp.Delivery, most int) []amqp.Delivery {
	for len(batch) < most {
		select {
		case d, ok := <-arrived:
			if !ok {
				return batch
			}
			batch = append(batch, d)
		case <-time.After(filling):
			return batch
		}
	}
	return batch
}

// pile takes what has arrived, and waits for the first unless ctx ends or nothing
// comes for idle; both do not count any more when stopping.
func pile(ctx context.Context, arrived <-chan amqp.Delivery, most int, idle time.Duration, stopping bool) (batch []amqp.Delivery, ended bool) {
	done, late := ctx.Done(), time.After(idle)
	if stopping {
		done, late = nil, nil
	}
	select {
	case d, ok := <-arrived:
		if !ok {
			return nil, true
		}
		batch = append(batch, d)
	case <-done:
		return nil, false
	case <-late:
		return nil, false
	}
	for len(batch) < most {
		select {
		case d, ok := <-arrived:
			if !ok {
				return batch, false // said again
			}
			batch = append(batch, d)
		default:
			return batch, false
		}
	}
	return batch, false
}

// send publishes in order and returns when all are confirmed and none came back.
func (k *Carrier) send(ctx context.Context, exchange string, batch []amqp.Delivery) error {
	pending := make([]*amqp.DeferredConfirmation, len(batch))
	raws := make([][]byte, len(batch))
	put := func(i int) (err error) {
		k.out.push(raws[i])
		// Mandatory, and without a limit of time: it is RabbitMQ's, not ours.
		pending[i], err = k.publish.PublishWithDeferredConfirm(exchange, batch[i].RoutingKey, true, false, amqp.Publishing{Body: batch[i].Body})
		return err
	}
	for i, d := range batch {
		raw, lost := republishable(k.in.takeRaw(d.DeliveryTag), k.user)
		if len(raw)+propertiesAt+frameHead+1 > k.sink.Config.FrameSize {
			return fmt.Errorf("a message with the routing key %q: %w", d.RoutingKey, errTooLarge)
		}
		if lost {
			k.LostUserIDs++
		}
		if raws[i] = raw; put(i) != nil {
			return k.closed()
		}
	}
	// What has begun is finished, but for a RabbitMQ that does not answer: under an
	// alarm it may take hours.
	waiting, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeLimit, giveUp) })()
	for i := range batch {
		for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
			acked, err := pending[i].WaitContext(waiting)
			if acked {
				break
			}
			if err != nil || k.publish.IsClosed() {
				return k.closed()
			}
			select {
			case <-ctx.Done():
				return errFull
			case <-time.After(wait):
			}
			if put(i) != nil {
				return k.closed()
			}
		}
	}
	select {
	case <-k.seen:
	case <-k.ended:
	}
	if k.returned {
		return errGone
	}
	return nil
}

func (k *Carrier) closed() error {
	return errors.New("the connection that publishes has ended")
}

// DeleteClassic deletes a classic queue if it is empty and unused, which RabbitMQ
// decides in one step.
func (k *Carrier) DeleteClassic(queue string) error {
	err := k.Do(func(ch *amqp.Channel) error {
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

// DeleteQuorum deletes a quorum queue that nothing is in and no one else consumes.
// RabbitMQ does not check that for quorum queues (540), so this looks itself, and
// consumes the queue meanwhile: what comes between the look and the end is
// delivered here, and carried over.
func (k *Carrier) DeleteQuorum(ctx context.Context, queue, exchange string) error {
	ch, err := k.source.Channel()
	if err != nil {
		return explain(err)
	}
	defer ch.Close()
	k.forgetRaw()
	deliveries, err := ch.Consume(queue, "redrive move", false, false, false, false, amqp.Table{"x-priority": int32(-1)})
	if err != nil {
		return explain(err)
	}
	ready, consumers, err := k.Depth(queue)
	switch {
	case err != nil:
	case consumers > 1:
		err = ErrInUse
	case ready > 0:
		err = ErrNotEmpty
	default:
		err = k.Do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(queue, false, false, false)
			return err
		})
	}
	if err != nil { // what was delivered is carried, or it would go back as a failed delivery
		if cancel := ch.Cancel("redrive move", false); cancel != nil {
			return explain(cancel)
		}
	}
	for d := range deliveries { // RabbitMQ ends them with the queue
		if sent := k.send(ctx, exchange, []amqp.Delivery{d}); sent != nil {
			return sent
		}
		_ = ch.Ack(d.DeliveryTag, false)
	}
	return err
}

// forgetRaw: delivery tags count from one in each channel, and so do the
// properties kept.
func (k *Carrier) forgetRaw() {
	k.in.mu.Lock()
	defer k.in.mu.Unlock()
	k.in.headers = 0
	clear(k.in.raw)
}
