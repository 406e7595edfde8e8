package broker

import (
	"context"
	"errors"
	"net"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/wire"
)

// Look is a short connection that finds out how RabbitMQ is, for a person who
// asks; it consumes and publishes nothing. Not safe for concurrent use.
type Look struct {
	conn *amqp.Connection
	at   string
}

// NewLook connects, to one of them where c.URL is several. Close it.
func NewLook(ctx context.Context, c Config) (*Look, error) {
	conn, at, err := dial(ctx, &c, "", func(c net.Conn) net.Conn { return c })
	if err != nil {
		return nil, err
	}
	return &Look{conn, at}, nil
}

func (l *Look) Close() error { return l.conn.Close() }

// At is the address of the node that it is connected to.
func (l *Look) At() string { return l.at }

// Version is RabbitMQ's.
func (l *Look) Version() string {
	v, _ := l.conn.Properties["version"].(string)
	return v
}

// FrameMax is the largest frame that RabbitMQ and its clients agree on, in bytes;
// 0: any.
func (l *Look) FrameMax() int { return l.conn.Config.FrameSize }

// Exchange finds out whether one is there: wire.ErrUnroutable when it is not.
func (l *Look) Exchange(name string) error {
	return l.do(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeFanout, true, false, false, false, nil)
	})
}

// Queue tells how many consumers and ready messages a queue has: wire.ErrQueueGone
// when there is no such queue.
func (l *Look) Queue(name string) (consumers, ready int, err error) {
	err = l.do(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		consumers, ready = q.Consumers, q.Messages
		return err
	})
	return consumers, ready, err
}

// Intake finds out whether the exchange redrive and the queue redrive.intake are
// there and as the service declares them: wire.ErrUnroutable or ErrQueueGone,
// ErrDiffers, ErrForbidden. RabbitMQ shows its clients no settings, but refuses a
// declaration that differs; one that does not changes nothing.
func (l *Look) Intake() (exchange, queue error) {
	if exchange = l.Exchange(wire.ExchangeDeadLetters); exchange == nil {
		exchange = l.do(declareDeadLetters)
	}
	if _, _, queue = l.Queue(wire.QueueIntake); queue == nil {
		queue = l.do(declareIntake)
	}
	return exchange, queue
}

// Make makes what the intake needs, and the parking lot, as the service does when it
// starts.
func (l *Look) Make() error {
	err := declareTopology(l.conn)
	var p permanent
	if errors.As(err, &p) {
		err = p.error
	}
	return errors.Join(err, l.do(func(ch *amqp.Channel) error { return declare(ch, delay.Parked()) }))
}

// BindReturn makes the retry exchange of a queue and binds it to that.
func (l *Look) BindReturn(queue string) error {
	return l.do(func(ch *amqp.Channel) error { return bindReturn(ch, queue, wire.RetryExchange(queue)) })
}

// do is on a channel of its own, which an error ends.
func (l *Look) do(do func(*amqp.Channel) error) error {
	ch, err := l.conn.Channel()
	if err != nil {
		return explain(err)
	}
	err = do(ch)
	_ = ch.Close()
	if err == nil {
		return nil
	}
	return explain(err)
}
