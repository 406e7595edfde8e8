package model_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/model"
)

// inBubble runs a test with a model in fake time. A goroutine that the model leaves behind
// fails it.
func inBubble(t *testing.T, test func(*testing.T, *model.Broker)) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Options{Version: "4.3.6"})
		defer broker.Close()
		test(t, broker)
	})
}

func connect(t *testing.T, dial func(string, string) (net.Conn, error), heartbeat time.Duration) *amqp.Connection {
	t.Helper()
	c, err := amqp.DialConfig("amqp://guest:guest@model/", amqp.Config{Dial: dial, Heartbeat: heartbeat})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// watched is a client's end, which can fall silent and keeps what it reads.
type watched struct {
	net.Conn
	silent atomic.Bool
	read   bytes.Buffer
}

func (c *watched) Write(b []byte) (int, error) {
	if c.silent.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *watched) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Write(b[:n])
	return n, err
}

func TestASilentConnectionEndsAfterTwoHeartbeats(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *model.Broker) {
		conn := &watched{}
		c := connect(t, func(network, address string) (_ net.Conn, err error) {
			conn.Conn, err = broker.Dial(network, address)
			return conn, err
		}, 10*time.Second)
		ended := c.NotifyClose(make(chan *amqp.Error, 1))
		time.Sleep(time.Hour)
		if c.IsClosed() {
			t.Fatal("an idle connection ended in spite of its heartbeats")
		}
		conn.silent.Store(true)
		begin := time.Now()
		<-ended
		if after := time.Since(begin); after < 10*time.Second || after > 30*time.Second {
			t.Errorf("it ended after %s", after)
		}
	})
}

func TestTheModelRefusesWhatItDoesNotKnow(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *model.Broker) {
		for _, refused := range []struct {
			what string
			do   func(*amqp.Channel) error
		}{
			{"queue type stream", func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "stream"})
				return err
			}},
			{"argument x-max-length-bytes for a queue", func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-max-length-bytes": int32(1)})
				return err
			}},
			{"queue that is neither durable nor exclusive", func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("q", false, false, false, false, nil)
				return err
			}},
			{"exchange type 'x-delayed-message'", func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare("x", "x-delayed-message", true, false, false, false, nil)
			}},
			{"method 90.10", func(ch *amqp.Channel) error { return ch.Tx() }},
			{"global prefetch", func(ch *amqp.Channel) error { return ch.Qos(1, 0, true) }},
			{"CC that is no list of texts", func(ch *amqp.Channel) error {
				ended := ch.NotifyClose(make(chan *amqp.Error, 1))
				if err := ch.PublishWithContext(context.Background(), "amq.direct", "", false, false, amqp.Publishing{Headers: amqp.Table{"CC": "q"}}); err != nil {
					return err
				}
				return <-ended
			}},
		} {
			ch, err := connect(t, broker.Dial, 0).Channel()
			if err != nil {
				t.Fatal(err)
			}
			if err = refused.do(ch); err == nil || !strings.Contains(err.Error(), "540") || !strings.Contains(err.Error(), "has no "+refused.what) {
				t.Errorf("%s: %v", refused.what, err)
			}
		}
	})
}

// deadLettersAtLeastOnce lets a policy, a quorum queue and its worker do what they can, and
// the node be killed.
func (w *world) deadLettersAtLeastOnce(broker *model.Broker) {
	w.Helper()
	w.must(broker.SetPolicy(model.Policy{Name: "p", Pattern: "^least", ApplyTo: "queues", Definition: map[string]any{
		"dead-letter-exchange": "f", "dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "message-ttl": 70_000}}))
	w.quorum("least", nil)
	w.must(w.ch.Qos(2, 0, false))
	from, err := w.ch.Consume("least", "c", false, false, false, false, nil) // the client's own tags count on from run to run
	w.must(err)
	w.bodies("least", "1", "2", "3", "4", "5")
	w.must(w.next(from, "1").Nack(false, true))
	w.must(w.next(from, "2").Reject(false))
	time.Sleep(2*time.Minute + 2*time.Millisecond)
	w.must(w.ch.Cancel("c", false))
	for _, key := range []string{"a", "b", "c", "d"} {
		for range 3 {
			w.get("f " + key)
		}
	}
}

// The same steps give the same bytes.
func TestTheModelIsDeterministic(t *testing.T) {
	var first []byte
	for n := range 20 {
		inBubble(t, func(t *testing.T, broker *model.Broker) {
			conn := &watched{}
			c := connect(t, func(network, address string) (_ net.Conn, err error) {
				conn.Conn, err = broker.Dial(network, address)
				return conn, err
			}, 10*time.Second)
			w := &world{T: t, vhost: "/", since4: true, dial: func(string) (*amqp.Connection, error) { return c, nil }}
			w.run(behaviour{"", func(w *world) {
				w.bound("f", "fanout", "a", "b", "c", "d")
				for _, key := range []string{"a", "b", "c", "d"} {
					w.deadLetters("f dead "+key, amqp.Table{"x-message-ttl": int32(1000)})
					w.must(w.ch.QueueBind("f dead "+key, "", "f", false, nil))
				}
				if _, err := w.ch.QueueDeclare("", true, true, true, false, nil); err != nil {
					w.Fatal(err)
				}
				w.publish("f", "", amqp.Publishing{Headers: amqp.Table{"a": int64(1)}, Body: []byte("m")})
				time.Sleep(time.Minute + time.Millisecond) // no heartbeat is due at the same instant
				for range 4 {
					w.get("dead")
				}
				w.deadLettersAtLeastOnce(broker)
			}})
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				first = conn.read.Bytes()
			} else if !bytes.Equal(first, conn.read.Bytes()) {
				t.Errorf("run %d differs:\n%q\nthe first:\n%q", n, conn.read.Bytes(), first)
			}
		})
	}
}
