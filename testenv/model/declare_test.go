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
	}},
	{"queues and exchanges declared again otherwise", func(w *world) {
		w.queue("q", amqp.Table{"x-message-ttl": int32(1000)})
		w.queue("q", amqp.Table{"x-message-ttl": int64(1000)})
		w.refused(w.declared("q", true, false, amqp.Table{"x-message-ttl": int32(1)}), 406, "PRECONDITION_FAILED - inequivalent arg for "+w.in("queue", "q"))
		w.refused(w.declared("q", true, false, nil), 406, "PRECONDITION_FAILED - inequivalent arg for "+w.in("queue", "q"))
		w.must(w.ch.ExchangeDeclare("x", "direct", true, false, false, false, nil))
		w.refused(w.another().ExchangeDeclare("x", "fanout", true, false, false, false, nil), 406, "PRECONDITION_FAILED - inequivalent arg for "+w.in("exchange", "x"))
	}},
	{"a queue's end ends its bindings, and an auto-delete exchange with its last", func(w *world) {
		w.queue("q", nil)
		w.must(w.ch.ExchangeDeclare("x", "fanout", true, true, false, false, nil))
		w.must(w.ch.QueueBind("q", "", "x", false, nil))
		w.bodies("q", "a")
		if n, err := w.ch.QueueDelete("q", false, false, false); n != 1 || err != nil {
			w.Errorf("%d deleted, %v", n, err)
		}
		w.refused(w.another().ExchangeDeclarePassive("x", "fanout", true, false, false, false, nil), 404, "NOT_FOUND - no "+w.in("exchange", "x"))
	}},
}
