package delaytest

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// A work queue that refuses what comes due holds up its own messages alone. A
// queue of RabbitMQ's that dead-letters at-least-once stands still over 32 of them,
// and tries again after three minutes.
func TestOneUnavailableQueueStopsNoOther(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if b.name == "Native" {
			return // what waits is in the work queue itself, and no other's is there
		}
		b.v.Queue("full", amqp.Table{"x-queue-type": "classic", "x-max-length": int32(1), "x-overflow": "reject-publish"})
		b.declare("full")
		b.v.Publish("", "full", amqp.Publishing{Body: []byte("full")})
		wait := b.delays[len(b.delays)-1]
		stuck := b.waitMany("full", wait, unavailable)
		b.othersComeBack("orders", wait)
		b.parked(0)

		// What its limits say of the others: lost, or kept until there is room.
		if b.keeps == b.way.Limits().DropsWhenFull {
			t.Errorf("it keeps: %v; its limits say that it drops: %v", b.keeps, b.way.Limits().DropsWhenFull)
		}
		c := b.v.Consume("full")
		c.Take("full")
		if !b.keeps {
			b.v.Publish("", "full", amqp.Publishing{Body: []byte("later")})
			c.Take("later")
			return
		}
		held := wire.LaneQueue("full")
		if b.way.Limits().Blocks { // message TTL: a delay queue of the work queue's own
			held = wire.DelayPrefix + "message-ttl.quorum.full"
		}
		brokertest.Eventually(t, "what the full queue refused is kept for it", func() bool { return b.v.Messages(held)+b.v.Messages("full") == len(stuck) })
	})
}

// unavailable is many more than RabbitMQ holds for a target that does not answer.
const unavailable = 100

// othersComeBack makes messages of another queue wait, and takes them.
func (b *suite) othersComeBack(queue string, wait time.Duration) {
	b.t.Helper()
	const many = 10
	c := b.work(queue)
	sent := b.waitMany(queue, wait, many)
	for i := range many {
		body := fmt.Sprint(queue, " ", i)
		c.Take(body)
		if took := time.Since(sent[body]); took < wait {
			b.t.Errorf("%s came back after %s, and was to wait %s", body, took, wait)
		}
	}
}

// The same of a quorum queue that has no leader, and all that waited for it comes
// when it has one again.
func TestAQueueWithoutLeaderStopsNoOther(t *testing.T) {
	t.Parallel()
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		at := func(queue, do string) {
			t.Helper()
			if _, err := n.Eval(t.Context(), fmt.Sprintf("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<%q>>, queue, <<%q>>)), ok = ra:%s(quorum_queues, amqqueue:get_pid(Q)).", v.Name, queue, do)); err != nil {
				t.Fatal(err)
			}
		}
		const wait = 400 * ms
		var all []*suite
		for _, b := range onPrivate(t, v) {
			if !b.keeps {
				continue
			}
			if b.name == "Fixed" {
				b.way = made(ttlqueue.NewFixed(ttlqueue.Quorum, wait))
			}
			v.Queue(b.name, quorum)
			b.declare(b.name)
			at(b.name, "stop_server")
			all = append(all, b)
		}
		sent := map[*suite]map[string]time.Time{}
		for _, b := range all {
			sent[b] = b.waitMany(b.name, wait, unavailable)
			b.othersComeBack("other "+b.name, wait)
		}
		for _, b := range all {
			at(b.name, "restart_server")
			c := v.Consume(b.name)
			for len(sent[b]) > 0 {
				d := c.Next()
				delete(sent[b], string(d.Body))
				if err := d.Ack(false); err != nil {
					t.Fatal(err)
				}
			}
			ran(b.name, v.Version, "work queue without leader")
		}
	})
}
