package facts_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The client drops what is delivered then, and a later ack of several takes it with
// it. So a move ends a consumer while its window is full, when nothing is under way.
func TestAQuorumQueueDeliversAfterItConfirmedACancelUnlessTheWindowIsFull(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		const window, messages, rounds = 32, 300, 8
		for _, kind := range []string{"classic", "quorum"} {
			for _, full := range []bool{true, false} {
				late := 0
				for range rounds {
					v.Queue("work", amqp.Table{"x-queue-type": kind})
					for range messages {
						v.Publish("", "work", amqp.Publishing{})
					}
					taken := 0
					ch, err := v.Dial().Channel()
					must(t, err)
					must(t, ch.Qos(window, 0, false))
					deliveries, err := ch.Consume("work", "tag", false, false, false, false, nil)
					must(t, err)
					for d := range deliveries {
						taken++
						if taken == 2*window && full {
							must(t, ch.Cancel("tag", false))
						}
						if taken%window == 0 {
							must(t, ch.Ack(d.DeliveryTag, true))
						}
						if taken == 2*window && !full {
							must(t, ch.Cancel("tag", false))
						}
					}
					// What it delivers now is in no one's hands, and not ready.
					if missing := messages - taken - v.Depth("work"); missing > 0 {
						late++
					}
					must(t, ch.Close())
					_, err = v.Channel().QueueDelete("work", false, false, false)
					must(t, err)
				}
				if may := kind == "quorum" && !full; late > 0 && !may || late == 0 && may {
					t.Errorf("%s queue, window full: %v: %d of %d times messages came late", kind, full, late, rounds)
				}
			}
		}
	})
}
