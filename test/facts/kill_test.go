package facts_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

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
		brokertest.Eventually(t, kind+" has back what was delivered", func() bool { return v.Depth(kind) == len(strings.Fields(want)) })
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
		if got != want {
			t.Errorf("%s: %q, want %q (+: redelivered)", kind, got, want)
		}
	}
}
