package facts_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
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
			if got := deaths(t, d)[0]["reason"]; got != "delivery_limit" {
				t.Errorf("%s: dead-lettered by %v", how, got)
			}
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
		"x-delayed-retry-type": kind, "x-delayed-retry-min": least.Milliseconds(), "x-delayed-retry-max": (time.Hour).Milliseconds()})
}

// gaps are the waits between deliveries that are put back.
func gaps(t *testing.T, v *vhost, queue, how string, n int) (waits []time.Duration) {
	v.Publish("", queue, amqp.Publishing{})
	work := v.Consume(queue)
	d := work.Next()
	for range n {
		back := time.Now()
		must(t, requeues[how](d))
		d = work.Next()
		waits = append(waits, time.Since(back))
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
		v.Queue("work", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
		v.Publish("", "work", amqp.Publishing{Body: []byte("m")})
		v.Consume("work").Reject()
		if d := v.Consume("dead").Take("m"); d.Redelivered != since(v, 4, 3) {
			t.Errorf("its first delivery is marked as redelivered: %v", d.Redelivered)
		}
	})
}
