package facts_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

func TestOnePolicyAtATimeAndTheHigherPriorityShadows(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("work", nil)
		v.Queue("dead", nil)
		applies := func(name string) {
			t.Helper()
			brokertest.Eventually(t, name+" applies", func() bool {
				q, _ := v.queue(t, "work")
				return q.policy == name
			})
		}
		v.Policy("ours", "^work$", 1, map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
		applies("ours")
		v.Publish("", "work", amqp.Publishing{Body: []byte("before")})
		work, dead := v.Consume("work"), v.Consume("dead")
		work.Reject()
		dead.Take("before")

		v.Policy("theirs", "^work$", 2, map[string]any{"max-length": 1000})
		applies("theirs")
		v.Publish("", "work", amqp.Publishing{Body: []byte("lost")})
		work.Reject()
		must(t, work.Channel.Qos(1, 0, false)) // when this is answered, so was the rejection heard

		v.deletePolicy(t, "theirs")
		applies("ours")
		v.Publish("", "work", amqp.Publishing{Body: []byte("after")})
		work.Reject()
		dead.Take("after")
	})
}

func TestArgumentsBeatAPolicyKeyByKey(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", nil)
		v.Policy("theirs", "^work$", 9, map[string]any{"dead-letter-routing-key": "nowhere", "message-ttl": 1})
		brokertest.Eventually(t, "the policy applies", func() bool {
			q, _ := v.queue(t, "work")
			return q.policy == "theirs"
		})
		v.Publish("", "work", amqp.Publishing{Body: []byte("m")}) // expires by the policy
		v.Consume("dead").Take("m")                               // goes where the argument says
	})
}
