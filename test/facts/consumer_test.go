package facts_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// requeues are the two ways to put a message back.
var requeues = map[string]func(amqp.Delivery) error{
	"reject": func(d amqp.Delivery) error { return d.Reject(true) },
	"nack":   func(d amqp.Delivery) error { return d.Nack(false, true) },
}

func TestDeliveryLimitCountsRejectsAndUntil42AlsoNacks(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		const limit = 2
		for how, requeue := range requeues {
			deadLetters(v, how, "dead of "+how, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(limit)})
			v.Publish("", how, amqp.Publishing{Body: []byte("m")})
			work := v.Consume(how)
			if how == "nack" && since(v, 4, 3) {
				for range 10 * limit {
					must(t, requeue(work.Next()))
				}
				work.Take("m")
				continue
			}
			for range limit + 1 {
				must(t, requeue(work.Next()))
			}
			d := v.Consume("dead of " + how).Take("m")
			expect.Equal(t, deaths(t, d)[0]["reason"], "delivery_limit", "%s: dead-lettered by", how)
			v.settle()
			if work.Arrived() {
				t.Errorf("%s: delivered more than %d times", how, limit+1)
			}
		}
	})
}

func TestDeliveryLimitOfQuorumQueuesIs20Since4(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", amqp.Table{"x-queue-type": "quorum"})
		v.Publish("", "work", amqp.Publishing{Body: []byte("m")})
		work := v.Consume("work")
		for range 21 {
			must(t, work.Next().Reject(true))
		}
		if since(v, 4, 0) {
			v.Consume("dead").Take("m")
		} else {
			work.Take("m")
		}
	})
}

// A huge limit is none on every version. -1 is none since 4.0; before, it is
// accepted too, and the first return dead-letters.
func TestDeliveryLimitCanBeSwitchedOffByAHugeOne(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for name, limit := range map[string]int64{"huge": 1_000_000_000, "minus one": -1} {
			deadLetters(v, name, "dead of "+name, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": limit})
			v.Publish("", name, amqp.Publishing{Body: []byte("m")})
			work := v.Consume(name)
			if limit < 0 && !since(v, 4, 0) {
				must(t, work.Next().Reject(true))
				v.Consume("dead of " + name).Take("m")
				continue
			}
			for range 25 {
				must(t, work.Next().Reject(true))
			}
			work.Take("m")
		}
	})
}

// delayedRetry declares a queue with RabbitMQ 4.3's own delayed retry.
func delayedRetry(v *vhost, name, kind string, least time.Duration) {
	v.Queue(name, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1000),
		"x-delayed-retry-type": kind, "x-delayed-retry-min": least.Milliseconds(),
		"x-delayed-retry-max": (time.Hour).Milliseconds()})
}

// gaps are the waits between deliveries that are put back, in milliseconds, as RabbitMQ counts them.
func gaps(t *testing.T, v *vhost, queue, how string, n int) (waits []time.Duration) {
	v.Publish("", queue, amqp.Publishing{})
	work := v.Consume(queue)
	d := work.Next()
	for range n {
		back := time.Now()
		must(t, requeues[how](d))
		d = work.Next()
		waits = append(waits, time.Since(back).Round(time.Millisecond))
	}
	return waits
}

func TestNativeDelayedRetryIsIgnoredBefore43(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		if since(v, 4, 3) {
			delayedRetry(v, "work", "all", time.Second)
			if got := gaps(t, v, "work", "reject", 1)[0]; got < time.Second {
				t.Errorf("it was back after %s", got)
			}
			return
		}
		delayedRetry(v, "work", "all", time.Hour)
		gaps(t, v, "work", "reject", 3) // it comes at all
	})
}

func TestNativeDelayedRetryGrowsAfterRejectOnly(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		if !since(v, 4, 3) {
			return // see TestNativeDelayedRetryIsIgnoredBefore43
		}
		const least = 250 * time.Millisecond
		delayedRetry(v, "rejected", "all", least)
		for i, wait := range gaps(t, v, "rejected", "reject", 4) {
			if want := time.Duration(i+1) * least; wait < want {
				t.Errorf("reject %d: back after %s, want %s at least", i+1, wait, want)
			}
		}
		for _, kind := range []string{"all", "returned", "failed"} {
			delayedRetry(v, kind, kind, least)
			shortest := time.Hour
			for i, wait := range gaps(t, v, kind, "nack", 8) {
				if wait < least && kind != "failed" {
					t.Errorf("%s, nack %d: back after %s, want %s at least", kind, i+1, wait, least)
				}
				if i >= 2 { // the fastest of the later ones: one slow moment proves nothing
					shortest = min(shortest, wait)
				}
			}
			if kind == "failed" && shortest >= least || shortest >= 3*least {
				t.Errorf("%s: the shortest wait after many nacks is %s", kind, shortest)
			}
		}
	})
}

// A rejected message carries its count of deliveries into the queue of dead letters, which
// therefore says at its first delivery already that it was delivered before. So that mark
// does not prove a redelivery.
func TestSince43ARejectedMessageArrivesAsRedelivered(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		v.Queue("dead", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("work", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": "dead"})
		v.Publish("", "work", amqp.Publishing{Body: []byte("m")})
		v.Consume("work").Reject()
		expect.Equal(t, v.Consume("dead").Take("m").Redelivered, since(v, 4, 3),
			"its first delivery is marked as redelivered")
	})
}

// The client drops what is delivered then, and a later ack of several takes it with
// it. So a move ends a consumer while its window is full, when nothing is under way.
func TestAQuorumQueueDeliversAfterItConfirmedACancelUnlessTheWindowIsFull(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		const window, messages, rounds, patience = 32, 300, 8, 200
		for _, kind := range []string{"classic", "quorum"} {
			for _, full := range []bool{true, false} {
				late, may := 0, kind == "quorum" && !full
				// It happens now and then: where it may, until it has.
				for round := 0; round < rounds || may && late == 0 && round < patience; round++ {
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
					must(t, errOf(v.Channel().QueueDelete("work", false, false, false)))
				}
				expect.Equal(t, late > 0, may, "%s queue, window full: %v: messages came late %d times", kind, full,
					late)
			}
		}
	})
}

// Until 4.2 its channel is closed. On 4.3 a quorum queue cancels the consumer, and a classic
// queue does nothing. To a quorum queue the cancelled consumer still counts: once its client has
// acknowledged what it was late with, it gets messages again, which the client drops.
func aConsumerThatTakesTooLong(t *testing.T, v *vhost) {
	v.setConsumerTimeout(t, 3*time.Second)
	for _, kind := range bothTypes {
		v.Queue(kind, amqp.Table{"x-queue-type": kind})
		v.Publish("", kind, amqp.Publishing{Body: []byte("m")})
		ch := v.Channel()
		must(t, ch.Qos(2, 0, false))
		in, err := ch.Consume(kind, "", false, false, false, false, nil)
		must(t, err)
		late := v.Consumer(kind, ch, in)
		closed, cancelled := closes(late.Channel), late.Channel.NotifyCancel(make(chan string, 1))
		d := late.Next()
		waits := v.Consume(kind)
		is, patience := "", 2*time.Minute
		if kind == "classic" && since(v, 4, 3) {
			patience = 10 * time.Second
		}
		select {
		case err := <-closed:
			refused(t, kind, err, amqp.PreconditionFailed)
			is = "closed"
		case <-cancelled:
			is = "cancelled"
		case <-time.After(patience):
			is = "neither"
		}
		want := "closed"
		if since(v, 4, 3) {
			want = map[string]string{"classic": "neither", "quorum": "cancelled"}[kind]
		}
		expect.Equal(t, is, want, "%s", kind)
		if is == "neither" {
			must(t, d.Ack(false))
			continue
		}
		if !waits.Take("m").Redelivered {
			t.Errorf("%s: what took too long is not marked as redelivered", kind)
		}
		must(t, waits.Channel.Close())
		if is == "closed" {
			continue
		}
		v.Publish("", kind, amqp.Publishing{Body: []byte("next")})
		expect.Equal(t, v.Depth(kind), 1, "a cancelled consumer gets messages: ready")
		must(t, d.Ack(false))
		brokertest.Eventually(t, "the cancelled consumer gets messages", func() bool { return v.Depth(kind) == 0 })
		must(t, late.Channel.Close())
		v.Consume(kind).Take("next")
	}
}

// A quorum queue of RabbitMQ 4.3 sets its timer again only while it processes commands, and
// not when the timer before it was handled within its millisecond (rabbit_fifo, handle_aux).
// So where nothing else happens, a message that is never acknowledged may keep its consumer
// for ever: in most queues of an idle machine, in none of a busy one. Any publish wakes it.
func TestAPublishRemindsAQuorumQueueOfConsumerTimeout(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		if !since(v, 4, 3) {
			return // the channel looks for what has timed out, once a minute
		}
		const queues, acknowledged = 20, 4
		cancelled := make(chan string, queues)
		for i := range queues {
			name := fmt.Sprint("work.", i)
			v.Queue(name, amqp.Table{"x-queue-type": "quorum", "x-consumer-timeout": int64(1000)})
			for range acknowledged + 1 {
				v.Publish("", name, amqp.Publishing{})
			}
			ch := v.Channel()
			must(t, ch.Qos(1, 0, false))
			deliveries, err := ch.Consume(name, name, false, false, false, false, nil)
			must(t, err)
			go func() {
				n := 0
				for d := range deliveries {
					if n++; n <= acknowledged {
						<-time.After(300 * time.Millisecond)
						_ = d.Ack(false)
					}
				}
				cancelled <- name // a cancel by the server ends the deliveries
			}()
		}
		timely := 0
		for quiet := time.After(10 * time.Second); quiet != nil; {
			select {
			case <-cancelled:
				timely++
			case <-quiet:
				quiet = nil
			}
		}
		for i := range queues {
			v.Publish("", fmt.Sprint("work.", i), amqp.Publishing{})
		}
		for range queues - timely {
			select {
			case <-cancelled:
			case <-time.After(time.Minute):
				t.Fatal("a publish did not wake the queue")
			}
		}
		t.Logf("%d of %d idle queues noticed their timeout", timely, queues)
	})
}

// A consumer by AMQP 1.0 can thus say why it rejects a message. Integers of any type arrive as int64; what has
// no place in a header is not in it. RabbitMQ 3 has AMQP 1.0 as a plugin only, which the tests do not enable.
func TestAnnotationsOfAModifiedMessageAreHeadersOfItsDeadLetterFromQuorumQueues(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		if !since(v, 4, 0) {
			return
		}
		ctx := t.Context()
		const big = 1 << 63
		given := amqp10.Annotations{
			"x-string": "no stock: Übergröße", "x-symbol": amqp10.Symbol("symbol"),
			"x-binary": []byte("binary"), "x-bool": true,
			"x-byte": int8(-5), "x-int": int32(-5), "x-long": int64(-5),
			"x-ubyte": uint8(5), "x-uint": uint32(5), "x-ulong": uint64(5),
			"x-big": uint64(big), "x-timestamp": time.UnixMilli(1_000_005), "x-redrive-error": "new",
		}
		double := amqp10.Annotations{
			"x-double": 1.5, "x-float": float32(1.5), "x-null": nil, "x-list": []any{"a"},
			"x-map": map[string]any{"a": "b"},
		}
		for k, a := range given {
			double[k] = a
		}
		want := amqp.Table{
			"x-string": "no stock: Übergröße", "x-symbol": "symbol", "x-binary": "binary", "x-bool": true,
			"x-byte": int64(-5), "x-int": int64(-5), "x-long": int64(-5),
			"x-ubyte": int64(5), "x-uint": int64(5), "x-ulong": int64(5),
			"x-big": int64(-big), "x-timestamp": int64(1_000_005), "x-redrive-error": "new",
		}
		for _, kind := range bothTypes {
			dead := kind + ".dead"
			v.Queue(dead, amqp.Table{"x-queue-type": "quorum"})
			v.Queue(kind, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "",
				"x-dead-letter-routing-key": dead})
			r, in := v.receiver10(kind), v.Consume(dead)
			rejected := func() amqp.Table {
				d := in.Next()
				must(t, d.Ack(false))
				return d.Headers
			}
			publish := func() {
				h := amqp.Table{"x-redrive-error": "old", "tenant": "acme"}
				v.Publish("", kind, amqp.Publishing{Body: []byte("m"), Headers: h})
			}
			next := func() *amqp10.Message {
				m, err := r.Receive(ctx, nil)
				must(t, err)
				return m
			}
			deadLetter := func(how string) {
				t.Helper()
				h, wanted := rejected(), want
				if kind == "classic" {
					wanted = amqp.Table{"x-redrive-error": "old"}
				}
				for key := range double {
					name := key.(string)
					expect.Equal(t, h[name], wanted[name], "%s queue, %s: "+name, kind, how)
				}
				expect.Equal(t, h["tenant"], any("acme"), "its own header")
				expect.Equal(t, h["x-first-death-reason"], any("rejected"), "its reason")
			}
			publish()
			final := &amqp10.ModifyMessageOptions{UndeliverableHere: true, Annotations: double}
			must(t, r.ModifyMessage(ctx, next(), final))
			deadLetter("undeliverable here")
			// Otherwise it is in its queue again, with them, and they are still there when it is rejected.
			publish()
			must(t, r.ModifyMessage(ctx, next(), &amqp10.ModifyMessageOptions{DeliveryFailed: true,
				Annotations: given}))
			m := next()
			if says := m.Annotations["x-string"]; (says != nil) != (kind == "quorum") {
				t.Errorf("%s queue: delivered again with %v", kind, m.Annotations)
			}
			must(t, r.RejectMessage(ctx, m, nil))
			deadLetter("rejected after that")
			// The rejected outcome's own error is nowhere.
			publish()
			must(t, r.RejectMessage(ctx, next(), &amqp10.Error{Condition: "shop:no-stock", Description: "out of it"}))
			for name, is := range rejected() {
				if s, _ := is.(string); strings.Contains(s, "out of it") || strings.Contains(s, "shop:") {
					t.Errorf("%s queue: the error is in %s", kind, name)
				}
			}
		}
	})
}

// A key that does not begin with x- ends the session of the consumer; so does a number with a fraction, when the
// message is delivered again.
func TestAnnotationsThatEndASession(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		if !since(v, 4, 0) {
			return
		}
		for i, a := range []amqp10.Annotations{{"error": "no stock"}, {"x-double": 1.5}} {
			queue := "work." + []string{"key", "double"}[i]
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum"})
			v.Publish("", queue, amqp.Publishing{})
			r := v.receiver10(queue)
			m, err := r.Receive(t.Context(), nil)
			must(t, err)
			_ = r.ModifyMessage(t.Context(), m, &amqp10.ModifyMessageOptions{DeliveryFailed: true, Annotations: a})
			_, err = r.Receive(t.Context(), nil)
			expect.ErrSays(t, err, fmt.Sprint("with ", a), "amqp:internal-error")
		}
	})
}

// receiver10 receives from a queue over AMQP 1.0.
func (v *vhost) receiver10(queue string) *amqp10.Receiver {
	v.t.Helper()
	r := v.broker.(rabbit)
	conn, err := amqp10.Dial(v.t.Context(), r.URL(), &amqp10.ConnOptions{HostName: "vhost:" + r.Name})
	must(v.t, err)
	v.t.Cleanup(func() { _ = conn.Close() })
	session, err := conn.NewSession(v.t.Context(), nil)
	must(v.t, err)
	receiver, err := session.NewReceiver(v.t.Context(), "/queues/"+queue, nil)
	must(v.t, err)
	return receiver
}
