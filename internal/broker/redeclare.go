package broker

import (
	"errors"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
)

// OwnNames returns the names that BatchConsumer.Redeclared can receive.
func OwnNames() (all []string) {
	for _, t := range []delay.Topology{intakeTopology(), delay.Parked()} {
		for _, e := range t.Exchanges {
			all = append(all, "exchange "+e.Name)
		}
		for _, q := range t.Queues {
			all = append(all, "queue "+q.Name)
		}
	}
	return all
}

// declare declares all that the consumer needs.
func (c *BatchConsumer) declare(conn *amqp.Connection) error {
	return declareOn(channelsOf(conn), c.topology)
}

// redeclare declares again what was deleted, and binds all of it: RabbitMQ shows no bindings to
// its clients. Redeclared receives what was missing.
func (c *BatchConsumer) redeclare(conn *amqp.Connection) error {
	missing, err := missingOf(conn, c.topology)
	if err != nil {
		return err
	}
	if err := c.declare(conn); err != nil {
		return err
	}
	if len(missing) > 0 && c.Redeclared != nil {
		c.Redeclared(missing)
	}
	return nil
}

// missingOf returns which exchanges and queues of t do not exist. It asks by passive declares, of
// which one that fails ends its channel.
func missingOf(conn *amqp.Connection, t delay.Topology) (all []string, err error) {
	var ch *amqp.Channel
	look := func(what, name string, declare func(*amqp.Channel) error) {
		if err != nil {
			return
		}
		if ch == nil {
			if ch, err = conn.Channel(); err != nil {
				err = explain(err)
				return
			}
		}
		if failed := declare(ch); failed != nil {
			ch = nil
			var e *amqp.Error
			if errors.As(failed, &e) && e.Code == amqp.NotFound && strings.Contains(e.Reason, "no "+what) {
				all = append(all, what+" "+name)
			} else {
				err = declaring(what, name, failed)
			}
		}
	}
	for _, e := range t.Exchanges {
		look("exchange", e.Name, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, amqp.ExchangeFanout, true, false, false, false, nil)
		})
	}
	for _, q := range t.Queues {
		look("queue", q.Name, func(ch *amqp.Channel) error {
			_, err := queueState(ch, q.Name)
			return err
		})
	}
	if ch != nil {
		_ = ch.Close()
	}
	return all, err
}
