package model_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/model"
)

// world is a model that behaviours are tried on.
type world struct {
	*testing.T
	vhost  string
	since4 bool
	dial   func(user string) (*amqp.Connection, error)
	ch     *amqp.Channel // of the first connection
}

// behaviour is what the model does as RabbitMQ does it.
type behaviour struct {
	name string
	test func(*world)
}

// vhost is as long as those of tests on real brokers, so that errors are cut at the same place.
const vhost = "redrive-test-00000000-0000-0000-0000-000000000000"

func TestTheModelBehavesSo(t *testing.T) {
	for _, version := range model.Versions {
		for _, b := range slices.Concat(declaring, routing, delivering, dying, quorums) {
			t.Run(version+"/"+b.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					broker := model.New(model.Options{Version: version, VHost: vhost})
					defer broker.Close()
					w := &world{T: t, vhost: vhost, since4: version[0] == '4', dial: func(user string) (*amqp.Connection, error) {
						return amqp.DialConfig("amqp://"+user+":"+user+"@model/"+vhost, amqp.Config{Dial: broker.Dial})
					}}
					w.run(b)
				})
			})
		}
	}
}

func (w *world) run(b behaviour) {
	w.ch = w.channel(w.connect())
	b.test(w)
}

func (w *world) connect() *amqp.Connection {
	w.Helper()
	c, err := w.dial("guest")
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

// refused fails unless err is the broker's, with this code and text.
func (w *world) refused(err error, code int, reason string) {
	w.Helper()
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != code || e.Reason != reason {
		w.Errorf("got  %v\nwant %d %s", err, code, reason)
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
	w.confirmed(exchange, key, false, p)
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
