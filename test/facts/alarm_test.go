package facts_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestAnAlarmStopsAcksOfConnectionsThatPublishOnly(t *testing.T) {
	onEachPrivate(t, func(t *testing.T, v *vhost) {
		const messages = 50
		for _, q := range []string{"quiet", "mixed"} {
			v.Queue(q, nil)
			for range messages {
				v.Publish("", q, amqp.Publishing{})
			}
		}
		mixed := v.Dial()
		blocked := mixed.NotifyBlocked(make(chan amqp.Blocking, 2))
		ch, err := mixed.Channel()
		must(t, err)
		publishes, quiet := v.ConsumeOn(ch, "mixed"), v.Consume("quiet")
		v.setMemoryAlarm(t, true)
		must(t, ch.Publish("", "elsewhere", false, false, amqp.Publishing{}))
		select {
		case b := <-blocked:
			if !b.Active {
				t.Fatal("it was unblocked first")
			}
		case <-time.After(time.Minute):
			t.Fatal("the connection that published was not told that it is blocked")
		}
		d := publishes.Next()
		must(t, d.Ack(false))
		for range messages {
			must(t, quiet.Next().Ack(false))
		}
		if publishes.Arrived() {
			t.Error("an ack on the connection that published was read")
		}
		v.setMemoryAlarm(t, false)
		publishes.Next()
	})
}
