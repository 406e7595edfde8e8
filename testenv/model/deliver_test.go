package model_test

import (
	"bytes"
	"context"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"
)

var delivering = []behaviour{
	{"what was delivered as it arrived comes again in its order", func(w *world) {
		w.queue("q", nil)
		ch := w.another()
		from := w.consume(ch, "q")
		w.bodies("q", "a", "b", "c")
		for _, body := range []string{"a", "b", "c"} {
			w.next(from, body)
		}
		w.must(ch.Close())
		w.holds("q", "a", "b", "c")
	}},
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
	{"get: in order, with what is left", func(w *world) {
		w.queue("q", nil)
		w.bodies("q", "a", "b")
		if d := w.get("q"); string(d.Body) != "a" || d.MessageCount != 1 || d.Redelivered || d.RoutingKey != "q" {
			w.Errorf("%+v", d)
		}
		w.holds("q", "b")
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
	{"an acknowledgement of what was not delivered", func(w *world) {
		w.queue("q", nil)
		w.bodies("q", "a")
		ch := w.another()
		closes := ch.NotifyClose(make(chan *amqp.Error, 1))
		d := w.next(w.consume(ch, "q"), "a")
		w.must(d.Ack(false))
		w.must(d.Ack(false))
		w.refused(<-closes, 406, "PRECONDITION_FAILED - unknown delivery tag 1")
	}},
	{"a consumer's tag twice", func(w *world) {
		w.queue("q", nil)
		c := w.connect()
		closes := c.NotifyClose(make(chan *amqp.Error, 1))
		ch := w.channel(c)
		_, err := ch.Consume("q", "c", false, false, false, false, nil)
		w.must(err)
		_, err = ch.Consume("q", "c", false, false, false, false, nil)
		if err == nil {
			w.Error("no error")
		}
		w.refused(<-closes, 530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'")
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
	{"a queue's end cancels its consumers", func(w *world) {
		w.queue("q", nil)
		cancelled := w.ch.NotifyCancel(make(chan string, 1))
		_, err := w.ch.Consume("q", "c", false, false, false, false, nil)
		w.must(err)
		_, err = w.another().QueueDelete("q", false, false, false)
		w.must(err)
		if tag := <-cancelled; tag != "c" {
			w.Errorf("%q is cancelled", tag)
		}
	}},
	{"a channel that has failed leaves the connection open", func(w *world) {
		c := w.connect()
		ch := w.channel(c)
		_, err := ch.QueueDeclarePassive("q", true, false, false, false, nil)
		w.refused(err, 404, "NOT_FOUND - no "+w.in("queue", "q"))
		w.must(w.channel(c).PublishWithContext(context.Background(), "", "q", false, false, amqp.Publishing{}))
	}},
}
