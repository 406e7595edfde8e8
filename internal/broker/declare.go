package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/wire"
)

// declareTries is how often a declaration is repeated over which RabbitMQ closed the connection
// (541): on a busy machine a new quorum queue may have no leader in time. [seen on 3.10.8 and
// 4.3.6]
const declareTries = 4

// Declare declares what a way to wait needs. Safe for concurrent use.
func (p *Publisher) Declare(ctx context.Context, t delay.Topology) error {
	for tries := 0; ; tries++ {
		err := declareOn(p.channels(ctx), t)
		again := errors.Is(err, ErrCrashed) || tries > 0 && errors.Is(err, wire.ErrNoAnswer) // of the connection that ended
		if err == nil || !again || tries == declareTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond << tries):
		}
	}
}

// Verify checks that exchanges and queues exist, and that messages may be published to those
// exchanges: for users without permission to declare. RabbitMQ shows no bindings and no
// arguments to clients. Safe for concurrent use.
func (p *Publisher) Verify(ctx context.Context, t delay.Topology) error {
	for _, e := range t.Exchanges {
		if err := p.onChannel(ctx, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, e.Args)
		}); err != nil {
			return fmt.Errorf("exchange %q: %w", e.Name, err)
		}
		if e.Internal {
			continue
		}
		if err := p.MayPublish(ctx, e.Name, ""); err != nil {
			return err
		}
	}
	for _, q := range t.Queues {
		if err := p.onChannel(ctx, func(ch *amqp.Channel) error {
			_, err := queueState(ch, q.Name)
			return err
		}); err != nil {
			return fmt.Errorf("queue %q: %w", q.Name, err)
		}
	}
	return nil
}

// MayPublish finds out whether the user may publish to an exchange with that routing
// key, and publishes nothing: RabbitMQ checks the right, and then refuses a message
// whose expiration is no number (TestVerifySeesAMissingRight). Before 4.3.1 a passive
// declaration asks for no right at all. Safe for concurrent use.
func (p *Publisher) MayPublish(ctx context.Context, exchange, key string) error {
	err := p.onChannel(ctx, func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.Publish(exchange, key, true, false, amqp.Publishing{Expiration: "none"}); err != nil {
			return err
		}
		if ch.Qos(1, 0, false) == nil { // answered after the publish
			return nil
		}
		if e := <-closed; e != nil && e.Code != amqp.PreconditionFailed {
			return e
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("publishing to exchange %q: %w", exchange, err)
	}
	return nil
}

// channels runs what it is passed on a channel of its own.
type channels func(do func(*amqp.Channel) error) error

func (p *Publisher) channels(ctx context.Context) channels {
	return func(do func(*amqp.Channel) error) error { return p.onChannel(ctx, do) }
}

func channelsOf(conn *amqp.Connection) channels {
	return func(do func(*amqp.Channel) error) error { return onChannel(conn, do) }
}

// declareOn declares t, on channels of its own.
func declareOn(on channels, t delay.Topology) error {
	return t.Declare(func(t delay.Topology) error {
		return on(func(ch *amqp.Channel) error { return declare(ch, t) })
	})
}

func declare(ch *amqp.Channel, t delay.Topology) error {
	if err := declareExchanges(ch, t, false); err != nil {
		return err
	}
	for _, q := range t.Queues {
		if err := declareQueue(ch, q); err != nil {
			return declaring("queue", q.Name, err)
		}
	}
	// An exchange that goes with its last binding comes after its queue: the
	// declaration has put off the queue's expiry, and that is all that could
	// take the exchange away before it is bound.
	if err := declareExchanges(ch, t, true); err != nil {
		return err
	}
	for _, b := range t.Bindings {
		if b.ToExchange != "" {
			if err := ch.ExchangeBind(b.ToExchange, b.Key, b.From, false, nil); err != nil {
				return declaring("binding of exchange "+b.ToExchange+" to exchange", b.From, err)
			}
			continue
		}
		if err := ch.QueueBind(b.ToQueue, b.Key, b.From, false, nil); err != nil {
			return declaring("binding of queue "+b.ToQueue+" to exchange", b.From, err)
		}
	}
	return nil
}

func declareExchanges(ch *amqp.Channel, t delay.Topology, autoDelete bool) error {
	for _, e := range t.Exchanges {
		if e.AutoDelete != autoDelete {
			continue
		}
		if err := declareExchange(ch, e); err != nil {
			return declaring("exchange", e.Name, err)
		}
	}
	return nil
}

func declareExchange(ch *amqp.Channel, e delay.Exchange) error {
	return ch.ExchangeDeclare(e.Name, e.Kind, true, e.AutoDelete, e.Internal, false, e.Args)
}

func declareQueue(ch *amqp.Channel, q delay.Queue) error {
	_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Args)
	return err
}
