package broker

import (
	"context"
	"errors"
	"net"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/wire"
)

// Probe examines RabbitMQ on a short connection, which neither consumes nor publishes. Not safe
// for concurrent use.
type Probe struct {
	conn *amqp.Connection
	at   string
}

// NewProbe connects, to one of them where c.URL is several. Close it.
func NewProbe(ctx context.Context, c Config) (*Probe, error) {
	conn, at, err := dial(ctx, &c, "", func(c net.Conn) net.Conn { return c })
	if err != nil {
		return nil, err
	}
	return &Probe{conn, at}, nil
}

func (p *Probe) Close() error { return p.conn.Close() }

// At is the address of the node that it is connected to.
func (p *Probe) At() string { return p.at }

// Version is RabbitMQ's.
func (p *Probe) Version() string { return versionOf(p.conn) }

// FrameMax is the largest frame that RabbitMQ and its clients agree on, in bytes;
// 0: any.
func (p *Probe) FrameMax() int { return p.conn.Config.FrameSize }

// Exchange finds out whether one is there: wire.ErrUnroutable when it is not.
func (p *Probe) Exchange(name string) error {
	return onChannel(p.conn, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeFanout, true, false, false, false, nil)
	})
}

// Queue returns how many consumers and ready messages a queue has: wire.ErrQueueGone
// when there is no such queue.
func (p *Probe) Queue(name string) (consumers, ready int, err error) {
	q, err := stateOf(p.conn, name)
	return q.Consumers, q.Messages, err
}

// IntakeQueue finds out whether the exchange redrive and the queue redrive.intake are
// there and as the service declares them: wire.ErrUnroutable or ErrQueueGone,
// ErrDiffers, ErrForbidden. RabbitMQ shows its clients no settings, but refuses a
// declaration that differs; one that does not changes nothing.
func (p *Probe) IntakeQueue() (exchange, queue error) {
	if exchange = p.Exchange(wire.ExchangeDeadLetters); exchange == nil {
		exchange = delay.Topology{Exchanges: []delay.Exchange{deadLetterExchange}}.Declare(func(t delay.Topology) error {
			return onChannel(p.conn, func(ch *amqp.Channel) error { return declareExchange(ch, t.Exchanges[0]) })
		})
	}
	if _, _, queue = p.Queue(wire.QueueIntake); queue == nil {
		queue = onChannel(p.conn, func(ch *amqp.Channel) error { return declareQueue(ch, intakeQueue) })
	}
	return exchange, queue
}

// DeclareAll declares what consumers of redrive.intake and redrive.parked need, as the service
// does when it starts.
func (p *Probe) DeclareAll() error {
	var all []error
	for _, t := range []delay.Topology{intakeTopology(), delay.Parked()} {
		all = append(all, declareOn(channelsOf(p.conn), t))
	}
	return errors.Join(all...)
}

// BindRetryExchange makes the retry exchange of a queue and binds it to that.
func (p *Probe) BindRetryExchange(queue string) error {
	return declareOn(channelsOf(p.conn), delay.Retry(queue))
}
