package model_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/model"
)

// A worker that was killed publishes again what one of two queues had already.
func TestNothingHappensInAKilledNode(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *model.Broker) {
		w := &world{T: t, vhost: "/", since4: true, dial: func(string) (*amqp.Connection, error) {
			return amqp.DialConfig("amqp://guest:guest@model/", amqp.Config{Dial: broker.Dial})
		}}
		w.run(behaviour{"", func(w *world) {
			w.must(w.ch.ExchangeDeclare("dead", "fanout", true, false, false, false, nil))
			w.must(w.ch.ExchangeDeclare("transient", "fanout", false, false, false, false, nil))
			w.queue("takes", nil)
			w.queue("full", amqp.Table{"x-max-length": int32(0), "x-overflow": "reject-publish"})
			for _, to := range []string{"takes", "full"} {
				w.must(w.ch.QueueBind(to, "", "dead", false, nil))
			}
			w.quorum("q", amqp.Table{"x-dead-letter-exchange": "dead", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
			for _, ttl := range []string{"1000", "5000"} {
				w.publish("", "q", amqp.Publishing{Expiration: ttl, DeliveryMode: amqp.Persistent, Body: []byte(ttl)})
			}
		}})
		counts := func(step string, q, takes int) {
			t.Helper()
			for name, want := range map[string]int{"q": q, "takes": takes} {
				if state, _ := broker.Queue(name); state.Messages != want {
					t.Errorf("%s: %s has %d messages, want %d", step, name, state.Messages, want)
				}
			}
		}
		time.Sleep(2 * time.Second)
		counts("one is dead", 2, 1)
		broker.Kill()
		if _, err := broker.Dial("", ""); err == nil {
			t.Error("a killed node is connected to")
		}
		time.Sleep(time.Hour)
		counts("killed", 2, 1)
		broker.Restart()
		time.Sleep(time.Second)
		counts("again", 2, 3)
		c := connect(t, broker.Dial, 0)
		ch, err := c.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if err := ch.ExchangeDeclarePassive("transient", "fanout", false, false, false, false, nil); err == nil {
			t.Error("a transient exchange is still there")
		}
		ended := c.NotifyClose(make(chan *amqp.Error, 1))
		broker.Cut()
		<-ended
		counts("cut", 2, 3)
	})
}
