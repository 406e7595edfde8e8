package waittest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// Each delay, through queues whose names mean something to exchanges, or are as
// long as they can be: back to its own queue alone, and not early.
func TestItComesBackToItsOwnQueue(t *testing.T) {
	names := []string{"orders", "orders.created", "orders.*", "#", "sha256.orders", "ordres.é", "a..b.", strings.Repeat("long.", 51), strings.Repeat("x", 254)}
	each(t, func(t *testing.T, b *bench) {
		consumers := map[string]*brokertest.Consumer{}
		for _, q := range names {
			consumers[q] = b.work(q)
			b.v.Publish("", q, amqp.Publishing{Body: []byte(q)})
		}
		for _, delay := range b.delays {
			holds := map[string]held{}
			for _, q := range names {
				holds[q] = b.fail(consumers[q].Next(), q, delay)
			}
			for _, q := range names {
				d := b.back(consumers[q], q, holds[q])
				if delay != b.delays[len(b.delays)-1] {
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

// parked is how many messages are in the parking lot.
func (b *bench) parked(want int) {
	b.t.Helper()
	if n := b.v.Depth(wire.QueueParked); n != want {
		b.t.Errorf("%d messages are parked, want %d", n, want)
	}
}

// Messages that were made to wait long do not hold up those with a short delay,
// unless the way says that they do.
func TestDelaysAtOnce(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		if len(b.delays) == 1 {
			return // one delay only: nothing can stand behind a longer one
		}
		long, short := b.delays[len(b.delays)-1], b.delays[1]
		c, other := b.work("orders"), b.work("other")
		for i := range 20 {
			b.v.Publish("", "orders", amqp.Publishing{Body: fmt.Append(nil, "long ", i)})
		}
		var first, last held
		for i := range 20 {
			last = b.fail(c.Next(), "orders", long)
			if i == 0 {
				first = last
			}
		}
		b.v.Publish("", "orders", amqp.Publishing{Body: []byte("short")})
		b.v.Publish("", "other", amqp.Publishing{Body: []byte("other")})
		h := b.fail(c.Next(), "orders", short)
		o := b.fail(other.Next(), "other", short)
		if d := b.back(other, "other", o); time.Since(first.since) < long && d.Ack(false) != nil {
			t.Fatal("not acknowledged")
		}
		order := []string{}
		var behind time.Duration
		for range 21 {
			d := c.Next()
			order = append(order, string(d.Body))
			if string(d.Body) == "short" {
				behind = time.Since(h.since) - short
			}
			if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		blocked := order[len(order)-1] == "short"
		if b.way.Limits().Blocks {
			if !blocked {
				t.Errorf("%s says that it blocks, and the order was %v", b.maker, order)
			}
			if behind < long-short-time.Since(last.since)/2 && behind <= 0 {
				t.Errorf("the short one was not late: %s", behind)
			}
			t.Logf("a delay of %s behind others of %s: %s late", short, long, behind)
		} else if order[0] != "short" {
			t.Errorf("a short delay came after a long one: %v", order)
		}
	})
}

// A queue that is gone when its messages come due: they are parked, and each
// only once.
func TestTheWorkQueueIsDeleted(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		if b.maker == "Native" {
			return // what waits is in the work queue itself, and goes with it
		}
		c := b.work("orders")
		b.v.Publish("", "orders", amqp.Publishing{Body: []byte("a"), MessageId: "m"})
		h := b.fail(c.Next(), "orders", b.delays[len(b.delays)-1])
		if _, err := b.v.Channel().QueueDelete("orders", false, false, false); err != nil {
			t.Fatal(err)
		}
		d := b.back(b.v.Consume(wire.QueueParked), "a", h)
		if d.MessageId != "m" || d.Headers[wire.HeaderQueue] != "orders" || d.Headers[wire.HeaderRoutingKey] != "orders" {
			t.Errorf("it is parked with message-id %q and headers %v", d.MessageId, d.Headers)
		}
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
		// A queue of that name that is made again is bound again.
		c = b.work("orders")
		b.v.Publish("", "orders", amqp.Publishing{Body: []byte("b")})
		b.back(c, "b", b.fail(c.Next(), "orders", b.delays[0]))
		b.parked(0)
	})
}

// At-least-once dead-lettering stands still over 32 messages that cannot be
// routed. Those of a vanished queue never come to that.
func TestAVanishedQueueJamsNobody(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		if !b.keeps {
			return
		}
		const many = 100
		b.work("vanishing")
		if _, err := b.v.Channel().QueueDelete("vanishing", false, false, false); err != nil {
			t.Fatal(err)
		}
		c := b.work("orders")
		b.v.Publish("", "orders", amqp.Publishing{Body: []byte("o")})
		for range many {
			ticket, err := b.way.Hold("vanishing", b.delays[0])
			if err == nil {
				err = b.hold(ticket, "vanishing", wire.Message{Body: []byte("v")})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		b.back(c, "o", b.fail(c.Next(), "orders", b.delays[0]))
		brokertest.Eventually(t, "all are parked", func() bool { return b.v.Depth(wire.QueueParked) == many })
	})
}

// Many, one right after the other: RabbitMQ rounds its clock, and must not be
// early for it.
func TestNeverEarly(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		if b.maker == "Native" {
			return
		}
		const many = 300
		b.work("orders").Channel.Close()
		in, err := b.v.Channel().Consume("orders", "", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := b.way.Hold("orders", 200*ms)
		if err != nil {
			t.Fatal(err)
		}
		sent := make(map[string]time.Time, many)
		var mu sync.Mutex
		var all sync.WaitGroup
		all.Go(func() {
			least := time.Hour
			for range many {
				d := <-in
				mu.Lock()
				least = min(least, time.Since(sent[string(d.Body)]))
				mu.Unlock()
			}
			if least < 200*ms {
				t.Errorf("one came back after %s, and was to wait %s", least, 200*ms)
			}
		})
		for i := range many {
			body := fmt.Sprint(i)
			mu.Lock()
			sent[body] = time.Now()
			mu.Unlock()
			if err := b.hold(ticket, "orders", wire.Message{Body: []byte(body)}); err != nil {
				t.Error(err)
			}
		}
		all.Wait()
	})
}
