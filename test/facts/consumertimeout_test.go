package facts_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// Until 4.2 its channel is closed. On 4.3 a quorum queue cancels the consumer, and a classic
// queue does nothing. To a quorum queue the cancelled consumer still counts: once its client has
// acknowledged what it was late with, it gets messages again, which the client drops.
func aConsumerThatTakesTooLong(t *testing.T, v *vhost) {
	v.setConsumerTimeout(t, 3*time.Second)
	for _, kind := range bothTypes {
		v.Queue(kind, amqp.Table{"x-queue-type": kind})
		v.Publish("", kind, amqp.Publishing{Body: []byte("m")})
		ch := v.Channel()
		must(t, ch.Qos(2, 0, false))
		in, err := ch.Consume(kind, "", false, false, false, false, nil)
		must(t, err)
		late := &consumer{v, kind, ch, in}
		closed, cancelled := closes(late.Channel), late.Channel.NotifyCancel(make(chan string, 1))
		d := late.Next()
		waits := v.Consume(kind)
		is, patience := "", 2*time.Minute
		if kind == "classic" && since(v, 4, 3) {
			patience = 10 * time.Second
		}
		select {
		case err := <-closed:
			refused(t, kind, err, amqp.PreconditionFailed)
			is = "closed"
		case <-cancelled:
			is = "cancelled"
		case <-time.After(patience):
			is = "neither"
		}
		want := "closed"
		if since(v, 4, 3) {
			want = map[string]string{"classic": "neither", "quorum": "cancelled"}[kind]
		}
		if is != want {
			t.Errorf("%s: %s, want %s", kind, is, want)
		}
		if is == "neither" {
			must(t, d.Ack(false))
			continue
		}
		if !waits.Take("m").Redelivered {
			t.Errorf("%s: what took too long is not marked as redelivered", kind)
		}
		must(t, waits.Channel.Close())
		if is == "closed" {
			continue
		}
		v.Publish("", kind, amqp.Publishing{Body: []byte("next")})
		if n := v.Depth(kind); n != 1 {
			t.Errorf("a cancelled consumer gets messages: %d are ready, want 1", n)
		}
		must(t, d.Ack(false))
		brokertest.Eventually(t, "the cancelled consumer gets messages", func() bool { return v.Depth(kind) == 0 })
		must(t, late.Channel.Close())
		v.Consume(kind).Take("next")
	}
}
