package delaytest

import (
	"math/bits"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// Each delay, through queues whose names mean something to exchanges, or are as
// long as they can be: back to its own queue alone, and not early.
func TestAMessageComesBackToItsOwnQueueOnly(t *testing.T) {
	names := []string{"orders", "orders.created", "orders.*", "#", "sha256.orders", "ordres.é", "a..b.", strings.Repeat("long.", 51), strings.Repeat("x", 254)}
	each(t, func(t *testing.T, b *suite) {
		consumers := map[string]*brokertest.Consumer{}
		for _, q := range names {
			consumers[q] = b.work(q)
			b.v.Publish("", q, amqp.Publishing{Body: []byte(q)})
		}
		for _, wait := range b.delays {
			holds := map[string]delayedMessage{}
			for _, q := range names {
				holds[q] = b.fail(consumers[q].Next(), q, wait)
			}
			for _, q := range names {
				d := b.back(consumers[q], q, holds[q])
				if hops, _ := d.Headers["x-death"].([]any); b.name == "Binary" && len(hops) != bits.OnesCount64(uint64(holds[q].Delay/(10*ms)))+1 { // and its lane
					t.Errorf("%s took %d hops", holds[q].Delay, len(hops))
				}
				if wait != b.delays[len(b.delays)-1] {
					// Once more: the body tells which queue it belongs to.
					b.v.Publish("", q, amqp.Publishing{Body: d.Body})
				}
				if err := d.Ack(false); err != nil {
					t.Fatal(err)
				}
			}
		}
		for q, c := range consumers {
			if c.Arrived() {
				t.Errorf("something came to %q twice", q)
			}
		}
		b.parked(0)
	})
}

// parked returns how many messages are parked in RabbitMQ.
func (b *suite) parked(want int) {
	b.t.Helper()
	if n := b.v.Depth(wire.QueueParked); n != want {
		b.t.Errorf("%d messages are parked, want %d", n, want)
	}
}

// Messages that were made to wait long do not hold up those with a short delay,
// unless the way says that they do.
func TestManyDelaysRunAtOnce(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if len(b.delays) == 1 {
			return // one delay only: nothing can stand behind a longer one
		}
		c, other := b.work("orders"), b.work("other")
		for tries := 1; !b.shortBehindLong(c, other, tries); tries++ {
			t.Log("this machine stood still between the long ones and the short one, which proves nothing: again")
		}
	})
}

// shortBehindLong tells whether it was quick enough to prove anything. A message
// that comes late once may be a broker that stood still; twenty times is the way.
func (b *suite) shortBehindLong(c, other *brokertest.Consumer, tries int) bool {
	const many = 20
	long, short := b.delays[len(b.delays)-1], 200*ms
	var last time.Time
	for _, at := range b.waitMany("orders", long, many) {
		if at.After(last) {
			last = at
		}
	}
	sent := b.waitMany("other", short, 1)["other 0"]
	ticket, err := b.way.Ticket("orders", short)
	if err == nil {
		err = b.hold(ticket, "orders", wire.Message{Body: []byte("short")})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	quick := time.Since(last) < (long-short)/2
	other.Take("other 0")
	if took := time.Since(sent); took >= long && tries < 20 {
		quick = false
	} else if quick && took >= long {
		b.t.Errorf("a message of another queue, with a delay of %s, came after %s", short, took)
	}
	place, late := 0, time.Duration(0)
	for i := range many + 1 {
		d := c.Next()
		if string(d.Body) == "short" {
			place, late = i, time.Since(sent)-short
		}
		if err := d.Ack(false); err != nil {
			b.t.Fatal(err)
		}
	}
	if !quick {
		return false
	}
	if b.way.Limits().Blocks {
		b.t.Logf("a delay of %s behind %d of %s: %s late", short, many, long, late)
		if place != many {
			b.t.Errorf("%s has the limit Blocks, and %d with a long delay came after the short one", b.name, many-place)
		}
	} else if place != 0 {
		b.t.Errorf("%d with a long delay came before the short one, which was %s late", place, late)
	}
	return true
}

// A queue that is gone when its messages come due: they are parked, and each
// only once.
func TestMessagesOfADeletedQueueAreParked(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if b.name == "Native" {
			return // what waits is in the work queue itself, and goes with it
		}
		b.work("orders").Channel.Close()
		// Before it waits: on a busy machine RabbitMQ takes longer to delete a queue
		// than the message would wait.
		b.v.DeleteQueue("orders")
		h := delayedMessage{since: time.Now(), asked: b.delays[len(b.delays)-1]}
		var err error
		if h.Ticket, err = b.way.Ticket("orders", h.asked); err == nil {
			err = b.hold(h.Ticket, "orders", wire.Message{RoutingKey: "first", Body: []byte("a"), MessageID: "m"})
		}
		if err != nil {
			t.Fatal(err)
		}
		d := b.back(b.v.Consume(wire.QueueParked), "a", h)
		if d.MessageId != "m" || d.Headers[wire.HeaderQueue] != "orders" || d.Headers[wire.HeaderRoutingKey] != "first" {
			t.Errorf("it is parked with message-id %q and headers %v", d.MessageId, d.Headers)
		}
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
		// A queue of that name that is made again is bound again.
		c := b.work("orders")
		b.v.Publish("", "orders", amqp.Publishing{Body: []byte("b")})
		b.back(c, "b", b.fail(c.Next(), "orders", b.delays[0]))
		b.parked(0)
	})
}

// At-least-once dead-lettering stands still over 32 messages that cannot be
// routed. Those of a vanished queue never come to that.
func TestADeletedQueueBlocksNoOther(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if !b.keeps {
			return
		}
		const many = 100
		b.work("vanishing")
		b.v.DeleteQueue("vanishing")
		c := b.work("orders")
		b.v.Publish("", "orders", amqp.Publishing{Body: []byte("o")})
		for range many {
			ticket, err := b.way.Ticket("vanishing", b.delays[0])
			if err == nil {
				err = b.hold(ticket, "vanishing", wire.Message{Body: []byte("v")})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		b.back(c, "o", b.fail(c.Next(), "orders", b.delays[0]))
		parked := 0
		defer func() {
			if parked != many {
				t.Logf("%d of %d are parked", parked, many)
			}
		}()
		brokertest.Eventually(t, "all are parked", func() bool { parked = b.v.Depth(wire.QueueParked); return parked == many })
	})
}

// Many, one right after the other: RabbitMQ rounds its clock, and must not be
// early for it.
func TestNeverEarly(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if b.name == "Native" {
			return
		}
		const many = 300
		b.work("orders").Channel.Close()
		in, err := b.v.Channel().Consume("orders", "", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		sent := b.waitMany("orders", 200*ms, many)
		for range many {
			select {
			case d := <-in:
				if took := time.Since(sent[string(d.Body)]); took < 200*ms {
					t.Errorf("%s came back after %s, and was to wait 200 ms", d.Body, took)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("not all came back")
			}
		}
	})
}
