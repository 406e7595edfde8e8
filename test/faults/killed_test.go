package faults_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
	"github.com/redrive-mq/redrive/internal/rabbitnode"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/wire"
)

// killed knows which messages were in flight at each kill of a service: those that had
// come to their queue, and that the store still kept. Each of them may come once more for
// it, and no other message may.
type killed struct {
	t        *testing.T
	p        *process
	n        *rabbitnode.Node
	ch       *amqp.Channel
	queue    string
	channels string // as RabbitMQ counts them while the service does not run

	came      map[string]int // as taken
	unsettled map[string]int // by id, at how many kills
	inFlight  int
}

// newKilled is to be called before the service is started, with the queue declared.
func newKilled(p *process, v *brokertest.VHost, n *rabbitnode.Node, queue string) *killed {
	p.t.Helper()
	k := &killed{t: p.t, p: p, n: n, ch: v.Channel(), queue: queue, came: map[string]int{}, unsettled: map[string]int{}}
	k.channels = k.open()
	return k
}

// open is how many channels RabbitMQ has.
func (k *killed) open() string {
	k.t.Helper()
	out, err := k.n.Eval(context.Background(), "length(rabbit_channel:list_local()).")
	must(k.t, err)
	return strings.TrimSpace(out)
}

// note is to be called when the service has been killed. What it had published is in the
// queue's log once its channels are gone.
func (k *killed) note() {
	k.t.Helper()
	brokertest.Eventually(k.t, "RabbitMQ has ended the channels of the service", func() bool { return k.open() == k.channels })
	k.take()
	came := map[string]bool{}
	for key := range k.came {
		id, _, _ := strings.Cut(key, " ")
		came[id] = true
	}
	s, err := diskstore.Open(k.p.data(), diskstore.Options{})
	must(k.t, err)
	err = s.Scan(context.Background(), store.Range{}, func(l store.Listed) (bool, error) {
		if id := l.Record.ID.String(); came[id] {
			k.unsettled[id]++
			k.inFlight++
		}
		return true, nil
	})
	must(k.t, err)
	must(k.t, s.Close())
}

// take takes all that the queue's log holds, and counts it. A message of its own at the end
// tells that there is no more.
func (k *killed) take() {
	k.t.Helper()
	must(k.t, k.ch.Publish("", k.queue, true, false, amqp.Publishing{DeliveryMode: 2, Type: "end"}))
	in, err := k.ch.Consume(k.queue, "killed", true, true, false, false, nil)
	must(k.t, err)
	for d := range in {
		if d.Type == "end" {
			break
		}
		k.came[arrival(d)]++
	}
	must(k.t, k.ch.Cancel("killed", false))
}

// arrival tells deliveries apart by id, attempt and body.
func arrival(d amqp.Delivery) string {
	return fmt.Sprint(d.Headers[wire.HeaderID], " ", d.Headers[wire.HeaderAttempt], " ", string(d.Body))
}
