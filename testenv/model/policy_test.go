package model_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/model"
)

// applied sets a policy and waits until a queue has it.
func (w *world) applied(queue string, definition map[string]any) {
	w.Helper()
	w.setPolicy(queue, "^"+queue+"$", definition)
	brokertest.Eventually(w, "the policy of "+queue+" applies", func() bool { return w.policyOf(queue) == queue })
	time.Sleep(300 * time.Millisecond)
}

var bothTypes = []string{"classic", "quorum"}

var policies = []behaviour{
	{"a policy's TTL is not that of messages inside", func(w *world) {
		for _, kind := range bothTypes {
			w.queue(kind, amqp.Table{"x-queue-type": kind})
			w.bodies(kind, "inside")
			w.applied(kind, map[string]any{"message-ttl": 1})
			w.bodies(kind, "later")
			time.Sleep(50 * time.Millisecond)
			w.holds(kind, "inside")
		}
	}},
	{"a policy's length is that of messages inside", func(w *world) {
		for _, kind := range bothTypes {
			w.queue(kind, amqp.Table{"x-queue-type": kind})
			w.bodies(kind, "a", "b", "c")
			w.applied(kind, map[string]any{"max-length": 1})
			w.holds(kind, "c")
		}
	}},
	{"of two overflows, a classic queue has its argument's and a quorum queue its policy's", func(w *world) {
		for _, kind := range bothTypes {
			w.queue(kind, amqp.Table{"x-queue-type": kind, "x-max-length": int32(1), "x-overflow": "drop-head"})
			w.applied(kind, map[string]any{"overflow": "reject-publish"})
			w.bodies(kind, "a", "b", "c")
		}
		w.holds("classic", "c")
		w.holds("quorum", "a", "b") // b was the one too many
	}},
	{"a policy for quorum queues does not apply to classic ones, not even in part", func(w *world) {
		for _, kind := range bothTypes {
			w.queue("of "+kind, amqp.Table{"x-queue-type": kind})
		}
		w.setPolicy("limit", "^of ", map[string]any{"delivery-limit": 1, "message-ttl": 1})
		brokertest.Eventually(w, "it applies", func() bool { return w.policyOf("of quorum") == "limit" })
		time.Sleep(300 * time.Millisecond)
		w.is("policy", w.policyOf("of classic"), "")
		w.bodies("of classic", "stays")
		w.bodies("of quorum", "expires")
		time.Sleep(100 * time.Millisecond)
		w.holds("of classic", "stays")
		w.holds("of quorum")
	}},
	{"the delivery limit of an argument and of a policy", func(w *world) {
		for name, of := range map[string]struct{ argument, policy, times3, times4 int }{
			"lower policy":     {5, 1, 2, 2},
			"higher policy":    {1, 5, 2, 2},
			"argument without": {-1, 1, 1, 2},
			"policy without":   {1, -1, 0, 2}, // which RabbitMQ 3 refuses
			"both without":     {-1, -1, 0, 25},
		} {
			want := of.times3
			if w.since4 {
				want = of.times4
			}
			if want == 0 {
				continue
			}
			w.quorum(name, amqp.Table{"x-delivery-limit": int32(of.argument)})
			w.applied(name, map[string]any{"delivery-limit": of.policy})
			w.bodies(name, "m")
			n := 0
			for ; n < 25; n++ {
				time.Sleep(20 * time.Millisecond)
				d, ok, err := w.ch.Get(name, false)
				if w.must(err); !ok {
					break
				}
				w.must(d.Reject(true))
			}
			if n != want {
				w.Errorf("%s: delivered %d times, want %d", name, n, want)
			}
		}
	}},
	{"the x-expires of an argument and of a policy", func(w *world) {
		for _, kind := range bothTypes {
			w.queue(kind, amqp.Table{"x-queue-type": kind, "x-expires": int32(3_600_000)})
			w.applied(kind, map[string]any{"expires": 2000})
			w.queue("long "+kind, amqp.Table{"x-queue-type": kind, "x-expires": int32(2000)})
			w.applied("long "+kind, map[string]any{"expires": 3_600_000})
		}
		time.Sleep(15 * time.Second)
		for _, kind := range bothTypes {
			for _, name := range []string{kind, "long " + kind} {
				_, err := w.another().QueueDeclarePassive(name, true, false, false, false, nil)
				stays := name == "long quorum" && !w.since4 // the policy's holds; elsewhere the shorter one
				if stays != (err == nil) {
					w.Errorf("%s: %v", name, err)
				}
			}
		}
	}},
}

func TestTheModelRefusesPoliciesThatItDoesNotKnow(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *model.Broker) {
		policy := func(name string, priority int, key string, value any) error {
			return broker.SetPolicy(model.Policy{Name: name, Pattern: "^q", ApplyTo: "queues", Priority: priority, Definition: map[string]any{key: value}})
		}
		for key, value := range map[string]any{"queue-mode": "lazy", "max-length-bytes": 1, "max-length": "1", "overflow": "reject-publish-dlx"} {
			if err := policy("p", 0, key, value); err == nil {
				t.Errorf("%s = %v is not refused", key, value)
			}
		}
		ch, err := connect(t, broker.Dial, 0).Channel()
		if err != nil {
			t.Fatal(err)
		}
		for n, name := range []string{"a", "b"} {
			if err := policy(name, 1, "max-length", n); err != nil {
				t.Error(err)
			}
		}
		if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err == nil {
			t.Error("two policies of the same priority are not refused")
		}
	})
}
