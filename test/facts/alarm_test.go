package facts_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
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

// isConfirmed tells whether a confirm comes at once.
func isConfirmed(v *vhost, c *amqp.DeferredConfirmation) bool {
	v.settle()
	select {
	case <-c.Done():
		return true
	case <-time.After(time.Second):
		return false
	}
}
