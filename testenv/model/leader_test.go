package model_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/model"
)

// Confirms, acknowledgements and rejections wait for the leader; a dead letter at most once does
// not, and a node that is killed meanwhile has what was published.
func TestAQueueWithoutALeaderWaitsForOne(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *model.Broker) {
		w := &world{T: t, vhost: "/", since4: true, dial: func(string) (*amqp.Connection, error) {
			return amqp.DialConfig("amqp://guest:guest@model/", amqp.Config{Dial: broker.Dial})
		}}
		w.run(behaviour{"", func(w *world) {
			w.queue("dead", nil)
			w.quorum("q", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
			w.queue("other", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
			w.bodies("q", "rejected")
		}})
		step := func(name string, q, dead int) {
			t.Helper()
			of := func(queue string) int { state, _ := broker.Queue(queue); return state.Messages }
			if got, want := fmt.Sprint(of("q"), of("dead")), fmt.Sprint(q, dead); got != want {
				t.Errorf("%s: q and dead have %s messages, want %s", name, got, want)
			}
		}
		rejected := w.got("q", false)
		lost := ""
		broker.MoveLeader("q", time.Second, func(text func(string) string) { lost += text("x-first-death-queue") })
		w.must(rejected.Reject(false))
		w.bodies("other", "lost")
		w.reject("other")
		began := time.Now()
		time.Sleep(100 * time.Millisecond)
		step("no leader", 0, 0)
		w.bodies("q", "published")
		if took := time.Since(began); took < time.Second {
			t.Errorf("confirmed after %s, without a leader", took)
		}
		step("there is a leader", 1, 1)
		w.is("lost from", lost, "other")
		w.must(w.got("q", false).Ack(false))
		broker.MoveLeader("q", time.Hour, nil)
		published, err := w.ch.PublishWithDeferredConfirm("", "q", false, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
		w.must(err)
		time.Sleep(time.Minute)
		step("none", 0, 1)
		if published.Acked() {
			t.Error("confirmed without a leader")
		}
		broker.Kill()
		broker.Restart()
		step("killed", 1, 0)
	})
}
