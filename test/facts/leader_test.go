package facts_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// While a quorum queue has no leader, what is published to it and what its consumers acknowledge
// waits. Nothing is delivered again, confirms are late, and dead letters arrive that are at least
// once: those at most once may be lost.
func TestALeaderChangeRedeliversNothingAndConfirmsLate(t *testing.T) {
	onACluster(t, func(t *testing.T, v *vhost) {
		const few, messages = 5, 400
		quorum := amqp.Table{"x-queue-type": "quorum"}
		for _, q := range []string{"q", "dead", "once"} {
			v.Queue(q, quorum)
		}
		v.Queue("at most", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "once"})
		v.Queue("at least", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
		ch := v.Channel()
		must(t, ch.Qos(2*few, 0, false))
		in, err := ch.Consume("q", "", false, false, false, false, nil)
		must(t, err)
		work, before := &consumer{v, "q", ch, in}, []amqp.Delivery{}
		for range few {
			v.Publish("", "q", amqp.Publishing{Body: []byte("before")})
			before = append(before, work.Next())
		}
		changed := make(chan struct{})
		go func() {
			defer close(changed)
			for _, q := range []string{"q", "dead", "once"} {
				v.moveLeader(t, q, false)
			}
			v.moveLeader(t, "q", true)
		}()
		publisher := v.Channel()
		must(t, publisher.Confirm(false))
		var confirms []*amqp.DeferredConfirmation
		publish := func(queue, ttl, body string) {
			c, err := publisher.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Expiration: ttl, Body: []byte(body)})
			must(t, err)
			confirms = append(confirms, c)
		}
		n := 0
		for during := changed; during != nil || n < messages; n++ {
			publish("q", "", fmt.Sprint(n))
			publish("at most", "1", fmt.Sprint(n))
			publish("at least", "1", fmt.Sprint(n))
			select {
			case <-during:
				during = nil
			case <-time.After(10 * time.Millisecond):
			}
		}
		for _, c := range confirms {
			if !confirmed(t, c) {
				t.Fatal("a message is refused")
			}
		}
		for i := range n {
			d := work.Take(fmt.Sprint(i))
			if d.Redelivered {
				t.Errorf("message %d is redelivered", i)
			}
		}
		for _, d := range before {
			must(t, d.Ack(false))
		}
		must(t, ch.Close())
		brokertest.Eventually(t, "all are acknowledged", func() bool { return held(t, v, "q") == 0 })
		brokertest.Eventually(t, "all dead letters at least once arrive", func() bool { return v.Depth("dead") >= n })
		t.Logf("of %d dead letters at most once %d are lost", n, n-v.Depth("once"))
	})
}
