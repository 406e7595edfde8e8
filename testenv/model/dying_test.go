package model_test

import (
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// deadLetters declares a queue whose dead letters go to "dead".
func (w *world) deadLetters(name string, args amqp.Table) {
	w.Helper()
	w.queue("dead", nil)
	all := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
	for k, a := range args {
		all[k] = a
	}
	w.queue(name, all)
}

// headersAre compares all headers; times only with now.
func (w *world) headersAre(d amqp.Delivery, want amqp.Table, last amqp.Table) {
	w.Helper()
	entries, _ := d.Headers["x-death"].([]any)
	for _, e := range entries {
		entry := e.(amqp.Table)
		if at, is := entry["time"].(time.Time); !is || time.Since(at) > time.Minute || time.Until(at) > time.Minute {
			w.Errorf("time: %v", entry["time"])
		}
		delete(entry, "time")
	}
	if w.since4 {
		for k, v := range last {
			want[k] = v
		}
	}
	if diff := cmp.Diff(want, d.Headers); diff != "" {
		w.Error(diff)
	}
}

// deathHeaders are x-first-death-* or x-last-death-*.
func deathHeaders(which, queue, reason, exchange string) amqp.Table {
	return amqp.Table{"x-" + which + "-death-queue": queue, "x-" + which + "-death-reason": reason, "x-" + which + "-death-exchange": exchange}
}

func entry(count int64, queue, reason, exchange, key string) amqp.Table {
	return amqp.Table{"count": count, "queue": queue, "reason": reason, "exchange": exchange, "routing-keys": []any{key}}
}

func with(t amqp.Table, key string, value any) amqp.Table {
	t[key] = value
	return t
}

var dying = []behaviour{
	{"a rejected message, twice", func(w *world) {
		w.deadLetters("q", nil)
		w.must(w.ch.ExchangeDeclare("x", "direct", true, false, false, false, nil))
		w.must(w.ch.QueueBind("q", "k", "x", false, nil))
		w.publish("x", "k", amqp.Publishing{Headers: amqp.Table{"own": "1"}, Body: []byte("m")})
		w.reject("q")
		d := w.get("dead")
		if d.Exchange != "" || d.RoutingKey != "dead" || d.Redelivered != w.since4 {
			w.Errorf("%+v", d)
		}
		once := deathHeaders("first", "q", "rejected", "x")
		once["own"], once["x-death"] = "1", []any{entry(1, "q", "rejected", "x", "k")}
		w.headersAre(d, once, deathHeaders("last", "q", "rejected", "x"))
	}},
	{"through two queues and back: the newest death first, counted", func(w *world) {
		w.queue("end", nil)
		w.queue("a", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
		w.queue("b", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})
		w.bodies("a", "m")
		for _, q := range []string{"a", "b", "a"} {
			w.reject(q)
		}
		w.headersAre(w.get("b"), with(deathHeaders("first", "a", "rejected", ""), "x-death",
			[]any{entry(2, "a", "rejected", "", "a"), entry(1, "b", "rejected", "", "b")}), deathHeaders("last", "a", "rejected", ""))
	}},
	{"through four queues: where the others are, on RabbitMQ 3, turns around each time", func(w *world) {
		names := []string{"a", "b", "c", "d", "end"}
		w.queue("end", nil)
		for i, name := range names[:4] {
			w.queue(name, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": names[i+1]})
		}
		w.bodies("a", "m")
		order := ""
		for _, name := range names[:4] {
			w.reject(name)
		}
		for _, e := range w.get("end").Headers["x-death"].([]any) {
			order += e.(amqp.Table)["queue"].(string)
		}
		if want := "dcba"; w.since4 {
			w.is("order", order, want)
		} else {
			w.is("order", order, "dbac")
		}
	}},
	{"expired by its queue, and by itself", func(w *world) {
		w.deadLetters("q", amqp.Table{"x-message-ttl": int32(50)})
		w.bodies("q", "m")
		w.headersAre(w.get("dead"), with(deathHeaders("first", "q", "expired", ""), "x-death", []any{entry(1, "q", "expired", "", "q")}), deathHeaders("last", "q", "expired", ""))
		w.publish("", "q", amqp.Publishing{Expiration: "7", Body: []byte("m")})
		d := w.get("dead")
		if d.Expiration != "" {
			w.Errorf("it still has its expiration: %s", d.Expiration)
		}
		w.headersAre(d, with(deathHeaders("first", "q", "expired", ""), "x-death",
			[]any{with(entry(1, "q", "expired", "", "q"), "original-expiration", "7")}), deathHeaders("last", "q", "expired", ""))
	}},
	{"a dead letter is not redelivered to a consumer that waits at a classic queue", func(w *world) {
		w.deadLetters("q", nil)
		dead := w.consume(w.another(), "dead")
		w.bodies("q", "m")
		w.reject("q")
		if d := w.next(dead, "m"); d.Redelivered {
			w.Error("it is redelivered")
		}
	}},
	{"messages expire at the head only", func(w *world) {
		w.deadLetters("q", nil)
		began := time.Now()
		w.publish("", "q", amqp.Publishing{Expiration: "700", Body: []byte("slow")})
		w.publish("", "q", amqp.Publishing{Expiration: "20", Body: []byte("fast")})
		w.arrive("dead", "slow", "fast")
		if waited := time.Since(began); waited < 700*time.Millisecond {
			w.Errorf("they expired after %s", waited)
		}
	}},
	{"an expired message at the head is not delivered", func(w *world) {
		w.deadLetters("q", nil)
		w.publish("", "q", amqp.Publishing{Expiration: "20", Body: []byte("gone")})
		w.bodies("q", "stays")
		w.arrive("dead", "gone")
		w.next(w.consume(w.ch, "q"), "stays")
	}},
	{"a message of a TTL of 0 is delivered to who waits", func(w *world) {
		w.queue("q", amqp.Table{"x-message-ttl": int32(0)})
		w.bodies("q", "none waits")
		w.holds("q")
		from := w.consume(w.ch, "q")
		w.bodies("q", "m")
		w.next(from, "m")
	}},
	{"a cycle without a rejection ends", func(w *world) {
		w.queue("work", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait", "x-message-ttl": int32(20)})
		w.queue("wait", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": int32(20)})
		w.queue("rung", nil)
		w.queue("clock", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rung", "x-message-ttl": int32(500)})
		w.bodies("work", "m")
		w.bodies("clock", "as long as twelve rounds")
		w.arrive("rung", "as long as twelve rounds")
		w.holds("work")
		w.holds("wait")
		w.queue("rejected", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "back"})
		w.queue("back", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rejected", "x-message-ttl": int32(20)})
		w.bodies("rejected", "m")
		w.reject("rejected")
		w.arrive("rejected", "m")
	}},
	{"a dead letter without a target is lost", func(w *world) {
		w.queue("none", amqp.Table{"x-dead-letter-exchange": "not there"})
		w.bodies("none", "m")
		w.reject("none")
		w.holds("none")
	}},
	{"a client's x-death is counted on by RabbitMQ 3, replaced by 4", func(w *world) {
		w.deadLetters("q", nil)
		w.bodies("q", "m")
		w.reject("q")
		d := w.get("dead")
		w.publish("", "q", amqp.Publishing{Headers: d.Headers, Body: []byte("again")})
		w.reject("q")
		n := int64(2)
		if w.since4 {
			n = 1
		}
		w.headersAre(w.get("dead"), with(deathHeaders("first", "q", "rejected", ""), "x-death", []any{entry(n, "q", "rejected", "", "q")}), deathHeaders("last", "q", "rejected", ""))
	}},
}

// arrive waits for messages, in this order.
func (w *world) arrive(queue string, bodies ...string) {
	w.Helper()
	for _, body := range bodies {
		if d := w.get(queue); string(d.Body) != body {
			w.Errorf("%q arrives in %s, want %q", d.Body, queue, body)
		}
	}
}

// reject waits for a message and rejects it.
func (w *world) reject(queue string) {
	w.Helper()
	w.must(w.got(queue, false).Reject(false))
}
