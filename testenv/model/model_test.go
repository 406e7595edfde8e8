package model_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/model"
)

// world is a model that behaviours are tried on.
type world struct {
	*testing.T
	since4 bool
	dial   func() (*amqp.Connection, error)
	ch     *amqp.Channel // of the first connection
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
					w := &world{T: t, since4: version[0] == '4', dial: func() (*amqp.Connection, error) {
						return amqp.DialConfig("amqp://guest:guest@model/", amqp.Config{Dial: broker.Dial})
					}}
					w.ch = w.channel(w.connect())
					b.test(w)
				})
			})
		}
	}
}

func (w *world) connect() *amqp.Connection {
	w.Helper()
	c, err := w.dial()
	w.must(err)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *world) channel(c *amqp.Connection) *amqp.Channel {
	w.Helper()
	ch, err := c.Channel()
	w.must(err)
	return ch
}

// another is a channel of its own connection, which can fail without harm.
func (w *world) another() *amqp.Channel { return w.channel(w.connect()) }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) queue(name string, args amqp.Table) {
	w.Helper()
	_, err := w.ch.QueueDeclare(name, true, false, false, false, args)
	w.must(err)
}

// publish publishes and waits for the answer, so that other connections find the message.
func (w *world) publish(exchange, key string, p amqp.Publishing) {
	w.Helper()
	w.must(w.ch.Confirm(false))
	c, err := w.ch.PublishWithDeferredConfirm(exchange, key, false, false, p)
	if w.must(err); !c.Wait() {
		w.Fatal("it is not confirmed")
	}
}

func (w *world) bodies(queue string, bodies ...string) {
	w.Helper()
	for _, body := range bodies {
		w.publish("", queue, amqp.Publishing{Body: []byte(body)})
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
				if err := ch.Publish("", "", false, false, amqp.Publishing{Headers: amqp.Table{"CC": "q"}}); err != nil {
					return err
				}
				return <-ended
			},
		} {
			c, err := amqp.DialConfig("amqp://guest:guest@model/", amqp.Config{Dial: broker.Dial})
			if err != nil {
				t.Fatal(err)
			}
			ch, err := c.Channel()
			if err != nil {
				t.Fatal(err)
			}
			if err = do(ch); err == nil || !strings.Contains(err.Error(), "540") || !strings.Contains(err.Error(), "has no "+what) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

var declaringAndRouting = []behaviour{
	{"what does not exist, or is otherwise", func(w *world) {
		w.queue("q", amqp.Table{"x-message-ttl": int32(1000)})
		w.queue("q", amqp.Table{"x-message-ttl": int64(1000)})
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
			{404, "NOT_FOUND - no exchange 'none' in vhost '/'", func(ch *amqp.Channel) error { return ch.QueueBind("q", "", "none", false, nil) }},
			{404, "NOT_FOUND - no queue 'none' in vhost '/'", func(ch *amqp.Channel) error { return ch.QueueBind("none", "", "x", false, nil) }},
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
			if err := refused.do(w.another()); !errors.As(err, &e) || e.Code != refused.code || e.Reason != refused.reason {
				w.Errorf("got  %v\nwant %d %s", err, refused.code, refused.reason)
			}
		}
		n, err := w.ch.QueueDelete("none", false, false, false)
		if w.must(err); n != 0 {
			w.Errorf("%d messages deleted", n)
		}
	}},
	{"a queue's end ends its bindings, and an auto-delete exchange with its last", func(w *world) {
		w.queue("q", nil)
		w.must(w.ch.ExchangeDeclare("x", "fanout", true, true, false, false, nil))
		w.must(w.ch.QueueBind("q", "", "x", false, nil))
		w.bodies("q", "a")
		if n, err := w.ch.QueueDelete("q", false, false, false); n != 1 || err != nil {
			w.Errorf("%d deleted, %v", n, err)
		}
		if err := w.another().ExchangeDeclarePassive("x", "fanout", true, false, false, false, nil); err == nil {
			w.Error("the exchange is still there")
		}
	}},
	{"direct, fanout, topic", func(w *world) {
		w.routes("direct", map[string]string{"a": "a", "c": ""}, "a", "b")
		w.routes("fanout", map[string]string{"c": "a b"}, "a", "b")
		w.routes("topic", map[string]string{"": "#", "a": "# * a.#", "a.b": "# a.* a.# *.b #.b.#", "a.b.c": "# a.# #.b.# a.*.c",
			"b": "# * #.b.#", "a..c": "# a.# a.*.c"}, "#", "*", "a.*", "a.#", "*.b", "#.b.#", "a.*.c")
	}},
	{"alternate and bound exchanges", func(w *world) {
		w.must(w.ch.ExchangeDeclare("x", "direct", true, false, false, false, amqp.Table{"alternate-exchange": "rest"}))
		for _, name := range []string{"rest", "inside"} {
			w.must(w.ch.ExchangeDeclare(name, "fanout", true, false, false, false, nil))
			w.queue(name, nil)
			w.must(w.ch.QueueBind(name, "", name, false, nil))
		}
		w.must(w.ch.ExchangeBind("inside", "k", "x", false, nil))
		w.publish("x", "k", amqp.Publishing{Body: []byte("bound")})
		w.publish("x", "other", amqp.Publishing{Body: []byte("alternate")})
		w.holds("inside", "bound")
		w.holds("rest", "alternate")
	}},
}

// routes binds a queue for each pattern to an exchange of a type, and checks which queues get the message with a key.
func (w *world) routes(kind string, to map[string]string, patterns ...string) {
	w.Helper()
	w.must(w.ch.ExchangeDeclare(kind, kind, true, false, false, false, nil))
	for _, pattern := range patterns {
		w.queue(kind+pattern, nil)
		w.must(w.ch.QueueBind(kind+pattern, pattern, kind, false, nil))
	}
	for key, want := range to {
		w.publish(kind, key, amqp.Publishing{})
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
