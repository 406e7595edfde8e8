package doctor

import (
	"log/slog"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// The work queue that accepts no retries is named, with why; not the queue of ours in
// which they stay.
func TestTheQueueThatBlocksItsRetriesIsNamed(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, _ *rabbitnode.Node) {
		c := configFor(t, v, everyQueue)
		mendAll(t, c)
		client, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{v.URL()}, Log: slog.New(slog.DiscardHandler)})
		must(t, err)
		defer client.Close()
		for _, queue := range []string{"orders", "mail"} {
			v.Queue(queue, amqp.Table{"x-queue-type": "classic", "x-max-length": int32(1), "x-overflow": "reject-publish"})
			for _, way := range []redrive.Way{redrive.Levels(100 * time.Millisecond), redrive.MessageTTL()} {
				_, err := client.NewSettler(t.Context(), redrive.Consumer{Queue: queue, Wait: way, Policy: policy.Policy{Attempts: 2, Backoff: policy.Fixed(100 * time.Millisecond)}})
				must(t, err)
			}
		}
		v.Publish("", "orders", amqp.Publishing{})
		v.Publish("", "mail", amqp.Publishing{})
		for range 40 {
			v.Publish(wire.DelayPrefix+"100ms", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent})
		}
		v.Publish(wire.DelayPrefix+"message-ttl.quorum.mail", "mail", amqp.Publishing{DeliveryMode: amqp.Persistent, Expiration: "1"})
		const full = ", since it is full (max-length: 1) and its overflow is reject-publish"
		finds(t, c, "standing", "wrong orders: 40 of its retries are due and stay in redrive.lane.orders"+full,
			"wrong mail: 1 of its retries are due and stay in redrive.delay.message-ttl.quorum.mail"+full)
		for _, queue := range []string{"orders", "mail"} {
			_, err := v.Channel().QueueDelete(queue, false, false, false)
			must(t, err)
		}
		brokertest.Eventually(t, "all are parked", func() bool { return v.Depth(wire.QueueParked) == 41 })
		finds(t, c, "standing")
	})
}
