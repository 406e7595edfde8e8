package facts_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

func TestMessageTTLExpiresAtTheHeadOnly(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for _, kind := range bothTypes {
			deadLetters(v, kind, "dead of "+kind, amqp.Table{"x-queue-type": kind})
			deadLetters(v, "free "+kind, "dead of free "+kind, amqp.Table{"x-queue-type": kind})
			v.Publish("", kind, amqp.Publishing{Body: []byte("long"), Expiration: "3600000"})
			v.Publish("", kind, amqp.Publishing{Body: []byte("short"), Expiration: "1"})
			v.Publish("", "free "+kind, amqp.Publishing{Body: []byte("control"), Expiration: "100"})
			v.Consume("dead of free " + kind).Take("control")
			if n := v.Depth(kind); n != 2 {
				t.Errorf("%s: %d messages are in the queue, want both", kind, n)
			}
			if d, ok, err := v.Channel().Get(kind, true); err != nil || !ok || string(d.Body) != "long" {
				t.Fatalf("%s: got %q, %t, %v", kind, d.Body, ok, err)
			}
			v.Consume("dead of " + kind).Take("short")
		}
	})
}

func TestXExpiresDeletesTheMessagesInside(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for _, kind := range bothTypes {
			deadLetters(v, kind, "dead", amqp.Table{"x-queue-type": kind, "x-expires": int32(1000)})
			v.Publish("", kind, amqp.Publishing{})
			brokertest.Eventually(t, kind+" has expired", func() bool { return gone(t, v, kind) })
			if n := v.Depth("dead"); n != 0 {
				t.Errorf("%s: %d messages were dead-lettered", kind, n)
			}
		}
	})
}

func TestDeclaringAgainRenewsXExpiresOfAClassicQueueOnly(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for _, kind := range bothTypes {
			if renewed := staysWhileDeclared(t, v, kind, 2*time.Second); renewed != (kind == "classic") {
				t.Errorf("%s: declaring again renews: %t", kind, renewed)
			}
		}
	})
}

// staysWhileDeclared declares a queue with a message in it again and again, for
// longer than its x-expires, and tells whether the message stays.
func staysWhileDeclared(t *testing.T, v *vhost, kind string, expires time.Duration) bool {
	ch := v.Channel()
	declare := func() (amqp.Queue, error) {
		return ch.QueueDeclare(kind, true, false, false, false, amqp.Table{"x-queue-type": kind, "x-expires": expires.Milliseconds()})
	}
	_, err := declare()
	must(t, err)
	v.Publish("", kind, amqp.Publishing{})
	most := expires * 5 / 2
	if kind == "quorum" {
		most = time.Minute // it looks at its x-expires every few seconds only
	}
	start, last := time.Now(), time.Now()
	for time.Since(start) < most {
		q, err := declare()
		must(t, err)
		gap := time.Since(last)
		last = time.Now()
		if q.Messages == 1 {
			<-time.After(expires / 10)
			continue
		}
		_, err = ch.QueueDelete(kind, false, false, false)
		must(t, err)
		if gap > expires/2 { // the machine stood still: this proves nothing
			return staysWhileDeclared(t, v, kind, 2*expires)
		}
		return false
	}
	return true
}

func TestTTLIsLimitedToTenYears(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		const longest = int64(315_360_000_000)
		v.Queue("longest", amqp.Table{"x-message-ttl": longest})
		_, err := v.Channel().QueueDeclare("longer", true, false, false, false, amqp.Table{"x-message-ttl": longest + 1})
		refused(t, "a longer TTL", err, amqp.PreconditionFailed)
	})
}
