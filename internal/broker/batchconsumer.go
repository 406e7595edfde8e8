package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/wire"
)

// BatchConsumer consumes one of Redrive's own queues, or a followed queue, in batches, on a connection of its own.
type BatchConsumer struct {
	// Redeclared, if not nil, receives the exchanges and queues that had been deleted and that the consumer declared
	// again. Set it before Run.
	Redeclared func(missing []string)
	// Consumers, if not nil, receives now and then how many consumers the queue has. Set it before Run.
	Consumers func(n int)

	topology   delay.Topology
	declared   bool
	link       link
	queue      string
	prefetch   int
	onState    func(error)
	quarantine func(int) // nil: RabbitMQ quarantines nothing from queue
}

// NewIntakeConsumer returns the consumer of redrive.intake, which holds up to prefetch unacknowledged messages. onState
// receives why a batch cannot be stored, or nil; quarantine, now and then, how many messages are in quarantine.
func NewIntakeConsumer(c Config, prefetch int, onState func(error), quarantine func(int)) *BatchConsumer {
	return &BatchConsumer{link: link{Config: c, reconnectsAtOnce: true}, queue: wire.QueueIntake,
		topology: intakeTopology(), prefetch: prefetch, onState: onState, quarantine: quarantine}
}

func NewParkedConsumer(c Config, prefetch int, onState func(error)) *BatchConsumer {
	return &BatchConsumer{link: link{Config: c}, queue: wire.QueueParked, topology: delay.Parked(), prefetch: prefetch,
		onState: onState}
}

// NewQuarantineConsumer returns the consumer of redrive.quarantine. A message that RabbitMQ cannot deliver there either
// stays, and ends each connection with ErrCrashed.
func NewQuarantineConsumer(c Config, prefetch int, onState func(error)) *BatchConsumer {
	return &BatchConsumer{link: link{Config: c}, queue: wire.QueueQuarantine, topology: quarantineTopology(),
		prefetch: prefetch, onState: onState}
}

// NewFollowingConsumer returns the consumer of a queue that is not Redrive's. It declares nothing.
func NewFollowingConsumer(c Config, queue string, prefetch int, onState func(error)) *BatchConsumer {
	return &BatchConsumer{link: link{Config: c}, queue: queue, prefetch: prefetch, onState: onState}
}

// Handler receives the messages. Connected is called before the first Handle of each connection, and Disconnected after
// the last. A batch is acknowledged when Handle returns nil; after an error Handle is called again with it.
type Handler interface {
	Connected(ctx context.Context) error
	Disconnected()
	Handle(ctx context.Context, batch []wire.Delivery) error
}

// Run consumes messages, in batches of what has arrived, until ctx ends and the batch under way is finished. It returns
// an error only when connecting again cannot succeed.
func (c *BatchConsumer) Run(ctx context.Context, handler Handler) error {
	var frames *consumingConn
	wrap := func(c net.Conn) net.Conn {
		frames = newBufferedConsumingConn(c)
		return frames
	}
	return c.link.keep(ctx, wrap, func(ctx context.Context, conn *amqp.Connection) error {
		return c.consume(ctx, conn, frames, handler)
	})
}

func (c *BatchConsumer) consume(
	ctx context.Context, conn *amqp.Connection, frames *consumingConn, handler Handler,
) error {
	crashed := errors.Is(c.link.now().Err, ErrCrashed)
	// After a crash all is declared: consume at once, so that RabbitMQ soon quarantines the message that it crashed at.
	if !crashed {
		if err := c.declare(conn); err != nil {
			return err
		}
	}
	ch, err := conn.Channel()
	if err != nil {
		return explain(err)
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	// RabbitMQ cancels a consumer when its queue is deleted or moves. A late acknowledgement on that channel would make
	// the dead consumer take messages again, so close the connection; the next one declares what is missing.
	cancelled := ch.NotifyCancel(make(chan string, 1))
	if err := handler.Connected(ctx); err != nil {
		return err
	}
	connectedOnce := sync.OnceFunc(func() { c.link.observe(State{Connected: true}) })
	watchCtx, stopWatching := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		err := c.watch(watchCtx, conn, connectedOnce)
		if err != nil && watchCtx.Err() == nil && !conn.IsClosed() { // the next connection tries to declare it
			c.link.observe(State{Connected: true, Err: err})
			closeSoon(conn, frames)
		}
	})
	ctx, end := context.WithCancelCause(ctx)
	over := make(chan struct{})
	watching.Go(func() { end(c.whyEnded(ctx, conn, closed, cancelled, over)) })
	defer func() {
		stopWatching()
		end(nil)
		handler.Disconnected()  // first, since closing may take seconds
		closeSoon(conn, frames) // does not wait for a broker that hangs
		watching.Wait()
	}()
	// After a crash RabbitMQ may crash again at the same message, a hundred times: report the state only when the
	// connection has been up for a while.
	consuming := connectedOnce
	if crashed {
		consuming = func() {}
	}
	for prefetch := 1; ; prefetch = min(windowGrowth*prefetch, c.prefetch) {
		again, err := c.consumeWindow(ctx, conn, ch, frames, handler, prefetch, consuming)
		if err != nil {
			return err
		}
		if !again {
			close(over)
			<-ctx.Done() // then its cause is set
			return takenBack(ctx)
		}
	}
}

// whyEnded waits until RabbitMQ ends the channel or the consumer, as after consumer_timeout, and returns why: RabbitMQ
// then redelivers unacknowledged messages. A deleted queue redelivers nothing, so whyEnded then waits for over, while
// the consumer stores what it has. It returns nil when ctx ends.
func (c *BatchConsumer) whyEnded(
	ctx context.Context, conn *amqp.Connection, closed <-chan *amqp.Error, cancelled <-chan string,
	over <-chan struct{},
) error {
	var e *amqp.Error
	select {
	case <-ctx.Done():
	case e = <-closed:
	case _, is := <-cancelled:
		if !is {
			e = <-closed
			break
		}
		if _, err := stateOf(conn, c.queue); errors.Is(err, wire.ErrQueueGone) {
			select {
			case <-over:
			case <-ctx.Done():
			}
			return takenBackError{fmt.Errorf("RabbitMQ cancelled the consumer of %s: %w", c.queue, err)}
		}
		return takenBackError{fmt.Errorf("RabbitMQ cancelled the consumer of %s, which is still there: it has moved "+
			"to another node, or its messages were not stored within RabbitMQ's consumer_timeout", c.queue)}
	}
	if e == nil || conn.IsClosed() {
		return nil
	}
	return takenBackError{explain(e)}
}

// takenBackError is logged instead of the connection's error: RabbitMQ 4.3 may not answer for seconds after it has
// cancelled a quorum queue's consumer, so we close without its answer.
type takenBackError struct{ error }

func (e takenBackError) Unwrap() error { return e.error }

// takenBack returns why RabbitMQ redelivers unacknowledged messages, or nil at the end of connection or service.
func takenBack(ctx context.Context) error {
	if why := context.Cause(ctx); !errors.Is(why, context.Canceled) {
		return why
	}
	return nil
}

// windowGrowth is the factor from one window to the next: large, since each step waits until nothing is outstanding.
const windowGrowth = 8

// consumeWindow consumes until the connection ends or, below the largest prefetch, until that many messages have been
// unacknowledged at once: then again asks for a larger window. Small ones come first because each message that is
// unacknowledged when a connection ends counts as a failed delivery, see DeliveryLimit.
func (c *BatchConsumer) consumeWindow(
	ctx context.Context, conn *amqp.Connection, ch *amqp.Channel, frames *consumingConn, handler Handler,
	prefetch int, consuming func(),
) (again bool, err error) {
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return false, explain(err)
	}
	consumer := fmt.Sprint(c.link.Name, " ", prefetch)
	deliveries, err := ch.ConsumeWithContext(context.WithoutCancel(ctx), c.queue, consumer, false, false, false,
		false, nil)
	if err != nil {
		return false, fmt.Errorf("consuming %s: %w", c.queue, explain(err))
	}
	consuming()
	g := &batcher{deliveries: bufferDeliveries(deliveries, maxBatch), frames: frames, ch: ch, tag: consumer}
	defer func() {
		if !again {
			g.close(conn)
		}
	}()
	var last uint64 // delivery tag: up to here messages are stored and not acknowledged
	for outstanding, more := 0, true; more; {
		var batch []wire.Delivery
		var tag uint64
		if batch, tag, more = g.next(ctx); len(batch) > 0 {
			ackStored := func() { // what is stored; otherwise it waits behind a batch that cannot be
				if outstanding > 0 {
					_ = ch.Ack(last, true) // store notices if the connection has ended
				}
				outstanding = 0
			}
			if err := c.store(ctx, handler, batch, ackStored); err != nil {
				return false, err
			}
			last = tag
			outstanding += len(batch)
		}
		full := outstanding == prefetch && prefetch < c.prefetch
		if full {
			// Nothing is being delivered now that a cancel would have marked as redelivered.
			if err := ch.Cancel(consumer, false); err != nil {
				return false, fmt.Errorf("widening the window: %w", explain(err))
			}
			again = true
		}
		fillsUp := prefetch < c.prefetch && !full && more && g.hasMore()
		if outstanding > 0 && !fillsUp {
			if err := acknowledge(ctx, ch, last, outstanding); err != nil {
				return false, err
			}
			outstanding = 0
		}
	}
	return again && ctx.Err() == nil, nil
}

// acknowledge acknowledges n stored messages. RabbitMQ redelivers those it has taken back: they are stored twice.
func acknowledge(ctx context.Context, ch *amqp.Channel, last uint64, n int) error {
	why := takenBack(ctx)
	if why == nil {
		if why = ch.Ack(last, true); why == nil {
			return nil
		}
		<-ctx.Done() // the channel has ended
		why = cmp.Or(takenBack(ctx), explain(why))
	}
	return fmt.Errorf("%d messages were stored too late to acknowledge them: RabbitMQ delivers them again, and they "+
		"are retried twice, with the same x-redrive-id: %w", n, why)
}

// watch reads the state of queues every watchEvery, and each redeclareEvery times checks that all that was declared
// still exists.
const watchEvery, redeclareEvery = time.Second, 3

// lostAfter is how many looks in a row, every redeclareEvery seconds, find no consumer before it counts as lost: there
// is none for a moment while the window widens.
const lostAfter = 3

// errConsumerLost: a busy RabbitMQ 3.10 does not always cancel the consumers of a quorum queue that somebody deletes.
var errConsumerLost = errors.New("RabbitMQ has ended the consumer without a word")

// watch reports on the queues, declares again what somebody deletes, and calls connectedOnce when the connection has
// been up for a while, until ctx ends, something cannot be declared or the consumer is lost.
func (c *BatchConsumer) watch(ctx context.Context, conn *amqp.Connection, connectedOnce func()) error {
	for n, lost := 1, 0; ; n++ {
		if c.quarantine != nil {
			if q, err := stateOf(conn, wire.QueueQuarantine); err == nil {
				c.quarantine(q.Messages)
			}
		}
		if c.Consumers != nil {
			if q, err := stateOf(conn, c.queue); err == nil {
				c.Consumers(q.Consumers)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
			connectedOnce()
		}
		if n%redeclareEvery == 0 {
			if err := c.declare(conn); err != nil {
				return err
			}
			if q, err := stateOf(conn, c.queue); err != nil || q.Consumers > 0 {
				lost = 0
			} else if lost++; lost == lostAfter {
				return fmt.Errorf("consuming %s: %w", c.queue, errConsumerLost)
			}
		}
	}
}

const minStoreWait, maxStoreWait = 250 * time.Millisecond, 2 * time.Second

// store calls the handler until it has stored the batch, or nothing can be acknowledged any more. It calls failed each
// time that the handler fails.
func (c *BatchConsumer) store(ctx context.Context, handler Handler, batch []wire.Delivery, failed func()) error {
	for wait := minStoreWait; ; wait = min(2*wait, maxStoreWait) {
		// Finish the batch even when the service stops, so that RabbitMQ need not deliver it again.
		err := handler.Handle(context.WithoutCancel(ctx), batch)
		c.onState(err)
		if err == nil {
			return nil
		}
		failed()
		select {
		case <-ctx.Done():
			return cmp.Or(takenBack(ctx), err)
		case <-time.After(wait):
		}
	}
}

const (
	maxBatch   = 512
	batchBytes = 8 << 20
)

// batcher makes batches of the deliveries that have arrived: one message when there is one, hundreds in a storm.
type batcher struct {
	deliveries <-chan amqp.Delivery
	frames     *consumingConn
	ch         *amqp.Channel
	tag        string
	batch      []wire.Delivery
	ahead      *amqp.Delivery
}

// bufferDeliveries passes deliveries on through a buffer of n, until the client closes them: amqp091-go passes them on
// one by one, so that without a buffer every batch would be of one message.
func bufferDeliveries(deliveries <-chan amqp.Delivery, n int) <-chan amqp.Delivery {
	arrived := make(chan amqp.Delivery, n)
	go func() { // its caller receives until arrived is closed
		defer close(arrived)
		for d := range deliveries {
			arrived <- d
		}
	}()
	return arrived
}

func (b *batcher) hasMore() bool { return b.ahead != nil || len(b.deliveries) > 0 }

// next waits for a message and adds those that have arrived. more is false when there will be no other batch.
func (b *batcher) next(ctx context.Context) (batch []wire.Delivery, last uint64, more bool) {
	if ctx.Err() != nil {
		return nil, 0, false // RabbitMQ delivers messages of a dead connection again
	}
	clear(b.batch) // frees the bodies
	b.batch = b.batch[:0]
	bytes := 0
	add := func(d *amqp.Delivery) {
		b.batch = append(b.batch, b.frames.delivery(d))
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

func (b *batcher) close(conn *amqp.Connection) {
	b.frames.bodies.lift()
	var draining sync.WaitGroup
	draining.Go(func() { drain(b.deliveries) })
	// Cancel the consumer first: a connection that closes right after many acknowledgements can undo some, and RabbitMQ
	// delivers those messages again. [seen on 3.10.8 and 4.3.6]
	force := time.AfterFunc(2*time.Second, func() { _ = b.frames.Close() })
	_ = b.ch.Cancel(b.tag, false)
	force.Stop()
	closeSoon(conn, b.frames)
	draining.Wait()
}

// byteLimit counts bytes of bodies that were read and are in no batch yet.
type byteLimit struct {
	mu       sync.Mutex
	changed  sync.Cond
	buffered int
	idle     bool // the consumer waits for a message, which may be larger than the limit
	lifted   bool // there is no limit
}

const maxBuffered = 32 << 20

// add counts n bytes that were read, and waits while there are too many. It reports whether it waited.
func (l *byteLimit) add(n int) (waited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buffered += n
	for l.buffered > maxBuffered && !l.idle && !l.lifted {
		waited = true
		l.changed.Wait()
	}
	return waited
}

func (l *byteLimit) remove(n int) { l.change(func() { l.buffered -= n }) }

func (l *byteLimit) setIdle(yes bool) { l.change(func() { l.idle = yes }) }

func (l *byteLimit) bound() { l.change(func() { l.buffered, l.lifted = 0, false }) }

// lift ends the limit, and the wait of add.
func (l *byteLimit) lift() { l.change(func() { l.lifted = true }) }

func (l *byteLimit) change(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
	l.changed.Signal() // one goroutine reads
}
