package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/hint"
)

// Subscriber consumes work queues on one connection, each on a channel of its own.
type Subscriber struct {
	link link

	mu      sync.Mutex
	shared  *sharedConn
	changed chan struct{} // closed when shared changes
	last    int           // number in the last consumer tag
	closing sync.WaitGroup
}

// sharedConn is the connection that all queues share, with what repairs the deliveries on it.
type sharedConn struct {
	conn   *amqp.Connection
	frames *consumingConn
}

// NewSubscriber returns a Subscriber, which Run keeps connected.
func NewSubscriber(c Config) *Subscriber {
	return &Subscriber{link: link{Config: c}, changed: make(chan struct{})}
}

type ConsumeOptions struct {
	Queue    string
	Prefetch int // maximum of unacknowledged messages
	Log      *slog.Logger
	Observe  func(consuming bool) // called at each change, by one goroutine
}

type Subscription struct {
	// In closes when the consumer ends, not when its context does. RabbitMQ requeues what is not acknowledged.
	In <-chan amqp.Delivery
	// Ended is closed when nothing delivered can be acknowledged any more.
	Ended <-chan struct{}
	// AwaitAcks waits until RabbitMQ has received the acknowledgements so far: Ack only queues them. It gives up after
	// closeLimit, and is safe for concurrent use.
	AwaitAcks func()
	frames    *consumingConn
}

// CannotRepublish returns why a delivery cannot be published again as it was, or "" if it can. Call it once for each
// delivery.
func (s *Subscription) CannotRepublish(d *amqp.Delivery) string {
	return s.frames.repairedHeaders(d.ConsumerTag, d.DeliveryTag).cannotRepublish
}

// Run connects, and connects again, until ctx ends. By then each Consume must have returned.
func (s *Subscriber) Run(ctx context.Context) error {
	var frames *consumingConn
	wrap := func(c net.Conn) net.Conn {
		frames = newBufferedConsumingConn(c)
		frames.bodies.lift() // the user's prefetch bounds memory
		return frames
	}
	defer s.closing.Wait()
	return s.link.keep(ctx, wrap, func(ctx context.Context, conn *amqp.Connection) error {
		s.use(&sharedConn{conn, frames})
		s.link.observe(State{Connected: true})
		<-ctx.Done() // the connection or Run ends
		s.use(nil)
		return nil
	})
}

func (s *Subscriber) use(now *sharedConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = now
	close(s.changed)
	s.changed = make(chan struct{})
}

// current waits for a connection, until ctx ends, and returns a new consumer tag.
func (s *Subscriber) current(ctx context.Context) (now *sharedConn, consumer string, err error) {
	for {
		s.mu.Lock()
		now, changed := s.shared, s.changed
		s.last++
		consumer = fmt.Sprint("redrive-", s.last)
		s.mu.Unlock()
		if now != nil && !now.conn.IsClosed() {
			return now, consumer, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
	}
}

// Consume calls use with one subscription after the other, until ctx ends. use returns when it has acknowledged its
// messages, or can no longer; RabbitMQ requeues the others. Consume returns only an error that a person must correct,
// before it has consumed. It is safe for concurrent use.
func (s *Subscriber) Consume(ctx context.Context, q ConsumeOptions, use func(Subscription)) error {
	said := ""
	for worked, wait := false, minReconnectWait; ; wait = min(2*wait, maxReconnectWait) {
		now, consumer, err := s.current(ctx)
		if err != nil {
			return nil
		}
		consumed, err := s.subscribe(ctx, now, consumer, &q, use)
		if ctx.Err() != nil {
			return nil
		}
		if worked = worked || consumed; NeedsPerson(s.link.noted(err)) && !worked {
			return err
		}
		if consumed {
			wait, said = minReconnectWait, ""
		}
		if now.conn.IsClosed() {
			continue // the log has why; current waits for another
		}
		if err != nil && err.Error() != said { // once, not for each try
			said = err.Error()
			q.Log.Warn("RabbitMQ: trying again until it works", "queue", q.Queue, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait/2 + rand.N(wait)):
		}
	}
}

// subscribe consumes on a channel of its own until the channel or ctx ends. consumed reports whether it could begin.
func (s *Subscriber) subscribe(
	ctx context.Context, now *sharedConn, consumer string, q *ConsumeOptions, use func(Subscription),
) (consumed bool, err error) {
	c, err := s.begin(ctx, now.conn, consumer, q)
	if err != nil {
		return false, err
	}
	q.Observe(true)
	defer q.Observe(false)

	var why error
	ended := make(chan struct{})
	go func() { // ends with the channel, which leave closes
		defer close(ended)
		why = c.ending(q)
	}()
	use(Subscription{In: c.deliveries, Ended: ended, AwaitAcks: func() { c.awaitAcks(q.Queue) }, frames: now.frames})
	s.leave(ctx, now, c, consumer, q.Queue)
	select {
	case <-ended:
		if errors.Is(why, errCancelled) {
			why = wasCancelled(now.conn, q)
		}
		return true, why
	case <-ctx.Done():
		return true, nil
	}
}

type consumerChannel struct {
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	closed     <-chan *amqp.Error
	cancelled  <-chan string
	asking     sync.Mutex // one call at a time: amqp091-go gives any answer to the last caller
}

// awaitAcks asks for the queue's state, which RabbitMQ answers after it has handled earlier acknowledgements.
func (c *consumerChannel) awaitAcks(queue string) {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_, _ = untilEnd(ctx, func() (amqp.Queue, error) {
		c.asking.Lock()
		defer c.asking.Unlock()
		return queueState(c.ch, queue)
	}, nil)
}

// begin opens a channel and consumes on it, until ctx ends: RabbitMQ 4.3 takes a minute to answer that the node of a
// classic queue is down.
func (s *Subscriber) begin(
	ctx context.Context, conn *amqp.Connection, consumer string, q *ConsumeOptions,
) (*consumerChannel, error) {
	type begun struct {
		c   *consumerChannel
		err error
	}
	done := make(chan begun)
	s.closing.Go(func() {
		c, err := consume(conn, consumer, q)
		select {
		case done <- begun{c, err}:
			return
		case <-ctx.Done():
		}
		if err == nil {
			go drain(c.deliveries)
			_ = c.ch.Close()
		}
	})
	select {
	case b := <-done:
		return b.c, b.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// drain receives deliveries until they end: otherwise amqp091-go cannot close their channel.
func drain(deliveries <-chan amqp.Delivery) {
	for range deliveries {
	}
}

func consume(conn *amqp.Connection, consumer string, q *ConsumeOptions) (*consumerChannel, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, explain(err)
	}
	c := &consumerChannel{ch: ch, closed: ch.NotifyClose(make(chan *amqp.Error, 1)),
		cancelled: ch.NotifyCancel(make(chan string, 1))}
	if err = ch.Qos(q.Prefetch, 0, false); err == nil {
		c.deliveries, err = ch.ConsumeWithContext(context.Background(), q.Queue, consumer, false, false, false,
			false, nil)
	}
	if err != nil {
		_ = ch.Close()
		return nil, fmt.Errorf("consuming queue %q: %w", q.Queue, explain(err))
	}
	return c, nil
}

// ending waits until nothing more can be acknowledged, and returns why; nil if the channel was closed cleanly.
func (c *consumerChannel) ending(q *ConsumeOptions) error {
	if _, byServer := <-c.cancelled; byServer { // it closes with the channel
		return errCancelled
	}
	e := <-c.closed
	if e == nil {
		return nil
	}
	if e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "timed out") { // to 4.2
		return fmt.Errorf("%w: %s", timedOut(q), e.Reason)
	}
	return explain(e)
}

var errCancelled = errors.New("RabbitMQ cancelled the consumer")

// leave closes the channel, so that RabbitMQ requeues unacknowledged messages: cleanly when ctx has ended. It must also
// be closed after RabbitMQ cancelled the consumer: a late acknowledgement would make that receive messages again. leave
// waits up to closeLimit, since the connection serves other queues; an abandoned close ends with the connection.
func (s *Subscriber) leave(ctx context.Context, now *sharedConn, c *consumerChannel, consumer, queue string) {
	var drained sync.WaitGroup
	drained.Go(func() { drain(c.deliveries) })
	left := make(chan struct{})
	s.closing.Go(func() {
		defer close(left)
		c.asking.Lock()
		defer c.asking.Unlock()
		if ctx.Err() != nil {
			requeueUnacknowledged(c.ch, consumer, queue, &drained)
		}
		_ = c.ch.Close()
		drained.Wait()
		now.frames.forget(consumer)
	})
	select {
	case <-left:
	case <-time.After(closeLimit):
	}
}

func timedOut(q *ConsumeOptions) error {
	return hint.Errorf(fmt.Sprintf("set Prefetch (now %d) to Concurrency, limit handlers with Timeout, or raise "+
		"consumer_timeout: docs/how-to/library.md", q.Prefetch),
		"a message of queue %q was not acknowledged within RabbitMQ's consumer_timeout, which counts from its "+
			"delivery: all unacknowledged messages are delivered again", q.Queue)
}

// wasCancelled returns why RabbitMQ has cancelled the consumer. From 4.3 on it does that to a quorum queue's consumer
// after consumer_timeout.
func wasCancelled(conn *amqp.Connection, q *ConsumeOptions) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_, err := untilEnd(ctx, func() (amqp.Queue, error) { return stateOf(conn, q.Queue) }, nil)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("RabbitMQ cancelled the consumer of queue %q: %w", q.Queue, err)
	}
	return fmt.Errorf("RabbitMQ cancelled the consumer of queue %q, which is still there: it has moved to another "+
		"node, or %w", q.Queue, timedOut(q))
}

// requeueUnacknowledged ends the consumer cleanly. It first asks about the queue, which gives RabbitMQ time to write
// the acknowledgements that a quorum queue's channel may hold back, and closing it would undo. [seen on 3.10.8 and
// 4.3.6] Messages that a closing channel leaves count as failed deliveries; nacked ones do not. [measured on 4.3.6]
func requeueUnacknowledged(ch *amqp.Channel, consumer, queue string, drained *sync.WaitGroup) {
	_, _ = queueState(ch, queue)
	if ch.Cancel(consumer, false) != nil {
		return
	}
	drained.Wait()
	_ = ch.Nack(0, true, true)
	_, _ = queueState(ch, queue)
}
