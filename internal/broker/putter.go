package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/wire"
)

// Putter publishes messages to one queue in order, on its own connection. Use it from one goroutine.
type Putter struct {
	queue   string
	user    string
	room    int // messages before the queue drops its oldest; 0: no limit
	conn    *amqp.Connection
	raw     net.Conn
	session *session // nil after the last one has ended
}

// NewPutter connects. The Putter fills the queue up to room messages; 0: no limit.
func NewPutter(ctx context.Context, c Config, queue string, room int) (*Putter, error) {
	conn, raw, err := dialThrough(ctx, c, newCoalescingConn)
	return &Putter{queue: queue, user: connect.User(c.URL), room: room, conn: conn, raw: raw}, err
}

const putWait = time.Minute

// Put publishes messages in order, persistent, and returns RabbitMQ's answer to each: nil when it is confirmed and in
// the queue, else wire.ErrQueueGone, ErrNacked, ErrForbidden, ErrUnacceptable or ErrNoAnswer, wrapped. After an error
// other than ErrUnacceptable it publishes no more. See puttable for what it leaves out. A large message is published
// when all before it are confirmed.
func (p *Putter) Put(ctx context.Context, all []wire.Message) []error {
	errs := make([]error, len(all))
	for from := 0; from < len(all); {
		to := from + 1
		for large := len(all[from].Body) >= largeMessage; !large && to < len(all) && len(all[to].Body) < largeMessage; {
			to++
		}
		p.putPart(ctx, all[from:to], errs[from:to])
		for _, err := range errs[from:to] {
			if err != nil && !errors.Is(err, wire.ErrUnacceptable) {
				for i := to; i < len(all); i++ {
					errs[i] = err
				}
				return errs
			}
		}
		from = to
	}
	return errs
}

func (p *Putter) putPart(ctx context.Context, all []wire.Message, errs []error) {
	waiting, giveUp := context.WithTimeout(context.WithoutCancel(ctx), putWait)
	defer giveUp()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeLimit, giveUp) })() // otherwise finish
	// Under an alarm RabbitMQ reads nothing.
	defer context.AfterFunc(waiting, func() { _ = p.raw.Close() })()
	err := p.prepare(waiting, len(all))
	confirms := make([]*amqp.DeferredConfirmation, len(all))
	for i := range all {
		if err == nil {
			confirms[i], errs[i] = p.session.publish(&wire.Outgoing{RoutingKey: p.queue, Message: p.puttable(&all[i])})
			if errs[i] != nil && !errors.Is(errs[i], wire.ErrUnacceptable) {
				err = errs[i]
			}
			continue
		}
		errs[i] = err
	}
	for i, c := range confirms {
		if c != nil {
			errs[i] = p.answer(waiting, c)
		}
	}
	if p.session == nil {
		return
	}
	if p.session.hasReturned() { // the queue was deleted meanwhile, with what it had
		for i, c := range confirms {
			if c != nil {
				errs[i] = fmt.Errorf("queue %q: %w", p.queue, wire.ErrQueueGone)
			}
		}
		p.endSession()
	} else if p.session.ch.IsClosed() {
		p.endSession()
	}
}

// prepare opens a session, and returns an error if the queue has no room for n messages.
func (p *Putter) prepare(ctx context.Context, n int) error {
	q, err := untilEnd(ctx, func() (amqp.Queue, error) { return stateOf(p.conn, p.queue) }, nil)
	switch {
	case err != nil:
		return explain(err)
	case p.room > 0 && q.Messages+n > p.room:
		return fmt.Errorf("queue %q is full, and drops the oldest of more than %d messages: %w",
			p.queue, p.room, wire.ErrNacked)
	case p.session == nil:
		p.session, err = newSessionUntil(ctx, p.conn)
	}
	return err
}

func (p *Putter) answer(ctx context.Context, c *amqp.DeferredConfirmation) error {
	err := p.session.answer(ctx, c)
	switch {
	case errors.Is(err, wire.ErrNacked):
		return fmt.Errorf("queue %q: is it full? %w", p.queue, wire.ErrNacked)
	case errors.Is(err, errChannelEnded):
		return p.session.cause
	}
	return err
}

func (p *Putter) endSession() {
	go p.session.close() // RabbitMQ may not answer
	p.session = nil
}

// puttable returns a message without another user's user-id, which RabbitMQ refuses, CC and BCC, which would copy it to
// other queues, and RabbitMQ's counts of deliveries.
func (p *Putter) puttable(m *wire.Message) *wire.Message {
	put := *m
	if put.UserID != p.user {
		put.UserID = ""
	}
	put.Headers = maps.Clone(m.Headers)
	for _, name := range []string{"CC", "BCC", "x-delivery-count", "x-acquired-count"} {
		delete(put.Headers, name)
	}
	return &put
}

func (p *Putter) Close() { closeSoon(p.conn, p.raw) }
