package model_test

import (
	"bytes"
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"
)

var delivering = []behaviour{
	{"a message arrives as it was published", func(w *world) {
		w.queue("q", nil)
		in := amqp.Publishing{
			ContentType: "t", ContentEncoding: "e", DeliveryMode: 2, CorrelationId: "c", ReplyTo: "r", Expiration: "60000",
			MessageId: "m", Timestamp: time.Unix(1_700_000_000, 0).UTC(), Type: "y", AppId: "a",
			Headers: amqp.Table{"bool": true, "byte": byte(200), "int8": int8(-1), "int16": int16(-2), "int32": int32(-3), "int64": int64(-4),
				"float32": float32(1.5), "float64": 2.5, "decimal": amqp.Decimal{Scale: 2, Value: 1234}, "text": "t", "bytes": []byte{0, 255},
				"time": time.Unix(1_600_000_000, 0).UTC(), "list": []any{"a", int32(1), amqp.Table{"b": nil}}, "table": amqp.Table{"k": "v"}, "none": nil},
			Body: bytes.Repeat([]byte("0123456789"), 30_000), // three frames
		}
		w.publish("", "q", in)
		d := w.get("q")
		out := amqp.Publishing{Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
			CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId,
			Timestamp: d.Timestamp.UTC(), Type: d.Type, AppId: d.AppId, Body: d.Body}
		for _, key := range []string{"time"} {
			out.Headers[key] = out.Headers[key].(time.Time).UTC()
		}
		if diff := cmp.Diff(in, out); diff != "" {
			w.Error(diff)
		}
	}},
	{"requeued messages return to their place, redelivered", func(w *world) {
		w.queue("q", nil)
		w.bodies("q", "a", "b", "c", "d")
		var taken []amqp.Delivery
		for range 3 {
			d, _, err := w.ch.Get("q", false)
			w.must(err)
			taken = append(taken, d)
		}
		w.must(taken[1].Nack(false, true))
		w.must(taken[0].Reject(true))
		for _, want := range []string{"a", "b"} {
			if d := w.get("q"); string(d.Body) != want || !d.Redelivered {
				w.Errorf("%q, redelivered %t, want %q", d.Body, d.Redelivered, want)
			}
		}
		w.must(taken[2].Nack(true, true))
		w.holds("q", "c", "d")
	}},
	{"a channel's end requeues what is unacknowledged", func(w *world) {
		w.queue("q", nil)
		w.bodies("q", "a", "b", "c")
		ch := w.another()
		from := w.consume(ch, "q")
		w.must(w.next(from, "a").Ack(false))
		w.next(from, "b")
		w.next(from, "c")
		w.must(ch.Close())
		if d := w.get("q"); string(d.Body) != "b" || !d.Redelivered {
			w.Errorf("%q, redelivered %t", d.Body, d.Redelivered)
		}
		w.holds("q", "c")
	}},
	{"prefetch, per consumer", func(w *world) {
		w.queue("q", nil)
		w.must(w.ch.Qos(2, 0, false))
		from := w.consume(w.ch, "q")
		w.bodies("q", "a", "b", "c", "d", "e")
		w.next(from, "a")
		b := w.next(from, "b")
		w.none(from)
		w.must(b.Ack(true))
		w.next(from, "c")
		d := w.next(from, "d")
		w.none(from)
		w.must(d.Ack(false))
		w.next(from, "e")
	}},
	{"consumers take turns", func(w *world) {
		w.queue("q", nil)
		first, second := w.consume(w.ch, "q"), w.consume(w.ch, "q")
		w.bodies("q", "a", "b", "c")
		w.next(first, "a")
		w.next(second, "b")
		w.next(first, "c")
	}},
	{"cancelled consumers keep what they have", func(w *world) {
		w.queue("q", nil)
		from, err := w.ch.Consume("q", "c", false, false, false, false, nil)
		w.must(err)
		w.bodies("q", "a")
		d := w.next(from, "a")
		w.must(w.ch.Cancel("c", false))
		w.bodies("q", "b")
		w.holds("q", "b")
		w.must(d.Nack(false, true))
		w.holds("q", "a")
	}},
}

// quorum declares a quorum queue.
func (w *world) quorum(name string, args amqp.Table) {
	w.Helper()
	all := amqp.Table{"x-queue-type": "quorum"}
	for k, a := range args {
		all[k] = a
	}
	w.queue(name, all)
}

// seen is what a delivery says of those before it.
func seen(d amqp.Delivery) string {
	return fmt.Sprintf("%s redelivered %t, delivery count %v, acquired count %v", d.Body, d.Redelivered, d.Headers["x-delivery-count"], d.Headers["x-acquired-count"])
}

func (w *world) sees(d amqp.Delivery, on3, on4 string) {
	w.Helper()
	want := on3
	if w.since4 {
		want = on4
	}
	if got := seen(d); got != want {
		w.Errorf("got  %s\nwant %s", got, want)
	}
}

// consumed are the next deliveries of a queue, which no one acknowledges before the channel
// ends.
func (w *world) consumed(queue string, n int) (ch *amqp.Channel, all []amqp.Delivery) {
	w.Helper()
	ch = w.another()
	from := w.consume(ch, queue)
	for range n {
		select {
		case d := <-from:
			all = append(all, d)
		case <-time.After(10 * time.Second):
			w.Fatalf("%d of %d are delivered", len(all), n)
		}
	}
	return ch, all
}

// order consumes so many messages, and requeues them.
func (w *world) order(queue string, n int) (bodies string) {
	w.Helper()
	ch, all := w.consumed(queue, n)
	for _, d := range all {
		bodies += string(d.Body)
	}
	w.must(ch.Close())
	return bodies
}

func (w *world) is(what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s: %q, want %q", what, got, want)
	}
}

// settled waits until RabbitMQ has seen what the channel sent before.
func (w *world) settled(ch *amqp.Channel) {
	w.Helper()
	w.must(ch.Qos(0, 0, false))
	time.Sleep(100 * time.Millisecond)
}

var quorums = []behaviour{
	{"a quorum queue delivers first what was returned, in that order", func(w *world) {
		for _, name := range []string{"limited", "unlimited"} {
			args, want := amqp.Table{"x-delivery-limit": int64(1000)}, "cbade"
			switch {
			case name == "unlimited" && !w.since4:
				args, want = nil, "cdeba" // what a client returns goes to the end
			case name == "unlimited":
				args = amqp.Table{"x-delivery-limit": int64(-1)}
			}
			w.quorum(name, args)
			w.bodies(name, "a", "b", "c", "d", "e")
			ch := w.another()
			w.must(ch.Qos(3, 0, false))
			from := w.consume(ch, name)
			a, b := w.next(from, "a"), w.next(from, "b")
			w.next(from, "c")
			w.must(b.Nack(false, true)) // and has it again
			w.must(a.Reject(true))
			w.settled(ch)
			w.must(ch.Close())
			w.is(name, w.order(name, 5), want)
		}
	}},
	{"a quorum queue gets several back at once", func(w *world) {
		w.quorum("q", amqp.Table{"x-delivery-limit": int64(1000)})
		w.bodies("q", "a", "b", "c", "d", "e")
		ch := w.another()
		w.must(ch.Qos(3, 0, false))
		from := w.consume(ch, "q")
		w.next(from, "a")
		w.next(from, "b")
		w.must(w.next(from, "c").Nack(true, true))
		w.settled(ch)
		w.must(ch.Close())
		w.is("order", w.order("q", 5), "abcde")
	}},
	{"the counts of a delivery", func(w *world) {
		w.quorum("q", amqp.Table{"x-delivery-limit": int64(1000)})
		w.bodies("q", "m")
		d := w.got("q", false)
		w.sees(d, "m redelivered false, delivery count 0, acquired count <nil>", "m redelivered false, delivery count <nil>, acquired count <nil>")
		w.must(d.Nack(false, true))
		d = w.got("q", false)
		w.sees(d, "m redelivered true, delivery count 1, acquired count <nil>", "m redelivered true, delivery count <nil>, acquired count 1")
		w.must(d.Reject(true))
		ch, all := w.consumed("q", 1)
		w.sees(all[0], "m redelivered true, delivery count 2, acquired count <nil>", "m redelivered true, delivery count 1, acquired count 2")
		w.must(ch.Close())
		ch, all = w.consumed("q", 1)
		w.sees(all[0], "m redelivered true, delivery count 3, acquired count <nil>", "m redelivered true, delivery count 2, acquired count 3")
		w.must(all[0].Ack(false))
		w.must(ch.Close())
		w.quorum("new", nil) // a queue does not know at once that its consumer has ended
		w.bodies("new", "n")
		_, all = w.consumed("new", 1)
		w.sees(all[0], "n redelivered false, delivery count <nil>, acquired count <nil>", "n redelivered false, delivery count <nil>, acquired count <nil>")
	}},
	{"the counts of a dead letter", func(w *world) {
		for _, from := range []string{"classic", "quorum"} {
			w.queue("dead of "+from, amqp.Table{"x-queue-type": "quorum"})
			w.queue(from, amqp.Table{"x-queue-type": from, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead of " + from})
			for how, leave := range map[string]func(){
				"rejected":      func() { w.reject(from) },
				"expired":       func() {},
				"after reject":  func() { w.must(w.got(from, false).Reject(true)) },
				"after nack":    func() { w.must(w.got(from, false).Nack(false, true)) },
				"after the end": func() { w.order(from, 1) },
			} {
				p := amqp.Publishing{Body: []byte(how)}
				if how != "rejected" {
					p.Expiration = "300"
				}
				w.publish("", from, p)
				leave()
				time.Sleep(time.Second)
				on4, again4 := " redelivered false, delivery count <nil>, acquired count <nil>", " redelivered true, delivery count 1, acquired count 1"
				if how != "expired" && how != "after nack" {
					on4, again4 = again4, " redelivered true, delivery count 2, acquired count 1"
				}
				ch, all := w.consumed("dead of "+from, 1)
				w.must(ch.Close())
				w.sees(all[0], how+" redelivered false, delivery count <nil>, acquired count <nil>", how+on4)
				w.sees(w.get("dead of "+from), how+" redelivered true, delivery count 1, acquired count <nil>", how+again4)
			}
		}
	}},
	{"turns of the consumers of a quorum queue", func(w *world) {
		w.quorum("q", nil)
		var from []<-chan amqp.Delivery
		for range 3 {
			ch := w.another()
			w.must(ch.Qos(1, 0, false))
			from = append(from, w.consume(ch, "q"))
		}
		w.bodies("q", "a", "b", "c")
		a, b, _ := w.next(from[0], "a"), w.next(from[1], "b"), w.next(from[2], "c")
		w.must(b.Ack(false))
		time.Sleep(50 * time.Millisecond)
		w.must(a.Ack(false))
		time.Sleep(50 * time.Millisecond)
		w.bodies("q", "d", "e")
		w.next(from[1], "d")
		w.next(from[0], "e")
	}},
}

// diesAs compares all headers; times only with now. The first of the deaths is the last.
func (w *world) diesAs(d amqp.Delivery, first amqp.Table, deaths ...amqp.Table) {
	w.Helper()
	want := amqp.Table{"own": "1"}
	var entries []any
	for _, e := range deaths {
		entries = append(entries, e)
	}
	want["x-death"] = entries
	for which, of := range map[string]amqp.Table{"first": first, "last": deaths[0]} {
		for _, key := range []string{"queue", "reason", "exchange"} {
			if which == "first" || w.since4 {
				want["x-"+which+"-death-"+key] = of[key]
			}
		}
	}
	for _, e := range d.Headers["x-death"].([]any) {
		if at, is := e.(amqp.Table)["time"].(time.Time); !is || time.Since(at).Abs() > time.Minute {
			w.Errorf("time: %v", at)
		}
		delete(e.(amqp.Table), "time")
	}
	if diff := cmp.Diff(want, d.Headers); diff != "" {
		w.Error(diff)
	}
}

func entry(count int64, queue, reason, exchange, key string) amqp.Table {
	return amqp.Table{"count": count, "queue": queue, "reason": reason, "exchange": exchange, "routing-keys": []any{key}}
}

var dying = []behaviour{
	{"the newest death first, counted, with what expired", func(w *world) {
		w.must(w.ch.ExchangeDeclare("x", "direct", true, false, false, false, nil))
		w.queue("a", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
		w.queue("b", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})
		w.must(w.ch.QueueBind("a", "k", "x", false, nil))
		w.publish("x", "k", amqp.Publishing{Headers: amqp.Table{"own": "1"}, Body: []byte("m")})
		w.reject("a")
		of := entry(1, "a", "rejected", "x", "k")
		d := w.got("b", false)
		w.diesAs(d, of, of)
		w.must(d.Reject(false))
		w.reject("a")
		of["count"] = int64(2)
		w.diesAs(w.get("b"), of, of, entry(1, "b", "rejected", "", "b"))

		w.publish("", "a", amqp.Publishing{Headers: amqp.Table{"own": "1"}, Expiration: "7", Body: []byte("m")})
		d = w.get("b")
		if d.Expiration != "" || d.Exchange != "" || d.RoutingKey != "b" {
			w.Errorf("%+v", d)
		}
		of = entry(1, "a", "expired", "", "a")
		of["original-expiration"] = "7"
		w.diesAs(d, of, of)
	}},
	{"a dead letter without an exchange is lost", func(w *world) {
		w.queue("none", amqp.Table{"x-dead-letter-exchange": "not there"})
		w.bodies("none", "m")
		w.reject("none")
		w.holds("none")
	}},
}

// reject waits for a message and rejects it.
func (w *world) reject(queue string) {
	w.Helper()
	w.must(w.got(queue, false).Reject(false))
}
