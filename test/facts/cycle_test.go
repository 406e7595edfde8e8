package facts_test

import (
	"maps"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// leaves are the ways a message leaves the queue work.
var leaves = map[string]struct {
	args  amqp.Table // of the queue
	p     amqp.Publishing
	leave func(*testing.T, *vhost)
}{
	"expired": {nil, amqp.Publishing{Expiration: "1"}, func(*testing.T, *vhost) {}},
	"maxlen": {amqp.Table{"x-max-length": int32(1)}, amqp.Publishing{}, func(t *testing.T, v *vhost) {
		v.Publish("", "work", amqp.Publishing{Body: []byte("newer")})
		work := v.Consume("work")
		work.Take("newer")
		must(t, work.Channel.Close())
	}},
	"delivery_limit": {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(0)}, amqp.Publishing{}, func(t *testing.T, v *vhost) {
		work := v.Consume("work")
		must(t, work.Next().Reject(true))
		must(t, work.Channel.Close())
	}},
	"rejected": {nil, amqp.Publishing{}, func(t *testing.T, v *vhost) {
		work := v.Consume("work")
		work.Reject()
		must(t, work.Channel.Close())
	}},
}

// loop makes the message "looping" go from work to the queue delay, from where
// its TTL retries it to work.
func loop(t *testing.T, v *vhost, reason string, delay amqp.Table) {
	how := leaves[reason]
	work := amqp.Table{"x-dead-letter-exchange": "died"}
	maps.Copy(work, how.args)
	back := amqp.Table{"x-dead-letter-exchange": "back", "x-message-ttl": int32(100)}
	maps.Copy(back, delay)
	v.Queue("work", work)
	v.Queue("delay", back)
	v.Queue("seen", nil)
	v.Exchange("back", "fanout", "work")
	v.Exchange("died", "fanout", "delay", "seen")
	how.p.Body = []byte("looping")
	v.Publish("", "work", how.p)
	how.leave(t, v)
	if got := deaths(t, v.Consume("seen").Take("looping"))[0]["reason"]; got != reason {
		t.Fatalf("it left by %v, want %s", got, reason)
	}
}

// on is what has queues that messages leave for a reason: the model knows no lengths.
func on(reason string) func(*testing.T, func(*testing.T, *vhost)) {
	if reason == "maxlen" {
		return onEachBroker
	}
	return onEach
}

func TestLoopsOfTheBrokerAloneLoseWhatWasNotRejected(t *testing.T) {
	for reason := range leaves {
		t.Run(reason, func(t *testing.T) {
			on(reason)(t, func(t *testing.T, v *vhost) {
				loop(t, v, reason, nil)
				work := v.Consume("work")
				if reason == "rejected" {
					work.Take("looping")
					return
				}
				// Behind it, the same way: when this one is back, it was lost.
				v.Publish("", "delay", amqp.Publishing{Body: []byte("behind")})
				work.Take("behind")
				brokertest.Eventually(t, "nothing is left", func() bool { return v.Depth("delay")+v.Depth("work") == 0 })
			})
		})
	}
}

// atLeastOnce are the arguments of a queue that loses no dead letter.
var atLeastOnce = amqp.Table{"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}

func TestLoopsOfTheBrokerAloneJamUnderAtLeastOnce(t *testing.T) {
	for reason := range leaves {
		if reason == "rejected" {
			continue
		}
		t.Run(reason, func(t *testing.T) {
			on(reason)(t, func(t *testing.T, v *vhost) {
				loop(t, v, reason, atLeastOnce)
				v.Publish("", "delay", amqp.Publishing{Body: []byte("behind")})
				v.Consume("work").Take("behind")
				brokertest.Eventually(t, "one message is kept and none is ready", func() bool {
					return held(t, v, "delay") == 1 && v.Depth("delay") == 0
				})
			})
		})
	}
}

func TestAtLeastOnceKeepsMessagesWithoutATarget(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		const inFlight = 32 // of a queue's one dead-letter worker
		for name, unroutable := range map[string]int{"goes on": inFlight - 1, "stands": inFlight} {
			args := amqp.Table{"x-dead-letter-exchange": "died", "x-message-ttl": int32(1)}
			maps.Copy(args, atLeastOnce)
			v.Queue(name, args)
			v.Queue("target of "+name, nil)
			v.Exchange("in "+name, "fanout", name)
			v.Exchange("died", "direct", "target of "+name)
			for range unroutable {
				v.Publish("in "+name, "nowhere", amqp.Publishing{})
			}
			v.Publish("in "+name, "target of "+name, amqp.Publishing{Body: []byte("behind")})
		}
		target := v.Consume("target of stands")
		v.Consume("target of goes on").Take("behind")
		brokertest.Eventually(t, "one queue kept its 31, the other all 33", func() bool {
			return held(t, v, "goes on") == inFlight-1 && held(t, v, "stands") == inFlight+1 && v.Depth("stands") == 0
		})
		select {
		case <-target.In:
			t.Error("32 messages without a target did not stop the others")
		case <-time.After(500 * time.Millisecond):
		}
	})
}

func TestAtMostOnceLosesMessagesWithoutATarget(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for name, args := range map[string]amqp.Table{
			"classic":                     {},
			"quorum":                      {"x-queue-type": "quorum"},
			"at-least-once but drop-head": {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"},
		} {
			all := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "nowhere", "x-message-ttl": int32(1)}
			maps.Copy(all, args)
			v.Queue(name, all)
			v.Publish("", name, amqp.Publishing{})
			brokertest.Eventually(t, name+" has lost it", func() bool { return v.Depth(name) == 0 && held(t, v, name) == 0 })
		}
	})
}

// What stands still in a queue is deleted when the queue becomes at-most-once: it does not
// come when its target is there.
func TestAtMostOnceDeletesMessagesOfAnUnavailableTarget(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		ids := []string{"a", "b", "c"}
		strategy := func(name string) {
			v.Policy("kept", "^kept$", 1, map[string]any{"dead-letter-exchange": "died", "dead-letter-strategy": name, "overflow": "reject-publish", "message-ttl": 1})
		}
		strategy("at-least-once")
		v.Queue("kept", amqp.Table{"x-queue-type": "quorum"})
		for _, id := range ids {
			v.Publish("", "kept", amqp.Publishing{MessageId: id})
		}
		brokertest.Eventually(t, "all stand still", func() bool { return held(t, v, "kept") == len(ids) && v.Depth("kept") == 0 })
		strategy("at-most-once")
		brokertest.Eventually(t, "none is kept", func() bool { return held(t, v, "kept") == 0 })
		v.Queue("target", nil)
		v.Exchange("died", "fanout", "target")
		strategy("at-least-once")
		brokertest.Eventually(t, "what comes from now on arrives", func() bool {
			v.Publish("", "kept", amqp.Publishing{MessageId: "later"})
			return v.Depth("target") > 0
		})
		if d := v.Consume("target").Next(); d.MessageId != "later" {
			t.Errorf("%s came, which was to be deleted", d.MessageId)
		}
	})
}
