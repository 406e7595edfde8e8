package model_test

import (
	"context"
	"net"
	"strings"
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
			{"argument x-max-length-bytes for this type of queue", func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-max-length-bytes": int32(1)})
				return err
			}},
			{"queue that is not durable", func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("q", false, false, false, false, nil)
				return err
			}},
			{"exchange type 'x-delayed-message'", func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare("x", "x-delayed-message", true, false, false, false, nil)
			}},
			{"method 90.10", func(ch *amqp.Channel) error { return ch.Tx() }},
			{"global prefetch", func(ch *amqp.Channel) error { return ch.Qos(1, 0, true) }},
			{"header CC", func(ch *amqp.Channel) error {
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
