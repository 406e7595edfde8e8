package broker

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Subscriber consumes a work queue on a connection of its own.
type Subscriber struct {
	link     link
	queue    string
	prefetch int
}

// NewSubscriber makes a subscriber that holds up to prefetch messages.
func NewSubscriber(c Config, queue string, prefetch int) *Subscriber {
	return &Subscriber{link: link{Config: c}, queue: queue, prefetch: prefetch}
}

// Subscription is what one connection delivers.
type Subscription struct {
	// In closes with the consumer, and not yet when the context has ended. What
	// is not taken or settled goes back to the queue.
	In <-chan amqp.Delivery
	// Ended is closed when nothing delivered can be acknowledged any more.
	Ended   <-chan struct{}
	mending *intakeConn
}

// Unreadable says why a delivery cannot be published again as it was; "" when it
// can. It is to be asked once for each.
func (s *Subscription) Unreadable(d *amqp.Delivery) string {
	return s.mending.mendedHeaders(d.DeliveryTag).unreadable
}

// Run hands subscriptions to use, one after the other, connecting again for as
// long as it takes, until ctx ends. use returns when it has settled what it took,
// or can no longer. Then what it has not settled goes back to the queue, and the
// connection is closed.
func (s *Subscriber) Run(ctx context.Context, use func(Subscription)) error {
	var mending *intakeConn
	wrap := func(c net.Conn) net.Conn {
		mending = newIntakeConn(newGatheringConn(c))
		mending.gate.open() // prefetch is the user's own bound
		return mending
	}
	return s.link.keep(ctx, wrap, func(ctx context.Context, conn *amqp.Connection) error {
		return s.subscribe(ctx, conn, mending, use)
	})
}

func (s *Subscriber) subscribe(ctx context.Context, conn *amqp.Connection, mending *intakeConn, use func(Subscription)) error {
	ch, err := conn.Channel()
	if err != nil {
		return explain(err)
	}
	if err := ch.Qos(s.prefetch, 0, false); err != nil {
		return explain(err)
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	// A late acknowledgement on a channel whose consumer RabbitMQ cancelled makes
	// the dead consumer take messages again: the connection is given up instead.
	cancelled := ch.NotifyCancel(make(chan string, 1))
	deliveries, err := ch.ConsumeWithContext(context.WithoutCancel(ctx), s.queue, consumerTag, false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consuming queue %q: %w", s.queue, explain(err))
	}
	s.link.observe(State{Connected: true})

	var why error
	var byServer bool
	ended := make(chan struct{})
	go func() { // it ends with the channel, which is closed below
		defer close(ended)
		select {
		case e := <-closed:
			if e != nil {
				why = explain(e)
			}
			if e != nil && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "timed out") { // to 4.2
				why = fmt.Errorf("%w: %s", s.timedOut(), e.Reason)
			}
		case _, byServer = <-cancelled:
		}
	}()
	use(Subscription{In: deliveries, Ended: ended, mending: mending})
	select {
	case <-ended:
		if byServer {
			why = s.cancelled(conn, mending)
		}
	default:
	}
	var drained sync.WaitGroup
	drained.Go(func() { // or amqp091-go could not close
		for range deliveries {
		}
	})
	if ctx.Err() != nil {
		s.giveBack(ch, mending, &drained)
	}
	closeSoon(conn, mending)
	drained.Wait()
	<-ended
	return why
}

// timedOut is what RabbitMQ does to a consumer that is too slow, and what to do about it.
func (s *Subscriber) timedOut() error {
	return fmt.Errorf("a message of queue %q was not acknowledged within RabbitMQ's consumer_timeout, which counts from its delivery: all unacknowledged messages are delivered again; set Prefetch (now %d) to Concurrency, limit handlers with Timeout, or raise consumer_timeout: docs/explanation/prefetch.md", s.queue, s.prefetch)
}

// cancelled tells why RabbitMQ has cancelled the consumer, which itself says nothing of it:
// that is how 4.3 ends one of a quorum queue after consumer_timeout.
func (s *Subscriber) cancelled(conn *amqp.Connection, raw net.Conn) error {
	force := time.AfterFunc(closeLimit, func() { _ = raw.Close() })
	defer force.Stop()
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclarePassive(s.queue, true, false, false, false, nil)
	}
	if err != nil {
		return fmt.Errorf("RabbitMQ cancelled the consumer of queue %q: %w", s.queue, explain(err))
	}
	return fmt.Errorf("RabbitMQ cancelled the consumer of queue %q, which is still there: it has moved to another node, or %w", s.queue, s.timedOut())
}

// giveBack ends the consumer in order. A quorum queue's channel may still hold back
// many acknowledgements, which its end would undo: each answer about the queue is
// time in which they leave, so the consumer is cancelled after them and not before.
// [seen on 3.10.8 and 4.3.6] And what a closing channel leaves counts as delivered
// as a failed delivery; what is nacked does not. [measured on 4.3.6]
func (s *Subscriber) giveBack(ch *amqp.Channel, raw net.Conn, drained *sync.WaitGroup) {
	// It hangs with a broker that does, and then its connection goes.
	force := time.AfterFunc(closeLimit, func() { _ = raw.Close() })
	defer force.Stop()
	ask := func() { _, _ = ch.QueueDeclarePassive(s.queue, true, false, false, false, nil) }
	ask()
	if ch.Cancel(consumerTag, false) != nil {
		return
	}
	drained.Wait()
	_ = ch.Nack(0, true, true)
	ask()
	_ = ch.Close()
}

// consumerTag is one of the channel alone.
const consumerTag = "redrive"
