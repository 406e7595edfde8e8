package facts_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A quorum queue of RabbitMQ 4.3 sets its timer again only while it processes commands, and
// not when the timer before it was handled within its millisecond (rabbit_fifo, handle_aux).
// So where nothing else happens, a message that is never acknowledged may keep its consumer
// for ever: in most queues of an idle machine, in none of a busy one. Any publish wakes it.
func TestAPublishRemindsAQuorumQueueOfConsumerTimeout(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		if !since(v, 4, 3) {
			return // the channel looks for what has timed out, once a minute
		}
		const queues, acknowledged = 20, 4
		cancelled := make(chan string, queues)
		for i := range queues {
			name := fmt.Sprint("work.", i)
			v.Queue(name, amqp.Table{"x-queue-type": "quorum", "x-consumer-timeout": int64(1000)})
			for range acknowledged + 1 {
				v.Publish("", name, amqp.Publishing{})
			}
			ch := v.Channel()
			must(t, ch.Qos(1, 0, false))
			deliveries, err := ch.Consume(name, name, false, false, false, false, nil)
			must(t, err)
			go func() {
				n := 0
				for d := range deliveries {
					if n++; n <= acknowledged {
						<-time.After(300 * time.Millisecond)
						_ = d.Ack(false)
					}
				}
				cancelled <- name // a cancel by the server ends the deliveries
			}()
		}
		timely := 0
		for quiet := time.After(10 * time.Second); quiet != nil; {
			select {
			case <-cancelled:
				timely++
			case <-quiet:
				quiet = nil
			}
		}
		for i := range queues {
			v.Publish("", fmt.Sprint("work.", i), amqp.Publishing{})
		}
		for range queues - timely {
			select {
			case <-cancelled:
			case <-time.After(time.Minute):
				t.Fatal("a publish did not wake the queue")
			}
		}
		t.Logf("%d of %d idle queues noticed their timeout", timely, queues)
	})
}
