package model_test

import (
	"context"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// as is a channel of a user with these rights.
func (w *world) as(user, configure, write, read string) func() *amqp.Channel {
	w.Helper()
	w.user(user)
	w.grant(user, configure, write, read)
	return func() *amqp.Channel {
		w.Helper()
		c, err := w.dial(user)
		w.must(err)
		w.Cleanup(func() { _ = c.Close() })
		return w.channel(c)
	}
}

// noRight fails unless err says that the user has not this right.
func (w *world) noRight(err error, user, right, subject string) {
	w.Helper()
	if !w.since4 {
		right = ""
	} else {
		right += " "
	}
	w.refused(err, 403, "ACCESS_REFUSED - "+right+"access to "+subject+" refused for user '"+user+"'")
}

// publishes is the error that publishing ends the channel with; nil when it does not.
func (w *world) publishes(ch *amqp.Channel, exchange, key string) error {
	w.Helper()
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.PublishWithContext(context.Background(), exchange, key, false, false, amqp.Publishing{}); err != nil {
		return err
	}
	if err := ch.Qos(0, 0, false); err == nil {
		return nil
	}
	return <-closes
}

var permitting = []behaviour{
	{"a user without rights", func(w *world) {
		w.user("rightless")
		_, err := w.dial("rightless")
		if err == nil || !strings.Contains(err.Error(), "access") {
			w.Error(err)
		}
	}},
	{"the rights that each method needs", func(w *world) {
		w.queue("q", nil)
		w.must(w.ch.ExchangeDeclare("x", "topic", true, false, false, false, nil))
		q, x, nobody := w.in("queue", "q"), w.in("exchange", "x"), w.as("nobody", "", "", "")
		for _, of := range []struct {
			right, subject string
			do             func(*amqp.Channel) error
		}{
			{"configure", q, func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("q", true, false, false, false, nil)
				return err
			}},
			{"configure", q, func(ch *amqp.Channel) error { _, err := ch.QueueDelete("q", false, false, false); return err }},
			{"read", q, func(ch *amqp.Channel) error { _, err := ch.QueuePurge("q", false); return err }},
			{"read", q, func(ch *amqp.Channel) error { _, _, err := ch.Get("q", true); return err }},
			{"read", q, func(ch *amqp.Channel) error {
				_, err := ch.Consume("q", "", true, false, false, false, nil)
				return err
			}},
			{"write", q, func(ch *amqp.Channel) error { return ch.QueueBind("q", "k", "x", false, nil) }},
			{"write", q, func(ch *amqp.Channel) error { return ch.QueueUnbind("q", "k", "x", nil) }},
			{"configure", x, func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare("x", "topic", true, false, false, false, nil)
			}},
			{"configure", x, func(ch *amqp.Channel) error { return ch.ExchangeDelete("x", false, false) }},
			{"write", x, func(ch *amqp.Channel) error { return ch.ExchangeBind("x", "", "amq.direct", false, nil) }},
			{"write", x, func(ch *amqp.Channel) error { return w.publishes(ch, "x", "k") }},
			{"write", w.in("exchange", "amq.default"), func(ch *amqp.Channel) error { return w.publishes(ch, "", "q") }},
			{"configure", w.in("queue", "none"), func(ch *amqp.Channel) error {
				_, err := ch.QueueDelete("none", false, false, false)
				return err
			}},
			{"write", w.in("exchange", "none"), func(ch *amqp.Channel) error { return w.publishes(ch, "none", "") }},
		} {
			w.noRight(of.do(nobody()), "nobody", of.right, of.subject)
		}
	}},
	{"the rights to lead messages elsewhere", func(w *world) {
		w.queue("q", nil)
		ch := w.as("binder", "^mine", "^q$|^mine", "^mine")
		w.noRight(ch().QueueBind("q", "k", "amq.topic", false, nil), "binder", "read", w.in("exchange", "amq.topic"))
		declare := func(name string, args amqp.Table) error {
			_, err := ch().QueueDeclare(name, true, false, false, false, args)
			return err
		}
		w.noRight(declare("mine", amqp.Table{"x-dead-letter-exchange": "theirs"}), "binder", "write", w.in("exchange", "theirs"))
		w.noRight(declare("mine", amqp.Table{"x-dead-letter-exchange": ""}), "binder", "write", w.in("exchange", "amq.default"))
		w.must(declare("mine", amqp.Table{"x-dead-letter-exchange": "mine"}))
		w.noRight(ch().ExchangeDeclare("mine", "direct", true, false, false, false, amqp.Table{"alternate-exchange": "theirs"}), "binder", "write", w.in("exchange", "theirs"))
		if err := declare("", nil); err == nil || !strings.Contains(err.Error(), "amq.gen-") {
			w.Errorf("a queue that the broker names: %v", err)
		}
	}},
	{"the right to declare passively", func(w *world) {
		w.queue("q", nil)
		passive := func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive("q", true, false, false, false, nil)
			return err
		}
		w.must(passive(w.as("reader", "", "", "^q$")()))
		err := passive(w.as("stranger", "", "", "")())
		if w.since4 {
			w.noRight(err, "stranger", "configure", w.in("queue", "q"))
		} else {
			w.must(err)
		}
	}},
	{"rights to routing keys", func(w *world) {
		w.must(w.ch.ExchangeDeclare("t", "topic", true, false, false, false, nil))
		w.queue("q", nil)
		ch := w.as("topical", "", ".*", ".*")
		w.topics("topical", "t", "^mine", "^mine")
		w.must(w.publishes(ch(), "t", "mine.a"))
		w.must(w.publishes(ch(), "amq.topic", "theirs"))
		w.noRight(w.publishes(ch(), "t", "theirs"), "topical", "write", "topic 'theirs' in "+w.in("exchange", "t"))
		w.must(ch().QueueBind("q", "mine.#", "t", false, nil))
		w.noRight(ch().QueueBind("q", "#", "t", false, nil), "topical", "read", "topic '#' in "+w.in("exchange", "t"))
	}},
	{"a right that is withdrawn counts until the channel was idle", func(w *world) {
		w.must(w.ch.ExchangeDeclare("x", "direct", true, false, false, false, nil))
		open := w.as("publisher", "", ".*", "")
		ch := open()
		w.must(w.publishes(ch, "x", "k"))
		w.grant("publisher", "", "", "")
		w.must(w.publishes(ch, "x", "k"))
		w.noRight(w.publishes(open(), "x", "k"), "publisher", "write", w.in("exchange", "x"))
		time.Sleep(3 * time.Second)
		w.noRight(w.publishes(ch, "x", "k"), "publisher", "write", w.in("exchange", "x"))
	}},
}
