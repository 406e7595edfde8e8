package facts_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// A classic queue says of all that it still has that it was delivered before; a quorum queue
// of what it had delivered.
func TestAKilledNodeHasLostTransientMessagesOfClassicQueuesOnly(t *testing.T) {
	onEachPrivate(t, func(t *testing.T, v *vhost) {
		for _, kind := range bothTypes {
			v.Queue(kind, amqp.Table{"x-queue-type": kind})
			for i, body := range []string{"a", "b", "c", "d", "e"} {
				mode := []uint8{amqp.Persistent, amqp.Transient}[i%2]
				v.Publish("", kind, amqp.Publishing{DeliveryMode: mode, Body: []byte(body)})
			}
			ch := v.Channel()
			must(t, ch.Qos(3, 0, false))
			in, err := ch.Consume(kind, "", false, false, false, false, nil)
			must(t, err)
			for range 3 {
				<-in
			}
		}
		v.kill(t)
		for kind, want := range map[string]string{"classic": "a+ c+ e+ ", "quorum": "a+ b+ c+ d e "} {
			brokertest.Eventually(t, kind+" has back what was delivered", func() bool { return v.Depth(kind) == map[string]int{"classic": 3, "quorum": 5}[kind] })
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
	})
}
