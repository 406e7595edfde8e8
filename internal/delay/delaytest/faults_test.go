package delaytest

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// killDelay is how long messages wait in a RabbitMQ that is killed meanwhile.
const killDelay = 6 * time.Second

// eachWay has the ways that a node can run, each with a work queue named after it.
func eachWay(t *testing.T, v *brokertest.VHost) (all []*suite) {
	for _, l := range suiteWays {
		switch l.name {
		case "Fixed":
			l.way = made(delay.NewFixed(delay.Quorum, killDelay))
		case "ClassicLevels", "Dynamic":
			// See Classic: they would lose what comes due while a quorum queue has no leader.
			l.queue = amqp.Table{"x-queue-type": "classic"}
		case "Native":
			l.queue = delay.NativeArguments(killDelay, time.Minute)
		}
		if l.elsewhere || l.needs != nil && l.needs(t, v) != "" {
			continue
		}
		all = append(all, newSuite(t, v, l))
	}
	return all
}

// Tests that need a whole node run on one of each version, one after the other.
func TestOnANodeOfItsOwn(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, own *brokertest.VHost, n *rabbitnode.Node) {
		for _, c := range []struct {
			name string
			test func(*testing.T, *brokertest.VHost, *rabbitnode.Node)
		}{
			{"a full work queue loses nothing", aFullWorkQueueLosesNothing},
			{"a queue without leader stops no other", aQueueWithoutLeaderStopsNoOther},
			{"killing RabbitMQ loses nothing", killingRabbitMQLosesNothing},
		} {
			t.Run(c.name, func(t *testing.T) { c.test(t, brokertest.NewVHost(t, own.Broker), n) })
		}
	})
}

func killingRabbitMQLosesNothing(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	const many = 20
	all := eachWay(t, v)
	for _, b := range all {
		b.v.Queue(b.name, b.queue)
		b.declare(b.name)
	}
	// RabbitMQ 3.10 writes a quorum queue's registration to disk minutes after its declaration.
	must(t, errOf(n.Eval(t.Context(), "[dets:sync(T) || T <- dets:all()].")))
	waiting := map[string]time.Time{}
	for _, b := range all {
		if b.name != "Native" {
			maps.Copy(waiting, b.waitMany(b.name, killDelay, many))
			continue
		}
		for i := range many {
			b.v.Publish("", b.name, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: fmt.Append(nil, b.name, " ", i)})
		}
		c := v.Consume(b.name)
		for range many {
			d := c.Next()
			waiting[string(d.Body)] = b.fail(d, b.name, killDelay).since
		}
		// The next one is answered only when the rejects before it were taken.
		must(t, errOf(c.Channel.QueueDeclarePassive(b.name, true, false, false, false, nil)))
	}
	n.Kill()
	// RabbitMQ may not bring a quorum queue of its own back before another start. [seen on 4.3.6: noproc]
	for range 4 {
		must(t, n.Restart(t.Context()))
		if comeBack(t, v, all, waiting); len(waiting) == 0 {
			break
		}
		t.Logf("%d have not come back, such as those of %v; starting RabbitMQ again", len(waiting), queuesOf(waiting))
		n.Kill()
	}
	for _, b := range all {
		if lost := queuesOf(waiting)[b.name]; lost > 0 {
			t.Errorf("%s lost %d of %d", b.name, lost, many)
		}
		ran(b.name, v.Version, "killed and restarted")
	}
}

func queuesOf(waiting map[string]time.Time) map[string]int {
	by := map[string]int{}
	for body := range waiting {
		name, _, _ := strings.Cut(body, " ")
		by[name]++
	}
	return by
}

// comeBack takes what comes back, until nothing has come for a while.
func comeBack(t *testing.T, v *brokertest.VHost, all []*suite, waiting map[string]time.Time) {
	ch := v.Channel()
	defer ch.Close()
	in := make(chan amqp.Delivery)
	done := make(chan struct{})
	defer close(done)
	for _, b := range all {
		deliveries, err := ch.Consume(b.name, "", true, false, false, false, nil)
		if err != nil {
			t.Logf("%s: %v", b.name, err)
			return
		}
		go func() {
			for d := range deliveries {
				select {
				case in <- d:
				case <-done:
				}
			}
		}()
	}
	for len(waiting) > 0 {
		select {
		case d := <-in:
			if at, waits := waiting[string(d.Body)]; waits && time.Since(at) < killDelay {
				t.Errorf("%q came back after %s", d.Body, time.Since(at))
			}
			delete(waiting, string(d.Body))
		case <-time.After(killDelay + 10*time.Second):
			return
		}
	}
}

// What a full work queue refuses stays where it waits, and comes when there is room.
func aFullWorkQueueLosesNothing(t *testing.T, v *brokertest.VHost, _ *rabbitnode.Node) {
	var all []*suite
	var holds []delayedMessage
	for _, b := range eachWay(t, v) {
		if !b.keeps {
			continue
		}
		wait := 200 * ms // with 0 there would be no waiting
		if b.name == "Fixed" {
			b.way = made(delay.NewFixed(delay.Quorum, wait))
		}
		v.Queue(b.name, amqp.Table{"x-queue-type": "classic", "x-max-length": int32(1), "x-overflow": "reject-publish"})
		b.declare(b.name)
		v.Publish("", b.name, amqp.Publishing{Body: []byte("full")})
		all, holds = append(all, b), append(holds, b.wait(b.name, wait, wire.Message{Body: []byte("waiting")}))
	}
	<-time.After(500 * ms) // due, and refused
	for i, b := range all {
		if n := v.Depth(b.name); n != 1 {
			t.Fatalf("the full queue has %d", n)
		}
		c := v.Consume(b.name)
		c.Take("full")
		d := b.back(c, "waiting", holds[i])
		must(t, d.Ack(false))
		ran(b.name, v.Version, "full work queue")
	}
	expect.Equal(t, v.Depth(wire.QueueParked), 0, "are parked")
}

// A work queue that refuses what comes due holds up its own messages alone. RabbitMQ's at-least-once dead-lettering
// stops at 32 of them, for three minutes.
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

// The same holds for a quorum queue without a leader, and its waiting messages come when it has one again.
func aQueueWithoutLeaderStopsNoOther(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	at := func(queue, do string) {
		t.Helper()
		must(t, errOf(n.Eval(t.Context(), fmt.Sprintf("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<%q>>, "+
			"queue, <<%q>>)), ok = ra:%s(quorum_queues, amqqueue:get_pid(Q)).", v.Name, queue, do))))
	}
	const wait = 400 * ms
	var all []*suite
	for _, b := range eachWay(t, v) {
		if !b.keeps {
			continue
		}
		if b.name == "Fixed" {
			b.way = made(delay.NewFixed(delay.Quorum, wait))
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
			must(t, d.Ack(false))
		}
		ran(b.name, v.Version, "work queue without leader")
	}
}
