package model_test

import (
	"context"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// bound declares an exchange and a queue for each key, with the key's name.
func (w *world) bound(exchange, kind string, keys ...string) {
	w.Helper()
	w.must(w.ch.ExchangeDeclare(exchange, kind, true, false, false, false, nil))
	for _, key := range keys {
		w.queue(exchange+" "+key, nil)
		w.must(w.ch.QueueBind(exchange+" "+key, key, exchange, false, nil))
	}
}

// reaches publishes, and checks which of the queues get the message.
func (w *world) reaches(exchange, key string, headers amqp.Table, among, want []string) {
	w.Helper()
	w.confirmed(exchange, key, false, amqp.Publishing{Headers: headers, Body: []byte("m")})
	for _, q := range among {
		_, is, err := w.ch.Get(exchange+" "+q, true)
		w.must(err)
		if is != slices.Contains(want, q) {
			w.Errorf("key %q, headers %v: queue %q has the message: %t", key, headers, q, is)
		}
	}
}

// confirmed publishes and waits for the answer: true is an ack.
func (w *world) confirmed(exchange, key string, mandatory bool, p amqp.Publishing) bool {
	w.Helper()
	w.must(w.ch.Confirm(false))
	c, err := w.ch.PublishWithDeferredConfirmWithContext(context.Background(), exchange, key, mandatory, false, p)
	w.must(err)
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		w.Fatal("no confirm")
	}
	return c.Acked()
}

var routing = []behaviour{
	{"direct, fanout", func(w *world) {
		keys := []string{"a", "b"}
		w.bound("d", "direct", keys...)
		w.bound("f", "fanout", keys...)
		w.reaches("d", "a", nil, keys, []string{"a"})
		w.reaches("d", "c", nil, keys, nil)
		w.reaches("f", "c", nil, keys, keys)
	}},
	{"topic", func(w *world) {
		keys := []string{"#", "*", "a.*", "a.#", "*.b", "#.b.#", "a.*.c"}
		w.bound("t", "topic", keys...)
		for key, want := range map[string][]string{
			"":      {"#"},
			"a":     {"#", "*", "a.#"},
			"a.b":   {"#", "a.*", "a.#", "*.b", "#.b.#"},
			"a.b.c": {"#", "a.#", "#.b.#", "a.*.c"},
			"b":     {"#", "*", "#.b.#"},
			"a..c":  {"#", "a.#", "a.*.c"},
		} {
			w.reaches("t", key, nil, keys, want)
		}
	}},
	{"alternate, internal and bound exchanges", func(w *world) {
		w.bound("rest", "fanout", "rest")
		w.must(w.ch.ExchangeDeclare("x", "direct", true, false, false, false, amqp.Table{"alternate-exchange": "rest"}))
		w.must(w.ch.ExchangeDeclare("inside", "fanout", true, false, true, false, nil))
		w.queue("q", nil)
		w.must(w.ch.ExchangeBind("inside", "k", "x", false, nil))
		w.must(w.ch.QueueBind("q", "", "inside", false, nil))
		w.publish("x", "k", amqp.Publishing{Body: []byte("bound")})
		w.holds("q", "bound")
		w.publish("x", "other", amqp.Publishing{Body: []byte("alternate")})
		w.holds("rest rest", "alternate")
		ch := w.another()
		closes := ch.NotifyClose(make(chan *amqp.Error, 1))
		w.must(ch.PublishWithContext(context.Background(), "inside", "", false, false, amqp.Publishing{}))
		w.refused(<-closes, 403, "ACCESS_REFUSED - cannot publish to internal "+w.in("exchange", "inside"))
	}},
	{"no exchange", func(w *world) {
		ch := w.another()
		closes := ch.NotifyClose(make(chan *amqp.Error, 1))
		w.must(ch.PublishWithContext(context.Background(), "x", "", false, false, amqp.Publishing{}))
		w.refused(<-closes, 404, "NOT_FOUND - no "+w.in("exchange", "x"))
	}},
	{"what cannot be routed is confirmed, and returned when mandatory", func(w *world) {
		returned := w.ch.NotifyReturn(make(chan amqp.Return, 1))
		if !w.confirmed("", "nowhere", false, amqp.Publishing{}) || len(returned) != 0 {
			w.Error("not confirmed, or returned")
		}
		if !w.confirmed("amq.direct", "nowhere", true, amqp.Publishing{Body: []byte("m"), Headers: amqp.Table{"h": int64(1)}}) {
			w.Error("not confirmed")
		}
		r := <-returned
		if r.ReplyCode != 312 || r.ReplyText != "NO_ROUTE" || r.Exchange != "amq.direct" || r.RoutingKey != "nowhere" || string(r.Body) != "m" || r.Headers["h"] != int64(1) {
			w.Errorf("returned: %+v", r)
		}
	}},
}
