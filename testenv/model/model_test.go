package model_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/model"
)

// world is a model that behaviours are tried on.
type world struct {
	*testing.T
	*brokertest.Client
	since4 bool
	ch     *amqp.Channel // the client's own
}

// behaviour is what the model does as RabbitMQ does it.
type behaviour struct {
	name string
	test func(*world)
}

func TestTheModelBehavesSo(t *testing.T) {
	for _, version := range model.Versions {
		for _, b := range slices.Concat(declaringAndRouting, delivering, quorums, dying) {
			t.Run(version+"/"+b.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					broker := model.New(model.Options{Version: version})
					defer broker.Close()
					w := &world{T: t, since4: version[0] == '4', Client: client(t, broker)}
					w.ch = w.Own()
					b.test(w)
				})
			})
		}
	}
}

func client(t *testing.T, broker *model.Broker) *brokertest.Client {
	return brokertest.NewClient(t, func() *amqp.Connection {
		c, err := amqp.DialConfig("amqp://guest:guest@model/", amqp.Config{Dial: broker.Dial})
		expect.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	})
}

func (w *world) must(err error) {
	w.Helper()
	expect.NoError(w, err)
}

func (w *world) bodies(queue string, bodies ...string) {
	w.Helper()
	for _, body := range bodies {
		w.Publish("", queue, amqp.Publishing{Body: []byte(body)})
	}
}

// get waits for a message in a queue and takes it.
func (w *world) get(queue string) amqp.Delivery {
	w.Helper()
	return w.got(queue, true)
}

// got waits for a message in a queue.
func (w *world) got(queue string, autoAck bool) (d amqp.Delivery) {
	w.Helper()
	for range 1000 {
		d, ok, err := w.ch.Get(queue, autoAck)
		if w.must(err); ok {
			return d
		}
		time.Sleep(time.Second)
	}
	w.Fatalf("nothing arrives in %s", queue)
	return d
}

// holds takes what is in a queue, and checks that it is this.
func (w *world) holds(queue string, bodies ...string) {
	w.Helper()
	for _, body := range bodies {
		if d := w.get(queue); string(d.Body) != body {
			w.Fatalf("%s: %q, want %q", queue, d.Body, body)
		}
	}
	if d, ok, err := w.ch.Get(queue, true); err != nil || ok {
		w.Fatalf("%s: also %q, %v", queue, d.Body, err)
	}
}

func (w *world) consume(ch *amqp.Channel, queue string) <-chan amqp.Delivery {
	w.Helper()
	out, err := ch.Consume(queue, "", false, false, false, false, nil)
	w.must(err)
	return out
}

// next is the next delivery, with this body.
func (w *world) next(from <-chan amqp.Delivery, body string) amqp.Delivery {
	w.Helper()
	select {
	case d := <-from:
		if string(d.Body) != body {
			w.Fatalf("%q is delivered, want %q", d.Body, body)
		}
		return d
	case <-time.After(10 * time.Second):
		w.Fatalf("%q is not delivered", body)
	}
	return amqp.Delivery{}
}

// none fails when something is delivered.
func (w *world) none(from <-chan amqp.Delivery) {
	w.Helper()
	select {
	case d := <-from:
		w.Fatalf("%q is delivered", d.Body)
	case <-time.After(100 * time.Millisecond):
	}
}

func TestTheModelRefusesWhatItDoesNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Options{Version: "4.3.6"})
		defer broker.Close()
		declare := func(durable bool, args amqp.Table) func(*amqp.Channel) error {
			return func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("q", durable, false, false, false, args)
				return err
			}
		}
		for what, do := range map[string]func(*amqp.Channel) error{
			"queue type stream":           declare(true, amqp.Table{"x-queue-type": "stream"}),
			"argument x-max-length-bytes": declare(true, amqp.Table{"x-max-length-bytes": int32(1)}),
			"queue that is exclusive":     declare(false, nil),
			"exchange type 'x-delayed-message'": func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare("x", "x-delayed-message", true, false, false, false, nil)
			},
			"method 90.10":      func(ch *amqp.Channel) error { return ch.Tx() },
			"prefetch in bytes": func(ch *amqp.Channel) error { return ch.Qos(1, 0, true) },
			"header CC": func(ch *amqp.Channel) error {
				ended := ch.NotifyClose(make(chan *amqp.Error, 1))
				if err := ch.Publish("", "", false, false,
					amqp.Publishing{Headers: amqp.Table{"CC": "q"}}); err != nil {
					return err
				}
				return <-ended
			},
		} {
			expect.ErrSays(t, do(client(t, broker).Channel()), what, "540", "has no "+what)
		}
	})
}

var declaringAndRouting = []behaviour{
	{"what does not exist, or is otherwise", func(w *world) {
		w.Queue("q", amqp.Table{"x-message-ttl": int32(1000)})
		w.Queue("q", amqp.Table{"x-message-ttl": int64(1000)})
		w.must(w.ch.ExchangeDeclare("x", "direct", true, false, false, false, nil))
		for _, refused := range []struct {
			code   int
			reason string
			do     func(*amqp.Channel) error
		}{
			{404, "NOT_FOUND - no queue 'none' in vhost '/'", func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclarePassive("none", true, false, false, false, nil)
				return err
			}},
			{404, "NOT_FOUND - no exchange 'none' in vhost '/'", func(ch *amqp.Channel) error {
				return ch.ExchangeDeclarePassive("none", "direct", true, false, false, false, nil)
			}},
			{404, "NOT_FOUND - no exchange 'none' in vhost '/'", func(ch *amqp.Channel) error {
				return ch.QueueBind("q", "", "none", false, nil)
			}},
			{404, "NOT_FOUND - no queue 'none' in vhost '/'", func(ch *amqp.Channel) error {
				return ch.QueueBind("none", "", "x", false, nil)
			}},
			{404, "NOT_FOUND - no queue 'none' in vhost '/'", func(ch *amqp.Channel) error {
				_, err := ch.Consume("none", "", false, false, false, false, nil)
				return err
			}},
			{404, "NOT_FOUND - no exchange 'none' in vhost '/'", func(ch *amqp.Channel) error {
				closes := ch.NotifyClose(make(chan *amqp.Error, 1))
				w.must(ch.Publish("none", "", false, false, amqp.Publishing{}))
				return <-closes
			}},
			{406, "PRECONDITION_FAILED - unknown delivery tag 1", func(ch *amqp.Channel) error {
				closes := ch.NotifyClose(make(chan *amqp.Error, 1))
				w.must(ch.Ack(1, false))
				return <-closes
			}},
			{406, "PRECONDITION_FAILED - inequivalent arg for queue 'q' in vhost '/'", func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-message-ttl": int32(1)})
				return err
			}},
			{406, "PRECONDITION_FAILED - inequivalent arg for exchange 'x' in vhost '/'", func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare("x", "fanout", true, false, false, false, nil)
			}},
		} {
			var e *amqp.Error
			if err := refused.do(w.Channel()); !errors.As(err, &e) || e.Code != refused.code ||
				e.Reason != refused.reason {
				w.Errorf("got  %v\nwant %d %s", err, refused.code, refused.reason)
			}
		}
		n, err := w.ch.QueueDelete("none", false, false, false)
		if w.must(err); n != 0 {
			w.Errorf("%d messages deleted", n)
		}
	}},
	{"a queue's end ends its bindings, and an auto-delete exchange with its last", func(w *world) {
		w.Queue("q", nil)
		w.must(w.ch.ExchangeDeclare("x", "fanout", true, true, false, false, nil))
		w.must(w.ch.QueueBind("q", "", "x", false, nil))
		w.bodies("q", "a")
		if n, err := w.ch.QueueDelete("q", false, false, false); n != 1 || err != nil {
			w.Errorf("%d deleted, %v", n, err)
		}
		if err := w.Channel().ExchangeDeclarePassive("x", "fanout", true, false, false, false, nil); err == nil {
			w.Error("the exchange is still there")
		}
	}},
	{"direct, fanout, topic", func(w *world) {
		w.routes("direct", map[string]string{"a": "a", "c": ""}, "a", "b")
		w.routes("fanout", map[string]string{"c": "a b"}, "a", "b")
		w.routes("topic", map[string]string{"": "#", "a": "# * a.#", "a.b": "# a.* a.# *.b #.b.#",
			"a.b.c": "# a.# #.b.# a.*.c",
			"b":     "# * #.b.#", "a..c": "# a.# a.*.c"}, "#", "*", "a.*", "a.#", "*.b", "#.b.#", "a.*.c")
	}},
	{"alternate and bound exchanges", func(w *world) {
		w.must(w.ch.ExchangeDeclare("x", "direct", true, false, false, false, amqp.Table{"alternate-exchange": "rest"}))
		for _, name := range []string{"rest", "inside"} {
			w.must(w.ch.ExchangeDeclare(name, "fanout", true, false, false, false, nil))
			w.Queue(name, nil)
			w.must(w.ch.QueueBind(name, "", name, false, nil))
		}
		w.must(w.ch.ExchangeBind("inside", "k", "x", false, nil))
		w.Publish("x", "k", amqp.Publishing{Body: []byte("bound")})
		w.Publish("x", "other", amqp.Publishing{Body: []byte("alternate")})
		w.holds("inside", "bound")
		w.holds("rest", "alternate")
	}},
}

// routes binds a queue for each pattern to an exchange of a type, and checks which queues get the message with a key.
func (w *world) routes(kind string, to map[string]string, patterns ...string) {
	w.Helper()
	w.must(w.ch.ExchangeDeclare(kind, kind, true, false, false, false, nil))
	for _, pattern := range patterns {
		w.Queue(kind+pattern, nil)
		w.must(w.ch.QueueBind(kind+pattern, pattern, kind, false, nil))
	}
	for key, want := range to {
		w.Publish(kind, key, amqp.Publishing{})
		var got []string
		for _, pattern := range patterns {
			if _, is, err := w.ch.Get(kind+pattern, true); err != nil {
				w.Fatal(err)
			} else if is {
				got = append(got, pattern)
			}
		}
		if strings.Join(got, " ") != want {
			w.Errorf("%s, key %q: %q, want %q", kind, key, got, want)
		}
	}
}

var delivering = []behaviour{
	{"a message arrives as it was published", func(w *world) {
		w.Queue("q", nil)
		in := amqp.Publishing{
			ContentType: "t", ContentEncoding: "e", DeliveryMode: 2, CorrelationId: "c", ReplyTo: "r",
			Expiration: "60000",
			MessageId:  "m", Timestamp: time.Unix(1_700_000_000, 0).UTC(), Type: "y", AppId: "a",
			Headers: amqp.Table{"bool": true, "byte": byte(200), "int8": int8(-1), "int16": int16(-2),
				"int32": int32(-3), "int64": int64(-4),
				"float32": float32(1.5), "float64": 2.5, "decimal": amqp.Decimal{Scale: 2, Value: 1234}, "text": "t",
				"bytes": []byte{0, 255},
				"time":  time.Unix(1_600_000_000, 0).UTC(), "list": []any{"a", int32(1), amqp.Table{"b": nil}},
				"table": amqp.Table{"k": "v"}, "none": nil},
			Body: bytes.Repeat([]byte("0123456789"), 30_000), // three frames
		}
		w.Publish("", "q", in)
		d := w.get("q")
		out := brokertest.Published(&d)
		out.Headers, out.Timestamp = d.Headers, out.Timestamp.UTC()
		out.Headers["time"] = out.Headers["time"].(time.Time).UTC()
		if diff := cmp.Diff(in, out); diff != "" {
			w.Error(diff)
		}
	}},
	{"requeued messages return to their place, redelivered", func(w *world) {
		w.Queue("q", nil)
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
		w.Queue("q", nil)
		w.bodies("q", "a", "b", "c")
		ch := w.Channel()
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
		w.Queue("q", nil)
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
		w.Queue("q", nil)
		first, second := w.consume(w.ch, "q"), w.consume(w.ch, "q")
		w.bodies("q", "a", "b", "c")
		w.next(first, "a")
		w.next(second, "b")
		w.next(first, "c")
	}},
	{"cancelled consumers keep what they have", func(w *world) {
		w.Queue("q", nil)
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
	maps.Copy(all, args)
	w.Queue(name, all)
}

// seen is what a delivery says of those before it.
func seen(d amqp.Delivery) string {
	return fmt.Sprintf("%s redelivered %t, delivery count %v, acquired count %v", d.Body, d.Redelivered,
		d.Headers["x-delivery-count"], d.Headers["x-acquired-count"])
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
	ch = w.Channel()
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
			ch := w.Channel()
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
		ch := w.Channel()
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
		w.sees(d, "m redelivered false, delivery count 0, acquired count <nil>",
			"m redelivered false, delivery count <nil>, acquired count <nil>")
		w.must(d.Nack(false, true))
		d = w.got("q", false)
		w.sees(d, "m redelivered true, delivery count 1, acquired count <nil>",
			"m redelivered true, delivery count <nil>, acquired count 1")
		w.must(d.Reject(true))
		ch, all := w.consumed("q", 1)
		w.sees(all[0], "m redelivered true, delivery count 2, acquired count <nil>",
			"m redelivered true, delivery count 1, acquired count 2")
		w.must(ch.Close())
		ch, all = w.consumed("q", 1)
		w.sees(all[0], "m redelivered true, delivery count 3, acquired count <nil>",
			"m redelivered true, delivery count 2, acquired count 3")
		w.must(all[0].Ack(false))
		w.must(ch.Close())
		w.quorum("new", nil) // a queue does not know at once that its consumer has ended
		w.bodies("new", "n")
		_, all = w.consumed("new", 1)
		w.sees(all[0], "n redelivered false, delivery count <nil>, acquired count <nil>",
			"n redelivered false, delivery count <nil>, acquired count <nil>")
	}},
	{"the counts of a dead letter", func(w *world) {
		for _, from := range []string{"classic", "quorum"} {
			w.Queue("dead of "+from, amqp.Table{"x-queue-type": "quorum"})
			w.Queue(from, amqp.Table{"x-queue-type": from, "x-dead-letter-exchange": "",
				"x-dead-letter-routing-key": "dead of " + from})
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
				w.Publish("", from, p)
				leave()
				time.Sleep(time.Second)
				on4, again4 := " redelivered false, delivery count <nil>, acquired count <nil>",
					" redelivered true, delivery count 1, acquired count 1"
				if how != "expired" && how != "after nack" {
					on4, again4 = again4, " redelivered true, delivery count 2, acquired count 1"
				}
				ch, all := w.consumed("dead of "+from, 1)
				w.must(ch.Close())
				w.sees(all[0], how+" redelivered false, delivery count <nil>, acquired count <nil>", how+on4)
				w.sees(w.get("dead of "+from), how+" redelivered true, delivery count 1, acquired count <nil>",
					how+again4)
			}
		}
	}},
	{"turns of the consumers of a quorum queue", func(w *world) {
		w.quorum("q", nil)
		var from []<-chan amqp.Delivery
		for range 3 {
			ch := w.Channel()
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
	return amqp.Table{"count": count, "queue": queue, "reason": reason, "exchange": exchange,
		"routing-keys": []any{key}}
}

var dying = []behaviour{
	{"the newest death first, counted, with what expired", func(w *world) {
		w.must(w.ch.ExchangeDeclare("x", "direct", true, false, false, false, nil))
		w.Queue("a", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
		w.Queue("b", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})
		w.must(w.ch.QueueBind("a", "k", "x", false, nil))
		w.Publish("x", "k", amqp.Publishing{Headers: amqp.Table{"own": "1"}, Body: []byte("m")})
		w.reject("a")
		of := entry(1, "a", "rejected", "x", "k")
		d := w.got("b", false)
		w.diesAs(d, of, of)
		w.must(d.Reject(false))
		w.reject("a")
		of["count"] = int64(2)
		w.diesAs(w.get("b"), of, of, entry(1, "b", "rejected", "", "b"))

		w.Publish("", "a", amqp.Publishing{Headers: amqp.Table{"own": "1"}, Expiration: "7", Body: []byte("m")})
		d = w.get("b")
		if d.Expiration != "" || d.Exchange != "" || d.RoutingKey != "b" {
			w.Errorf("%+v", d)
		}
		of = entry(1, "a", "expired", "", "a")
		of["original-expiration"] = "7"
		w.diesAs(d, of, of)
	}},
}

// reject waits for a message and rejects it.
func (w *world) reject(queue string) {
	w.Helper()
	w.must(w.got(queue, false).Reject(false))
}
