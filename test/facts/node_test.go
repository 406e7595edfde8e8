package facts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// Nothing is read from a connection that has published during an alarm, be it of memory or of
// disk, until no alarm is left. What other connections consume and acknowledge goes on.
func anAlarmStopsAcksOfConnectionsThatPublishOnly(t *testing.T, v *vhost) {
	const messages = 50
	for _, q := range []string{"quiet", "mixed", "published"} {
		v.Queue(q, nil)
	}
	for _, alarm := range []string{"memory", "disk"} {
		for range messages {
			v.Publish("", "quiet", amqp.Publishing{})
			v.Publish("", "mixed", amqp.Publishing{})
		}
		mixed := v.Dial()
		blocked := mixed.NotifyBlocked(make(chan amqp.Blocking, 2))
		ch, err := mixed.Channel()
		must(t, err)
		must(t, ch.Confirm(false))
		publishes, quiet := v.ConsumeOn(ch, "mixed"), v.Consume("quiet")
		v.setAlarm(t, alarm, true)
		// RabbitMQ looks at what a connection sends after the message that blocks it.
		first, err := ch.PublishWithDeferredConfirm("", "published", false, false, amqp.Publishing{})
		must(t, err)
		if b := isBlocked(t, blocked); !b.Active || b.Reason != "low on "+alarm {
			t.Errorf("alarm of %s: %+v", alarm, b)
		}
		d := publishes.Next()
		must(t, d.Ack(false))
		second, err := ch.PublishWithDeferredConfirm("", "published", false, false, amqp.Publishing{})
		must(t, err)
		for range messages {
			must(t, quiet.Next().Ack(false))
		}
		v.settle()
		if publishes.Arrived() {
			t.Errorf("alarm of %s: an ack on the connection that published was read", alarm)
		}
		if !confirmed(t, first) || isConfirmed(v, second) {
			t.Errorf("alarm of %s: not just the message before the block is confirmed", alarm)
		}
		v.setAlarm(t, alarm, false)
		if b := isBlocked(t, blocked); b.Active {
			t.Errorf("alarm of %s: it is blocked again: %+v", alarm, b)
		}
		publishes.Next()
		if !confirmed(t, second) {
			t.Errorf("alarm of %s: the message behind the block is not confirmed", alarm)
		}
		must(t, mixed.Close())
		must(t, quiet.Channel.Close())
		v.purge(t, "mixed")
	}
}

func aConnectionIsBlockedUntilTheLastAlarmIsOver(t *testing.T, v *vhost) {
	v.Queue("q", nil)
	v.setAlarm(t, "memory", true)
	v.setAlarm(t, "disk", true)
	conn := v.Dial()
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 2))
	ch, err := conn.Channel()
	must(t, err)
	must(t, ch.Confirm(false))
	must(t, ch.Publish("", "q", false, false, amqp.Publishing{}))
	if b := isBlocked(t, blocked); !b.Active || b.Reason != "low on disk & memory" {
		t.Errorf("%+v", b)
	}
	c, err := ch.PublishWithDeferredConfirm("", "q", false, false, amqp.Publishing{})
	must(t, err)
	v.setAlarm(t, "memory", false)
	if isConfirmed(v, c) {
		t.Error("one alarm of two was enough to be unblocked")
	}
	v.setAlarm(t, "disk", false)
	if b := isBlocked(t, blocked); b.Active || !confirmed(t, c) {
		t.Errorf("after the last alarm: %+v", b)
	}
}

// isBlocked waits for the next notification.
func isBlocked(t *testing.T, blocked <-chan amqp.Blocking) (b amqp.Blocking) {
	t.Helper()
	select {
	case b = <-blocked:
	case <-time.After(time.Minute):
		t.Fatal("RabbitMQ did not notify of being blocked, or no longer")
	}
	return b
}

// confirmed waits for a confirm.
func confirmed(t *testing.T, c *amqp.DeferredConfirmation) bool {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("a message was neither confirmed nor refused")
	}
	return c.Acked()
}

// isConfirmed reports whether a confirm comes at once.
func isConfirmed(v *vhost, c *amqp.DeferredConfirmation) bool {
	v.settle()
	select {
	case <-c.Done():
		return true
	case <-time.After(time.Second):
		return false
	}
}

// A classic queue says of all that it still has that it was delivered before; a quorum queue
// of what it had delivered.
func aKilledNodeHasLostTransientMessagesOfClassicQueuesOnly(t *testing.T, v *vhost) {
	fillAndConsume(t, v)
	v.kill(t)
	hasAfter(t, v, map[string]string{"classic": "a+ c+ e+ ", "quorum": "a+ b+ c+ d e "})
}

// A classic queue says of what it had delivered that it was. RabbitMQ says why it ends a connection;
// a client may see that it is reset before it has read that. [seen on 4.3.6]
func aStoppedNodeHasLostWhatAKilledOneHas(t *testing.T, v *vhost) {
	ended := fillAndConsume(t, v)
	v.restart(t)
	if e := <-ended; e == nil || e.Server && e.Code != amqp.ConnectionForced {
		t.Errorf("the connection ended with %v", e)
	}
	hasAfter(t, v, map[string]string{"classic": "a+ c+ e ", "quorum": "a+ b+ c+ d e "})
}

// fillAndConsume has five messages in a queue of each type, each second one transient, and three of
// them delivered.
func fillAndConsume(t *testing.T, v *vhost) (ended <-chan *amqp.Error) {
	conn := v.dial(t, nil)
	for _, kind := range bothTypes {
		v.Queue(kind, amqp.Table{"x-queue-type": kind})
		for i, body := range []string{"a", "b", "c", "d", "e"} {
			mode := []uint8{amqp.Persistent, amqp.Transient}[i%2]
			v.Publish("", kind, amqp.Publishing{DeliveryMode: mode, Body: []byte(body)})
		}
		ch, err := conn.Channel()
		must(t, err)
		must(t, ch.Qos(3, 0, false))
		in, err := ch.Consume(kind, "", false, false, false, false, nil)
		must(t, err)
		for range 3 {
			<-in
		}
	}
	return conn.NotifyClose(make(chan *amqp.Error, 1))
}

// hasAfter compares what queues have with bodies; +: redelivered.
func hasAfter(t *testing.T, v *vhost, wants map[string]string) {
	t.Helper()
	for kind, want := range wants {
		brokertest.Eventually(t, kind+" has back what was delivered", func() bool {
			return v.Depth(kind) == len(strings.Fields(want))
		})
		got := ""
		for range v.Depth(kind) {
			d, ok, err := v.Channel().Get(kind, true)
			if must(t, err); !ok {
				t.Fatalf("%s is empty after %q", kind, got)
			}
			if got += string(d.Body); d.Redelivered {
				got += "+"
			}
			got += " "
		}
		expect.Equal(t, got, want, "%s", kind)
	}
}

// While a quorum queue has no leader, what is published to it and what its consumers acknowledge
// waits. Nothing is delivered again, confirms are late, and dead letters arrive that are at least
// once: those at most once may be lost.
func TestALeaderChangeRedeliversNothingAndConfirmsLate(t *testing.T) {
	onACluster(t, func(t *testing.T, v *vhost) {
		const few, messages = 5, 400
		quorum := amqp.Table{"x-queue-type": "quorum"}
		for _, q := range []string{"q", "dead", "once"} {
			v.Queue(q, quorum)
		}
		v.Queue("at most", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "once"})
		v.Queue("at least", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": "dead",
			"x-dead-letter-strategy":    "at-least-once", "x-overflow": "reject-publish"})
		ch := v.Channel()
		must(t, ch.Qos(2*few, 0, false))
		in, err := ch.Consume("q", "", false, false, false, false, nil)
		must(t, err)
		work, before := v.Consumer("q", ch, in), []amqp.Delivery{}
		for range few {
			v.Publish("", "q", amqp.Publishing{Body: []byte("before")})
			before = append(before, work.Next())
		}
		changed := make(chan struct{})
		go func() {
			defer close(changed)
			for _, q := range []string{"q", "dead", "once"} {
				v.moveLeader(t, q, false)
			}
			v.moveLeader(t, "q", true)
		}()
		publisher := v.Channel()
		must(t, publisher.Confirm(false))
		var confirms []*amqp.DeferredConfirmation
		publish := func(queue, ttl, body string) {
			c, err := publisher.PublishWithDeferredConfirm("", queue, false, false,
				amqp.Publishing{DeliveryMode: amqp.Persistent, Expiration: ttl, Body: []byte(body)})
			must(t, err)
			confirms = append(confirms, c)
		}
		n := 0
		for during := changed; during != nil || n < messages; n++ {
			publish("q", "", fmt.Sprint(n))
			publish("at most", "1", fmt.Sprint(n))
			publish("at least", "1", fmt.Sprint(n))
			select {
			case <-during:
				during = nil
			case <-time.After(10 * time.Millisecond):
			}
		}
		for _, c := range confirms {
			if !confirmed(t, c) {
				t.Fatal("a message is refused")
			}
		}
		for i := range n {
			d := work.Take(fmt.Sprint(i))
			if d.Redelivered {
				t.Errorf("message %d is redelivered", i)
			}
		}
		for _, d := range before {
			must(t, d.Ack(false))
		}
		must(t, ch.Close())
		brokertest.Eventually(t, "all are acknowledged", func() bool { return held(t, v, "q") == 0 })
		brokertest.Eventually(t, "all dead letters at least once arrive", func() bool { return v.Depth("dead") >= n })
		t.Logf("of %d dead letters at most once %d are lost", n, n-v.Depth("once"))
	})
}

// Another cluster that federates an exchange shows here as an exchange of its own beside it. A policy on every exchange
// federates all but the internal ones, whatever their arguments.
func anInternalExchangeIsNotFederated(t *testing.T, v *vhost) {
	node := v.broker.(rabbit).node
	if _, err := node.Shell(t.Context(),
		"rabbitmq-plugins enable rabbitmq_federation rabbitmq_federation_management"); err != nil {
		t.Fatal(err)
	}
	down := newVHost(t, rabbit{VHost: brokertest.NewVHost(t, v.broker.(rabbit).Broker), node: node}, v.Version)
	for _, v := range []*vhost{v, down} {
		for name, internal := range map[string]bool{"redrive": true, "redrive.retry.q": false} {
			must(t, v.Own().ExchangeDeclare(name, "fanout", true, false, internal, false,
				amqp.Table{"alternate-exchange": name}))
			v.Queue(name+".queue", nil)
			must(t, v.Own().QueueBind(name+".queue", "", name, false, nil))
		}
	}
	there := down.broker.(rabbit)
	there.Must("PUT", "parameters/federation-upstream/"+there.Name+"/here",
		map[string]any{"value": map[string]any{"uri": v.broker.(rabbit).URL()}})
	there.Must("PUT", "policies/"+there.Name+"/all", management.Policy{Pattern: "^redrive", ApplyTo: "exchanges",
		Definition: map[string]any{"federation-upstream-set": "all"}})
	for of, want := range map[rabbit]string{v.broker.(rabbit): "the virtual host " + there.Name,
		there: "a RabbitMQ policy (all) puts federation-upstream-set: all"} {
		brokertest.Eventually(t, "the retry exchange alone is said to be federated", func() bool {
			all, err := of.API().Foreign(t.Context())
			return err == nil && len(all) == 1 && strings.HasPrefix(all[0].String(), want) &&
				slices.Equal(all[0].Names, []string{"redrive.retry.q"})
		})
	}
	brokertest.Eventually(t, "what is published here is copied there, once its link is up", func() bool {
		v.Publish("redrive.retry.q", "", amqp.Publishing{Body: []byte("copied")})
		return down.Depth("redrive.retry.q.queue") > 0
	})
}

// What a move's bindings turn by: several ways to a queue are one copy, and an
// exchange behind another has its alternate too.
func TestSeveralWaysToAQueueAreOneCopyAndAlternatesCountBehindExchanges(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("old", nil)
		v.Queue("new", nil)
		v.Exchange("source", "direct", "old")
		v.Exchange("to new", "fanout", "new")
		ch := v.Channel()
		must(t, ch.ExchangeDeclare("detour", "fanout", true, false, false, false,
			amqp.Table{"alternate-exchange": "to new"}))
		must(t, ch.QueueBind("old", "", "detour", false, nil))
		must(t, ch.ExchangeBind("detour", "old", "source", false, nil))
		expect := func(step string, old, now int) {
			t.Helper()
			v.Publish("source", "old", amqp.Publishing{Body: []byte(step)})
			if a, b := v.Depth("old"), v.Depth("new"); a != old || b != now {
				t.Fatalf("%s: the old queue has %d messages, want %d, and the new one %d, want %d", step, a, old, b,
					now)
			}
		}
		expect("two ways to the old queue", 1, 0)
		must(t, ch.QueueUnbind("old", "old", "source", nil))
		expect("one way", 2, 0)
		must(t, ch.QueueUnbind("old", "", "detour", nil))
		expect("the alternate exchange", 2, 1)
		must(t, ch.QueueBind("new", "old", "source", false, nil))
		expect("two ways to the new queue", 2, 2)
	})
}

// So a move looks itself before it deletes a quorum queue.
func TestAQuorumQueueIsNotDeletedOnlyIfEmptyOrUnused(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("work", amqp.Table{"x-queue-type": "quorum"})
		_, err := v.Channel().QueueDelete("work", false, true, false)
		refused(t, "if empty", err, amqp.NotImplemented)
		_, err = v.Channel().QueueDelete("work", true, false, false)
		refused(t, "if unused", err, amqp.NotImplemented)
	})
}
