package stories_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// What is parked in RabbitMQ is shown with what its trail says, and can be replayed like
// all else.
func TestTheParkingLotInRabbitMQIsCollected(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configured(t, v, `policies: [{name: exact, queues: [orders]}, {name: rest, queues: ["*"], no_consumer: retry}]`, t.TempDir())
		c.Broker.Management = v.Management // which says that the queue other does not dead-letter to Redrive
		s := run(t, c).ready(t)
		v.Queue("orders", nil)
		v.Queue("other", nil)
		firstFailed := time.Unix(1_700_000_000, 0)
		parked := func(queue string) amqp.Publishing {
			return amqp.Publishing{Body: []byte("body of " + queue), ContentType: "text/plain", Headers: amqp.Table{"mine": int32(7),
				wire.HeaderID: uuid.NewString(), wire.HeaderAttempt: int64(5), wire.HeaderQueue: queue, wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "order.eu",
				wire.HeaderFirstFailed: firstFailed, wire.HeaderReason: wire.ReasonReported, wire.HeaderError: "no stock", wire.HeaderParkReason: "it failed 5 times"}}
		}
		ch := v.Channel()
		sent := parked("orders")
		publish(t, ch, wire.ExchangeParked, "orders", sent)
		got := s.WaitParked(t, 1)[0]
		want := inspect.Message{ID: sent.Headers[wire.HeaderID].(string), Key: got.Key, Group: got.Group, ContentType: "text/plain", Queue: "orders", State: "parked", Attempt: 5, ParkedAt: got.ParkedAt, ParkedFor: "it failed 5 times",
			Reason: "reported", Error: "no stock", FirstFailed: got.FirstFailed, Failed: got.Failed, Exchange: "shop", RoutingKey: "order.eu", Size: len(sent.Body)}
		if d := cmp.Diff(want, got); d != "" || !got.FirstFailed.Equal(firstFailed) {
			t.Errorf("parked (-want +got):\n%s", d)
		}
		if n := v.Depth(wire.QueueParked); n != 0 {
			t.Errorf("%d are in RabbitMQ still", n)
		}
		// A policy names its queue exactly, so it may be retried there.
		if n := s.Replay(t, "queue:orders"); n != 1 {
			t.Fatalf("replayed %d", n)
		}
		if d := consume(t, v, "orders").next(); string(d.Body) != "body of orders" || d.RoutingKey != "order.eu" || d.Headers["mine"] != int32(7) || d.Headers[wire.HeaderParkReason] != nil {
			t.Errorf("%q came back with %q, headers %v", d.Body, d.RoutingKey, d.Headers)
		}
		// What a header says enrols no queue, and no one vouches for a user.
		hostile := parked("other")
		hostile.Headers[wire.HeaderUserID] = "admin"
		publish(t, ch, wire.ExchangeParked, "", hostile)
		if p := s.WaitParked(t, 1)[0]; p.Queue != "other" || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "that is not proven") {
			t.Errorf("parked as %+v", p)
		}
		if n := s.Replay(t, "queue:other"); n != 1 {
			t.Fatalf("replayed %d", n)
		}
		brokertest.Eventually(t, "it is parked again", func() bool {
			all := s.Parked(t)
			return len(all) == 1 && strings.Contains(all[0].ParkedFor, "not enrolled")
		})
		// One without a trail, and ones with an odd one, are kept too.
		publish(t, ch, wire.ExchangeParked, "", amqp.Publishing{Body: []byte("x")})
		odd := amqp.Table{"list": []any{amqp.Table{}}}
		for _, h := range []string{wire.HeaderID, wire.HeaderAttempt, wire.HeaderQueue, wire.HeaderExchange, wire.HeaderRoutingKey, wire.HeaderFirstFailed,
			wire.HeaderReason, wire.HeaderError, wire.HeaderParkReason, wire.HeaderUserID} {
			odd[h] = []any{h}
		}
		publish(t, ch, wire.ExchangeParked, "", amqp.Publishing{Headers: odd})
		publish(t, ch, wire.ExchangeParked, "", amqp.Publishing{Headers: amqp.Table{wire.HeaderQueue: "redrive.intake", wire.HeaderReason: strings.Repeat("x", 70_000), wire.HeaderParkReason: strings.Repeat("y", 50_000)}})
		s.WaitParked(t, 4)
		if n := s.Replay(t, "queue:redrive.intake"); n != 1 {
			t.Fatalf("replayed %d", n)
		}
		brokertest.Eventually(t, "our own queue is no work queue", func() bool {
			for _, p := range s.Parked(t) {
				if strings.Contains(p.ParkedFor, `no policy allows the queue "redrive.intake"`) {
					return true
				}
			}
			return false
		})
		if n := v.Depth(wire.QueueParked) + v.Depth(wire.QueueIntake) + v.Depth("other"); n != 0 {
			t.Errorf("%d messages are where they should not be", n)
		}
	})
}

// A message whose queue is deleted while it waits in RabbitMQ is parked; and a
// queue that is declared again is bound again at its next dead letter.
func TestAQueueThatIsGoneLosesNothingThatWaitsInRabbitMQ(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: ["*"], attempts: 9, backoff: {fixed: 500ms}, wait: {levels: [500ms]}}]`).ready(t)
		ch := v.Channel()
		deadLettered(v, "orders", "classic")
		fail := func(body string) {
			publish(t, ch, "", "orders", amqp.Publishing{Body: []byte(body)})
			d, ok, err := ch.Get("orders", false)
			if err != nil || !ok {
				t.Fatalf("no message in orders: %v", err)
			}
			reject(t, d)
			if e := s.wait(t, retry.Waiting); e.Way != "levels" {
				t.Fatalf("%s waits as %+v", body, e)
			}
		}
		fail("one")
		if _, err := ch.QueueDelete("orders", false, false, false); err != nil {
			t.Fatal(err)
		}
		p := s.WaitParked(t, 1)[0]
		if p.Queue != "orders" || p.Attempt != 1 || !strings.Contains(p.ParkedFor, `the queue "orders" does not exist any more`) {
			t.Errorf("parked as %+v", p)
		}
		if e := s.wait(t, retry.Waiting); e.Way != retry.InStore { // it was due, and its queue looked for
			t.Errorf("it waits as %+v", e)
		}
		deadLettered(v, "orders", "classic")
		fail("two") // and the queue is bound again
		if d := consume(t, v, "orders").next(); string(d.Body) != "two" {
			t.Errorf("%q came back", d.Body)
		}
		s.Replay(t, "queue:orders")
		brokertest.Eventually(t, "the first is on its way", func() bool { return len(s.Parked(t)) == 0 })
	})
}

// What waited in RabbitMQ and then found no binding to its queue, as RabbitMQ parks it
// just after it has started, comes back by itself.
func TestAMissingBindingIsDeclaredAgain(t *testing.T) {
	const n = 300
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: ["*"], attempts: 9, backoff: {fixed: 500ms}, wait: {levels: [500ms]}}]`).ready(t)
		deadLettered(v, "orders", "quorum")
		v.Exchange("shop", "topic", "orders")
		c, ch := consume(t, v, "orders"), v.Channel()
		for range n {
			publish(t, ch, "shop", "orders", amqp.Publishing{Body: []byte("x")})
		}
		var failed []amqp.Delivery
		for range n {
			failed = append(failed, c.next())
		}
		reject(t, failed[0])
		s.wait(t, retry.Waiting) // the queue is bound for it
		if err := ch.QueueUnbind("orders", "orders", wire.ExchangeDue, nil); err != nil {
			t.Fatal(err)
		}
		for _, d := range failed[1:] {
			reject(t, d)
		}
		for range n {
			if d := c.next(); d.Headers[wire.HeaderAttempt] != int64(1) {
				t.Errorf("one came back with headers %v", d.Headers)
			} else if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		if p := s.Parked(t); len(p) != 0 {
			t.Errorf("parked: %+v", p)
		}
		// The next to fail has its binding again.
		publish(t, ch, "shop", "orders", amqp.Publishing{Body: []byte("x")})
		reject(t, c.next())
		if d := c.next(); d.Exchange != wire.ExchangeDue {
			t.Errorf("the next came back through %q", d.Exchange)
		}
	})
}
