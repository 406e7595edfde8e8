package broker

import (
	"context"
	"errors"
	"net"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
)

var (
	// ErrLocked: another process moves the queue.
	ErrLocked = hint.New("refused", "is being moved by another process")
	// ErrNotEmpty and ErrInUse are why a queue is not deleted.
	ErrNotEmpty = errors.New("is not empty")
	ErrInUse    = errors.New("has consumers")
	errFull     = errors.New("the new queue takes no more messages (nack): is it full, with overflow reject-publish?")
	errGone     = errors.New("RabbitMQ could not route a message to the new queue: was it deleted?")
)

// Mover moves messages from one queue to another as they are, on two connections: an alarm
// stops RabbitMQ reading from one that publishes, and deliveries must not delay the confirms.
type Mover struct {
	source, sink *amqp.Connection
	in           *consumingConn
	out          net.Conn
	session      *session // of sink
	user         string
	// LostUserIDs counts messages whose user-id RabbitMQ would have refused.
	LostUserIDs int
}

// NewMover connects. lock is the name of a queue that is exclusive to this mover's connection:
// ErrLocked when another process has declared it.
func NewMover(ctx context.Context, c Config, lock string) (_ *Mover, err error) {
	m := &Mover{user: addresses.User(c.URL)}
	m.source, _, err = dial(ctx, &c, "", func(conn net.Conn) net.Conn {
		m.in = newConsumingConn(newCoalescingConn(conn))
		m.in.bodies.lift() // the window is the bound
		return m.in
	})
	if err != nil {
		return nil, err
	}
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
	sink := c
	sink.Name += " (publishes)"
	m.sink, _, err = dial(ctx, &sink, "", func(conn net.Conn) net.Conn {
		m.out = newCoalescingConn(conn)
		return m.out
	})
	if err != nil {
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

// Do changes exchanges, queues and bindings on the connection that has the lock: when that
// is lost, nothing is changed any more.
func (m *Mover) Do(do func(*amqp.Channel) error) error { return onChannel(m.source, do) }

// BindRetryExchange makes the retry exchange of a queue and binds it to that.
func (m *Mover) BindRetryExchange(queue string) error { return declareOn(m.Do, delay.Retry(queue)) }

// Depth returns how many ready messages and consumers a queue has.
func (m *Mover) Depth(queue string) (ready, consumers int, err error) {
	q, err := stateOf(m.source, queue)
	return q.Messages, q.Consumers, err
}

// DeleteClassic deletes a classic queue if it is empty and unused, which RabbitMQ
// decides in one step.
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

// DeleteQuorum deletes a quorum queue that is empty and that no one else consumes. RabbitMQ
// does not check that for quorum queues (540), so it is checked here, and the queue is consumed
// meanwhile: a message that arrives between the check and the deletion is delivered here, and
// moved. moved is how many, whatever the error.
func (m *Mover) DeleteQuorum(ctx context.Context, queue, exchange string) (moved int, err error) {
	ch, err := m.source.Channel()
	if err != nil {
		return 0, explain(err)
	}
	defer ch.Close()
	deliveries, err := ch.Consume(queue, "redrive move", false, false, false, false, amqp.Table{"x-priority": int32(-1)})
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
	if err != nil { // what was delivered is moved: requeued, it would count as a failed delivery
		if cancel := ch.Cancel("redrive move", false); cancel != nil {
			return 0, explain(cancel)
		}
	}
	for d := range deliveries { // RabbitMQ ends them with the queue
		if sent := m.send(ctx, exchange, []amqp.Delivery{d}); sent != nil {
			return moved, sent
		}
		moved++
		_ = ch.Ack(d.DeliveryTag, false)
	}
	return moved, err
}
