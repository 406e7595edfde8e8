package facts_test

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

func TestAnAlarmStopsAcksOfConnectionsThatPublishOnly(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
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
		watermark(t, n, "0.00001")
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
		watermark(t, n, "0.9")
		publishes.Next()
	})
}

// watermark sets the share of the memory at which the memory alarm goes off.
func watermark(t *testing.T, n *rabbitnode.Node, share string) {
	t.Helper()
	_, err := n.Eval(context.Background(), "vm_memory_monitor:set_vm_memory_high_watermark("+share+").")
	must(t, err)
}
