package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// Adopter consumes a user's dead-letter queue in windows: it receives some messages, keeps them, and
// acknowledges all of them at once; nothing else is unacknowledged then. So what RabbitMQ delivers
// again after a crash is that window or nothing, which is how Doubts tells what is kept already.
type Adopter struct {
	link  link
	queue string
	// Follow goes on when the queue is empty, until ctx ends. Otherwise Run adopts as many messages
	// as the queue had at first, or fewer when others consume it.
	Follow bool
	// Rate is the most messages a second; 0: unlimited.
	Rate float64
	// Left, if it is not nil, is called with the queue's number of messages before each window.
	Left func(int)

	windows int
	largest int // of the bodies lately
	started bool
	left    int // to adopt, where it does not follow
}

// NewAdopter makes an adopter of a queue.
func NewAdopter(c Config, queue string) *Adopter {
	return &Adopter{link: link{Config: c}, queue: queue}
}

// Adopting is what keeps the messages that an Adopter consumes.
type Adopting interface {
	// Doubts are the messages that are kept, and perhaps not acknowledged. It is called for
	// each connection, before the first Keep.
	Doubts(ctx context.Context) (Doubts, error)
	// Keep makes a batch durable. On an error it may be durable all the same, and the connection
	// ends; with again nothing was kept, and it is called again.
	Keep(ctx context.Context, batch []wire.Delivery) (again bool, err error)
	// Acknowledged says that RabbitMQ has the acknowledgement of all that was kept.
	Acknowledged(ctx context.Context) error
}

// Doubts are messages that are kept, and of which it is not known whether they were acknowledged.
type Doubts = interface {
	// Left is how many of them were not seen yet.
	Left() int
	// Saw tells whether a delivery looks like one of them, which is then seen.
	Saw(d *wire.Delivery) bool
	// AreKept tells of each that was seen, in order, whether it is certain that it is kept.
	AreKept() []bool
}

const (
	// mostAdopted is the largest window, and adoptedBytes about how many bytes of bodies it may have:
	// both are what a window may have to wait for, and what is in doubt after a crash.
	mostAdopted  = 2048
	adoptedBytes = 32 << 20
	// strangers is how many messages may be before or among those in doubt after a crash: a quorum queue
	// delivers what was requeued first, in the order in which it was, so that a preview (1,000) and
	// what had been delivered and not kept, twice, may be before them.
	strangers = 2*mostAdopted + 1000
	// adoptWait is how long a store without room is left alone, and how long RabbitMQ may take to
	// deliver again what was unacknowledged when a connection ended.
	adoptWait = time.Second
)

// Run adopts until the queue is empty, or ctx ends: the window under way is finished first. It
// connects again for as long as it takes. Its error is one that only a person can correct.
func (a *Adopter) Run(ctx context.Context, with Adopting) error {
	var frames *consumingConn
	wrap := func(c net.Conn) net.Conn {
		frames = newConsumingConn(newCoalescingConn(c))
		return frames
	}
	ctx, end := context.WithCancel(ctx) // for a Lasting link, which ignores a permanentError
	defer end()
	var failure error
	err := a.link.keep(ctx, wrap, func(ctx context.Context, conn *amqp.Connection) error {
		err := a.adopt(ctx, conn, frames, with)
		if e := explainAdopting(a.queue, err); NeedsPerson(e) || errors.Is(e, ErrStream) {
			failure = e
			end()
		}
		if err == nil && ctx.Err() == nil {
			end()
		}
		return err
	})
	return errors.Join(failure, err)
}

func explainAdopting(queue string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("adopt the queue %q: %w", queue, err)
	if errors.Is(err, wire.ErrForbidden) {
		return &hint.Error{Err: err, Hint: "give the service's user read on the queue: redrive permissions --adopt " + queue + " prints the command"}
	}
	return err
}

// ErrStream: the queue is a stream, which keeps what was acknowledged.
var ErrStream = errors.New("it is a stream, which keeps what was consumed: a dead-letter queue that is one cannot be adopted")

// errAdopting: another process adopts the queue, or an earlier connection of this one has not ended.
var errAdopting = errors.New("another replica is adopting it")

// begin locks the queue against other adopters by an exclusive queue, until the connection closes.
// It returns errAdopting while another connection has the lock.
func (a *Adopter) begin(conn *amqp.Connection) error {
	return onChannel(conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(wire.AdoptQueue(a.queue), false, false, true, false, amqp.Table{"x-queue-type": "classic"})
		var e *amqp.Error
		if errors.As(err, &e) && e.Code == amqp.ResourceLocked {
			return errAdopting
		}
		return err
	})
}

// refuseStream returns ErrStream where the queue is one. Only a message that has a header of streams
// makes it ask, since asking costs a delivery.
func (a *Adopter) refuseStream(conn *amqp.Connection, d *wire.Delivery) error {
	if _, there := d.Message.Headers["x-stream-offset"]; !there {
		return nil
	}
	return onChannel(conn, func(ch *amqp.Channel) error {
		_, _, err := ch.Get(a.queue, false)
		var e *amqp.Error
		if errors.As(err, &e) && e.Code == amqp.NotImplemented {
			return ErrStream
		}
		return err
	})
}

// adopt works on one connection, until that or ctx ends or nothing is left.
func (a *Adopter) adopt(ctx context.Context, conn *amqp.Connection, frames *consumingConn, with Adopting) error {
	if err := a.begin(conn); err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err != nil {
		return explain(err)
	}
	doubts, err := with.Doubts(ctx)
	if err != nil {
		return err
	}
	if doubts.Left() > 0 { // RabbitMQ may be about to requeue them
		wait(ctx, adoptWait)
	}
	a.largest = 0
	for size := 1; ctx.Err() == nil; size = min(size*windowGrowth, mostAdopted) {
		q, err := stateOf(conn, a.queue)
		if err != nil {
			return explain(err)
		}
		a.link.observe(State{Connected: true})
		if a.Left != nil {
			a.Left(q.Messages)
		}
		if !a.started {
			a.started, a.left = true, q.Messages
		}
		n := a.size(size)
		if doubts.Left() > 0 {
			n = doubts.Left() + strangers
		} else if !a.Follow {
			if n = min(n, a.left, q.Messages); n <= 0 {
				return nil
			}
		}
		began := time.Now()
		w := adoptWindow{Adopter: a, ch: ch, with: with, n: n, doubts: doubts, resolves: doubts.Left() > 0}
		if err := w.run(ctx, conn, frames); err != nil {
			return err
		}
		if w.resolves {
			doubts, size = noDoubts{}, 1
		}
		a.left -= w.adopted
		if a.Rate > 0 {
			wait(ctx, time.Duration(float64(w.adopted)/a.Rate*float64(time.Second))-time.Since(began))
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// noDoubts are the doubts once they are resolved.
type noDoubts struct{}

func (noDoubts) Left() int               { return 0 }
func (noDoubts) Saw(*wire.Delivery) bool { return false }
func (noDoubts) AreKept() []bool         { return nil }

// size bounds a window by the bodies that came lately, and by the rate.
func (a *Adopter) size(n int) int {
	if a.largest > 0 {
		n = min(n, max(1, adoptedBytes/a.largest))
	}
	if a.Rate > 0 {
		n = min(n, max(1, int(a.Rate/5)))
	}
	return n
}

// endOf returns why a consumer ended that this process did not cancel.
func endOf(ctx context.Context, queue string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.New("RabbitMQ cancelled the consumer of " + queue)
}

// keep waits where there is no room.
func (a *Adopter) keep(ctx context.Context, with Adopting, batch []wire.Delivery) error {
	for {
		again, err := with.Keep(context.WithoutCancel(ctx), batch)
		if err == nil || !again {
			return err
		}
		a.link.observe(State{Connected: true, Err: err})
		select {
		case <-ctx.Done():
			return err
		case <-time.After(adoptWait):
		}
	}
}
