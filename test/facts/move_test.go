package facts_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What a move's bindings turn by: several ways to a queue are one copy, and an
// exchange behind another has its alternate too.
func TestSeveralWaysToAQueueAreOneCopyAndAlternatesCountBehindExchanges(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("old", nil)
		v.Queue("new", nil)
		v.Exchange("source", "direct", "old")
		v.Exchange("to new", "fanout", "new")
		ch := v.Channel()
		must(t, ch.ExchangeDeclare("detour", "fanout", true, false, false, false, amqp.Table{"alternate-exchange": "to new"}))
		must(t, ch.QueueBind("old", "", "detour", false, nil))
		must(t, ch.ExchangeBind("detour", "old", "source", false, nil))
		expect := func(step string, old, now int) {
			t.Helper()
			v.Publish("source", "old", amqp.Publishing{Body: []byte(step)})
			if a, b := v.Depth("old"), v.Depth("new"); a != old || b != now {
				t.Fatalf("%s: the old queue has %d messages, want %d, and the new one %d, want %d", step, a, old, b, now)
			}
		}
		expect("two ways to the old queue", 1, 0)
		must(t, ch.QueueUnbind("old", "old", "source", nil))
		expect("one way", 2, 0)
		must(t, ch.QueueUnbind("old", "", "detour", nil))
		expect("the alternate exchange", 2, 1)
		must(t, ch.QueueBind("new", "old", "source", false, nil))
		expect("two ways to the new queue", 2, 2)
	})
}

// So a move looks itself before it deletes a quorum queue.
func TestAQuorumQueueIsNotDeletedOnlyIfEmptyOrUnused(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("work", amqp.Table{"x-queue-type": "quorum"})
		_, err := v.Channel().QueueDelete("work", false, true, false)
		refused(t, "if empty", err, amqp.NotImplemented)
		_, err = v.Channel().QueueDelete("work", true, false, false)
		refused(t, "if unused", err, amqp.NotImplemented)
	})
}
