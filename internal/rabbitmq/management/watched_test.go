package management_test

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// One request lists all queues, with how many messages and consumers each has, and those of its
// settings that are asked for, whether an argument or a policy has them; of a policy, no others.
func TestWatchedQueues(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ctx, m := t.Context(), v.API()
		if err := m.PutPolicy(ctx, management.Policy{Name: "p", Pattern: "^by-policy$", ApplyTo: "queues", Definition: map[string]any{"dead-letter-exchange": "redrive", "message-ttl": 5000, "max-length": 9}}); err != nil {
			t.Fatal(err)
		}
		v.Queue("plain", nil)
		v.Queue("by-policy", nil)
		v.Queue("by-argument", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive", "x-max-length": 7})
		ch := v.Channel()
		if _, err := ch.QueueDeclare("mine", false, false, true, false, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := ch.Consume("by-policy", "", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			v.Publish("", "by-argument", amqp.Publishing{Body: []byte("x")})
		}
		want := map[string]string{
			"plain":       "classic, 0 messages, 0 consumers, to <nil>, ttl <nil>",
			"by-policy":   "classic, 0 messages, 1 consumers, to redrive, ttl 5000",
			"by-argument": "quorum, 3 messages, 0 consumers, to redrive, ttl <nil>",
			"mine":        "classic, 0 messages, 0 consumers, to <nil>, ttl <nil>, exclusive",
		}
		var got map[string]string
		defer func() {
			if t.Failed() {
				t.Logf("it lists %q", got)
			}
		}()
		brokertest.Eventually(t, "RabbitMQ lists the queues as they are", func() bool {
			all, err := m.WatchedQueues(ctx)
			if err != nil {
				t.Fatal(err)
			}
			got = map[string]string{}
			for i := range all {
				q := &all[i]
				s := fmt.Sprintf("%s, %d messages, %d consumers, to %v, ttl %v", q.Type, q.Messages, q.Consumers, q.Setting("dead-letter-exchange"), q.Setting("message-ttl"))
				if q.Exclusive {
					s += ", exclusive"
				}
				if q.Effective["max-length"] != nil {
					s += ", and its max-length"
				}
				got[q.Name] = s
			}
			return fmt.Sprint(got) == fmt.Sprint(want)
		})
	})
}
