package faults_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// crashes knows which messages were in flight at each kill of a service: those that had
// come to their queue, and that the store still kept. Each of them may come once more for
// it, and no other message may.
type crashes struct {
	t        *testing.T
	p        *process
	n        *rabbitnode.Node
	ch       *amqp.Channel
	queue    string
	channels string // as RabbitMQ counts them while the service does not run

	came       map[string]int // as taken
	unfinished map[string]int // by id, at how many kills
	inFlight   int
}

// newCrashes is to be called before the service is started, with the queue declared.
func newCrashes(p *process, v *brokertest.VHost, n *rabbitnode.Node, queue string) *crashes {
	p.t.Helper()
	c := &crashes{t: p.t, p: p, n: n, ch: v.Channel(), queue: queue, came: map[string]int{}, unfinished: map[string]int{}}
	c.channels = c.open()
	return c
}

// open is how many channels RabbitMQ has.
func (c *crashes) open() string {
	c.t.Helper()
	out, err := c.n.Eval(context.Background(), "length(rabbit_channel:list_local()).")
	must(c.t, err)
	return strings.TrimSpace(out)
}

// note is to be called when the service has been killed. What it had published is in the
// queue's log once its channels are gone.
func (c *crashes) note() {
	c.t.Helper()
	brokertest.Eventually(c.t, "RabbitMQ has ended the channels of the service", func() bool { return c.open() == c.channels })
	c.take()
	came := map[string]bool{}
	for key := range c.came {
		id, _, _ := strings.Cut(key, " ")
		came[id] = true
	}
	s, err := diskstore.Open(c.p.data(), diskstore.Options{})
	must(c.t, err)
	err = s.Scan(context.Background(), store.Range{}, func(l store.Listed) (bool, error) {
		if id := l.Record.ID.String(); came[id] {
			c.unfinished[id]++
			c.inFlight++
		}
		return true, nil
	})
	must(c.t, err)
	must(c.t, s.Close())
}

// account checks how often each message has come; want has their bodies by their ids.
func (c *crashes) account(want map[string]string) {
	c.t.Helper()
	unexplained := 0
	for id, body := range want {
		n, most := c.came[fmt.Sprint(id, " 0 ", body)], 1+c.unfinished[id]
		if n <= most {
			continue
		}
		if unexplained++; unexplained <= 10 {
			c.t.Errorf("%s came %d times, and was in flight at %d kills", id, n, most-1)
		}
	}
	c.t.Logf("%d messages were in flight at a kill, and %d came more often than that explains", c.inFlight, unexplained)
}

// take takes all that the queue's log holds, and counts it. A message of its own at the end
// tells that there is no more.
func (c *crashes) take() {
	c.t.Helper()
	must(c.t, c.ch.Publish("", c.queue, true, false, amqp.Publishing{DeliveryMode: 2, Type: "end"}))
	in, err := c.ch.Consume(c.queue, "crashes", true, true, false, false, nil)
	must(c.t, err)
	for d := range in {
		if d.Type == "end" {
			break
		}
		c.came[arrival(d)]++
	}
	must(c.t, c.ch.Cancel("crashes", false))
}

// arrival tells deliveries apart by id, attempt and body.
func arrival(d amqp.Delivery) string {
	return fmt.Sprint(d.Headers[wire.HeaderID], " ", d.Headers[wire.HeaderAttempt], " ", string(d.Body))
}
