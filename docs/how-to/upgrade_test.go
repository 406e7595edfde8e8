package howto_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// deadLetterService is the recipe of that name: it takes what died, keeps it until
// it is due (the recipe in Redis), and publishes it to its queue again, with its
// headers, until x-death counts most deaths. It ends with the test.
func deadLetterService(v *brokertest.VHost, delay time.Duration, most int64) (gaveUp <-chan string) {
	given := make(chan string, 1000)
	in, out := v.Consume("dead.letters"), v.Channel()
	type due struct {
		d  amqp.Delivery
		at time.Time
	}
	kept := make(chan due, 1000)
	go func() {
		defer close(kept)
		for d := range in.In {
			if err := d.Ack(false); err != nil {
				return
			}
			kept <- due{d, time.Now().Add(delay)}
		}
	}()
	go func() {
		for m := range kept {
			deaths, _ := m.d.Headers["x-death"].([]any)
			death, _ := deaths[0].(amqp.Table)
			if count, _ := death["count"].(int64); count >= most {
				given <- string(m.d.Body)
				continue
			}
			<-time.After(time.Until(m.at))
			queue, _ := death["queue"].(string)
			if err := out.Publish("", queue, false, false, amqp.Publishing{Headers: m.d.Headers, Body: m.d.Body, DeliveryMode: amqp.Persistent}); err != nil {
				return
			}
		}
	}()
	return given
}

// What counts by x-death and publishes again stops after three deaths on RabbitMQ
// 3, and never on 4. Redrive parks the message after three attempts on both.
func TestTheDeadLetterServiceRetriesForEverOn4(t *testing.T) {
	program := build(t)
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", nil)
		v.Queue("dead.letters", nil)
		v.Exchange("dead", "fanout", "dead.letters")
		deadLetters(t, v, map[string]any{"dead-letter-exchange": "dead"})
		gaveUp := deadLetterService(v, time.Millisecond, 3)
		work := v.Consume("orders")
		v.Publish("", "orders", amqp.Publishing{Body: []byte("broken")})
		work.Reject()
		work.Reject()
		work.Reject()
		if !v.Since4() {
			select {
			case <-gaveUp:
			case <-time.After(time.Minute):
				t.Fatal("the recipe did not give up after three deaths")
			}
			if n := v.Depth("orders"); n != 0 {
				t.Fatalf("%d messages are in orders", n)
			}
			v.Publish("", "orders", amqp.Publishing{Body: []byte("broken")})
		} else {
			for range 30 {
				work.Reject() // ten times as many as the recipe allows
			}
			select {
			case id := <-gaveUp:
				t.Fatalf("the recipe gave %q up", id)
			default:
			}
		}

		s := serve(t, v, "policies: [{name: orders, queues: [orders], attempts: 3, backoff: {fixed: 100ms}, jitter: none}]")
		run(t, v, program, "enroll", "orders", "--yes")
		// RabbitMQ may still take the recipe's way once, just after a policy was set.
		brokertest.Eventually(t, "the message is parked", func() bool {
			select {
			case d := <-work.In:
				if err := d.Reject(false); err != nil {
					t.Fatal(err)
				}
			default:
			}
			return len(s.Parked(t)) == 1
		})
		if m := s.Parked(t)[0]; m.Attempt != 3 {
			t.Errorf("it is parked after %d attempts, want 3", m.Attempt)
		}
	})
}

// What goes round inside RabbitMQ alone is counted on as before.
func TestXDeathStillCountsInALoopOfTheBrokerAlone(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.retry"})
		back(v, "orders.retry", amqp.Table{"x-message-ttl": int32(1)})
		v.Publish("", "orders", amqp.Publishing{Body: []byte("broken")})
		work := v.Consume("orders")
		for i := range int64(5) {
			d := work.Next()
			count := int64(0)
			if deaths, _ := d.Headers["x-death"].([]any); len(deaths) > 0 {
				for _, death := range deaths {
					if e := death.(amqp.Table); e["queue"] == "orders" {
						count, _ = e["count"].(int64)
					}
				}
			}
			if count != i {
				t.Fatalf("x-death counts %d deaths in orders after %d: %s", count, i, fmt.Sprint(d.Headers))
			}
			if err := d.Reject(false); err != nil {
				t.Fatal(err)
			}
		}
	})
}
