package model_test

import (
	amqp "github.com/rabbitmq/amqp091-go"
)

// in is a thing of the virtual host, as errors name it.
func (w *world) in(kind, name string) string {
	return kind + " '" + name + "' in vhost '" + w.vhost + "'"
}

// declared is the error of declaring a queue.
func (w *world) declared(name string, durable, exclusive bool, args amqp.Table) error {
	_, err := w.another().QueueDeclare(name, durable, false, exclusive, false, args)
	return err
}

var declaring = []behaviour{
	{"what does not exist", func(w *world) {
		_, err := w.another().QueueDeclarePassive("q", true, false, false, false, nil)
		w.refused(err, 404, "NOT_FOUND - no "+w.in("queue", "q"))
		w.refused(w.another().ExchangeDeclarePassive("x", "direct", true, false, false, false, nil), 404, "NOT_FOUND - no "+w.in("exchange", "x"))
		w.queue("there", nil)
		w.refused(w.another().QueueBind("there", "", "x", false, nil), 404, "NOT_FOUND - no "+w.in("exchange", "x"))
		w.refused(w.another().QueueBind("q", "", "amq.direct", false, nil), 404, "NOT_FOUND - no "+w.in("queue", "q"))
		_, err = w.another().Consume("q", "", false, false, false, false, nil)
		w.refused(err, 404, "NOT_FOUND - no "+w.in("queue", "q"))
		n, err := w.ch.QueueDelete("q", false, false, false)
		if w.must(err); n != 0 {
			w.Errorf("%d messages deleted", n)
		}
		w.must(w.ch.ExchangeDelete("x", false, false))
	}},
	{"queues declared again otherwise", func(w *world) {
		w.queue("q", amqp.Table{"x-message-ttl": int32(1000)})
		w.queue("q", amqp.Table{"x-message-ttl": int64(1000)})
		w.refused(w.declared("q", true, false, amqp.Table{"x-message-ttl": int32(1)}), 406, "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for "+w.in("queue", "q")+
			": received '1' but current is '1000'")
		w.queue("text", amqp.Table{"x-dead-letter-exchange": "a"})
		w.refused(w.declared("text", true, false, amqp.Table{"x-dead-letter-exchange": "b"}), 406, "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for "+w.in("queue", "text")+
			": received 'b' but current is 'a'")
		w.refused(w.declared("q", true, false, nil), 406, "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for "+w.in("queue", "q")+
			": received none but current is the value '1000' of type 'signedint'")
		_, err := w.another().QueueDeclare("q", true, true, false, false, nil)
		w.refused(err, 406, "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for "+w.in("queue", "q")+": received 'true' but current is 'false'")
	}},
	{"reserved names", func(w *world) {
		w.refused(w.declared("amq.mine", true, false, nil), 403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'")
		w.refused(w.another().ExchangeDeclare("amq.mine", "direct", true, false, false, false, nil), 403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'")
		w.refused(w.another().ExchangeDelete("amq.direct", false, false), 403, "ACCESS_REFUSED - deletion of system "+w.in("exchange", "amq.direct")+" not allowed")
		w.queue("q", nil)
		w.refused(w.another().QueueBind("q", "k", "", false, nil), 403, "ACCESS_REFUSED - operation not permitted on the default exchange")
	}},
	{"exchanges declared again otherwise, and in use", func(w *world) {
		w.must(w.ch.ExchangeDeclare("x", "direct", true, false, false, false, nil))
		w.refused(w.another().ExchangeDeclare("x", "fanout", true, false, false, false, nil), 406,
			"PRECONDITION_FAILED - inequivalent arg 'type' for "+w.in("exchange", "x")+": received 'fanout' but current is 'direct'")
		w.refused(w.another().ExchangeDeclare("x", "direct", true, false, false, false, amqp.Table{"alternate-exchange": "y"}), 406,
			"PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for "+w.in("exchange", "x")+": received the value 'y' of type 'longstr' but current is none")
		w.queue("q", nil)
		w.must(w.ch.QueueBind("q", "k", "x", false, nil))
		w.refused(w.another().ExchangeDelete("x", true, false), 406, "PRECONDITION_FAILED - "+w.in("exchange", "x")+" in use")
	}},
	{"queues in use and not empty", func(w *world) {
		w.queue("q", nil)
		w.bodies("q", "a", "b")
		_, err := w.another().QueueDelete("q", false, true, false)
		w.refused(err, 406, "PRECONDITION_FAILED - "+w.in("queue", "q")+" not empty")
		w.consume(w.ch, "q")
		_, err = w.another().QueueDelete("q", true, false, false)
		w.refused(err, 406, "PRECONDITION_FAILED - "+w.in("queue", "q")+" in use")
	}},
	{"purge and delete count what is ready", func(w *world) {
		w.queue("q", nil)
		w.bodies("q", "a", "b", "c")
		if _, ok, err := w.ch.Get("q", false); err != nil || !ok {
			w.Fatal(ok, err)
		}
		if n, err := w.ch.QueuePurge("q", false); n != 2 || err != nil {
			w.Errorf("%d purged, %v", n, err)
		}
		w.bodies("q", "d")
		if n, err := w.ch.QueueDelete("q", false, false, false); n != 1 || err != nil {
			w.Errorf("%d deleted, %v", n, err)
		}
	}},
	{"auto-delete", func(w *world) {
		_, err := w.ch.QueueDeclare("q", true, true, false, false, nil)
		w.must(err)
		w.must(w.ch.ExchangeDeclare("x", "fanout", true, true, false, false, nil))
		w.must(w.ch.QueueBind("q", "", "x", false, nil))
		_, err = w.ch.Consume("q", "c", false, false, false, false, nil)
		w.must(err)
		w.must(w.ch.Cancel("c", false))
		_, err = w.another().QueueDeclarePassive("q", true, false, false, false, nil)
		w.refused(err, 404, "NOT_FOUND - no "+w.in("queue", "q"))
		w.refused(w.another().ExchangeDeclarePassive("x", "fanout", true, false, false, false, nil), 404, "NOT_FOUND - no "+w.in("exchange", "x"))
	}},
}
