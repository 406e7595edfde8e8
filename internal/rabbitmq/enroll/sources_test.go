package enroll_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// leading are arrangements in which what old dead-letters comes back to it after some seconds.
var leading = map[string]func(v *brokertest.VHost, kind string){
	"by arguments": func(v *brokertest.VHost, kind string) {
		v.Queue("retry", amqp.Table{"x-queue-type": kind, "x-message-ttl": ttl, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "old"})
		v.Queue("old", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"})
	},
	"by policy": func(v *brokertest.VHost, kind string) {
		v.Policy("retry", "^retry$", 1, map[string]any{"message-ttl": ttl, "dead-letter-exchange": "", "dead-letter-routing-key": "old"})
		v.Queue("retry", amqp.Table{"x-queue-type": kind})
		v.Queue("old", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"})
	},
	"with their own keys": func(v *brokertest.VHost, kind string) {
		v.Queue("retry", amqp.Table{"x-queue-type": kind, "x-message-ttl": ttl, "x-dead-letter-exchange": ""})
		v.Exchange("failed", "fanout", "retry")
		v.Queue("old", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "failed"})
	},
	"through another": func(v *brokertest.VHost, kind string) {
		v.Queue("soon", amqp.Table{"x-queue-type": kind, "x-message-ttl": ttl / 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "old"})
		v.Exchange("later", "topic", "soon")
		v.Queue("retry", amqp.Table{"x-queue-type": kind, "x-message-ttl": ttl / 2, "x-dead-letter-exchange": "later", "x-dead-letter-routing-key": "soon"})
		v.Queue("old", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"})
	},
	"by an exchange": func(v *brokertest.VHost, kind string) {
		v.Queue("retry", amqp.Table{"x-queue-type": kind, "x-message-ttl": ttl, "x-dead-letter-exchange": "back"})
		v.Exchange("failed", "fanout", "retry")
		v.Queue("old", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "failed"})
		v.Exchange("back", "direct", "old")
	},
	"by an alternate exchange": func(v *brokertest.VHost, kind string) {
		v.Must("PUT", "policies/"+v.Name+"/nowhere", management.Policy{Pattern: "^nowhere$", ApplyTo: "exchanges", Definition: map[string]any{"alternate-exchange": "back"}})
		v.Exchange("nowhere", "direct")
		v.Queue("retry", amqp.Table{"x-queue-type": kind, "x-message-ttl": ttl, "x-dead-letter-exchange": "nowhere"})
		v.Exchange("failed", "fanout", "retry")
		v.Queue("old", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "failed"})
		v.Exchange("back", "fanout", "old")
	},
}

const ttl = int64(6000)

// reject publishes n messages to old, and rejects them.
func reject(t *testing.T, v *brokertest.VHost, first, n int) {
	t.Helper()
	ch := v.Channel()
	for i := range n {
		v.Publish("", "old", amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: fmt.Sprint(first + i)})
	}
	for range n {
		brokertest.Eventually(t, "a message is there", func() bool {
			d, ok, err := ch.Get("old", false)
			must(t, err)
			if ok {
				must(t, d.Reject(false))
			}
			return ok
		})
	}
}

// What waits in the retry queue of a hand-made recipe comes to the new queue.
func TestWhatWaitsInAnOldRetryQueueIsMovedToo(t *testing.T) {
	t.Parallel()
	for name, arrange := range leading {
		t.Run(name, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				kind := "classic"
				if v.Since4() {
					kind = "quorum"
				}
				arrange(v, kind)
				reject(t, v, 0, 20)
				m := mover(t, v, v.URL())
				var said []string
				m.Report = func(s string) { t.Log(s); said = append(said, s) }
				for i := range 20 {
					v.Publish("", "old", amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: fmt.Sprint(20 + i)})
				}
				must(t, m.Run(t.Context()))
				brokertest.Eventually(t, "all are in the new queue", func() bool { return v.Depth("new") >= 40 })
				seen := map[string]int{}
				for _, d := range all(t, v, "new") {
					seen[d.MessageId]++
				}
				for id := range 40 {
					expect.Equal(t, seen[fmt.Sprint(id)], 1, "message %d came … times", id)
				}
				// On a slow machine they may have expired before.
				if text := strings.Join(said, "\n"); strings.HasSuffix(name, "exchange") && strings.Contains(text, `to queue "old" by its name`) {
					t.Errorf("it said %q, though the binding is moved", said)
				}
			})
		})
	}
}

// While anything else feeds a queue that leads to the old one, that stays, and the feeder is named.
func TestTheOldQueueStaysWhileOthersNeedIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		feed func(t *testing.T, v *brokertest.VHost) (end func())
		want string
	}{
		"an exchange": {func(t *testing.T, v *brokertest.VHost) func() {
			v.Exchange("later", "direct", "retry")
			return func() { must(t, v.Channel().QueueUnbind("retry", "retry", "later", nil)) }
		}, `queue "retry", 0 messages; fed by exchange "later"`},
		"a queue": {func(t *testing.T, v *brokertest.VHost) func() {
			v.Queue("another", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"})
			return func() { v.DeleteQueue("another") }
		}, `queue "another", 0 messages; fed by publishers, as it has no time to live`},
		"publishers": {func(t *testing.T, v *brokertest.VHost) func() {
			c := v.Consume("retry")
			return func() { must(t, c.Channel.Close()) }
		}, `queue "retry", 0 messages; fed by publishers, as it has consumers`},
	} {
		t.Run(name, func(t *testing.T) {
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				leading["by arguments"](v, "quorum")
				end := c.feed(t, v)
				if name == "publishers" { // a statistic
					brokertest.Eventually(t, "the consumer is counted", func() bool { q, _ := v.State("retry"); return q.Consumers == 1 })
				}
				m := mover(t, v, v.URL())
				if err := m.Run(t.Context()); !errors.Is(err, enroll.ErrConsumers) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v", err)
				}
				if _, there := v.State("old"); !there {
					t.Fatal("the old queue is deleted")
				}
				end()
				if name == "publishers" {
					brokertest.Eventually(t, "the consumer is gone", func() bool { q, _ := v.State("retry"); return q.Consumers == 0 })
				}
				must(t, m.Run(t.Context()))
			})
		})
	}
}
