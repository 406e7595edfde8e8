package delaytest

import (
	"testing"

	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/wire"
)

// RabbitMQ accepts the longest delay that a way claims, and the way nothing longer.
func TestTheLongestDelay(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		longest := b.way.Limits().Longest
		if b.name == "Native" {
			return // it takes no delay; see its arguments
		}
		b.work("orders").Channel.Close()
		ticket, err := b.way.Ticket("orders", longest)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.hold(ticket, "orders", wire.Message{}); err != nil {
			t.Errorf("a delay of %s: %v", longest, err)
		}
		if _, err := b.way.Ticket("orders", longest+1); err == nil {
			t.Errorf("a delay longer than %s was taken", longest)
		}
	})
}

// A hundred delays, far apart and close together: a queue each for those that
// differ in their first two digits.
func TestDynamicMakesAQueuePerDelay(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		d, dynamic := b.way.(*ttlqueue.Dynamic)
		if !dynamic {
			return
		}
		b.v.Queue("orders", b.queue)
		b.declare("orders")
		names := map[string]bool{}
		for wait := 600_000 * ms; wait < 660_000*ms; wait += 600 * ms {
			ticket, err := d.Ticket("orders", wait)
			if err == nil {
				err = b.hold(ticket, "orders", wire.Message{})
			}
			if err != nil {
				t.Fatal(err)
			}
			names[ticket.Exchange] = true
		}
		if n := delays(t, b.v, "queues"); n != len(names) || n > 7 {
			t.Errorf("there are %d queues for %d names", n, len(names))
		}
	})
}
