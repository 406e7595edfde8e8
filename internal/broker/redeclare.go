package broker

import (
	"errors"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// declaredNames are the exchanges and queues that a BatchConsumer declares.
type declaredNames struct{ exchanges, queues []string }

var (
	intakeNames = declaredNames{[]string{wire.ExchangeDeadLetters, wire.ExchangeFailures, wire.ExchangeQuarantine}, []string{wire.QueueQuarantine, wire.QueueIntake}}
	parkedNames = declaredNames{[]string{wire.ExchangeParked}, []string{wire.QueueParked}}
)

// OwnNames returns the names that BatchConsumer.Redeclared can receive.
func OwnNames() (all []string) {
	for _, n := range []declaredNames{intakeNames, parkedNames} {
		for _, e := range n.exchanges {
			all = append(all, "exchange "+e)
		}
		for _, q := range n.queues {
			all = append(all, "queue "+q)
		}
	}
	return all
}

// redeclare declares again what was deleted, and binds all of it: RabbitMQ shows no bindings to
// its clients. Redeclared receives what was missing.
func (c *BatchConsumer) redeclare(conn *amqp.Connection) error {
	missing, err := c.names.missing(conn)
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

// missing asks by passive declares; one that fails ends its channel.
func (n declaredNames) missing(conn *amqp.Connection) (all []string, err error) {
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
	for _, name := range n.exchanges {
		look("exchange", name, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(name, amqp.ExchangeFanout, true, false, false, false, nil)
		})
	}
	for _, name := range n.queues {
		look("queue", name, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			return err
		})
	}
	if ch != nil {
		_ = ch.Close()
	}
	return all, err
}
