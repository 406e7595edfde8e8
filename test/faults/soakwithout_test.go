package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// soakWithout kills RabbitMQ without Redrive, and counts what RabbitMQ loses by itself: where
// messages of ours are in such queues, they are lost before Redrive has them. A loss here
// fails nothing.
func soakWithout(t *testing.T, r *soakRow) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		young := r.part(fmt.Sprintf("RabbitMQ %s, a quorum queue just declared", v.Version), 20)
		classic := r.part(fmt.Sprintf("RabbitMQ %s, a classic queue that dead-letters", v.Version), 20)
		young.Note = "without Redrive; messages that RabbitMQ had confirmed, of queues that it lost."
		classic.Note = "without Redrive; messages that RabbitMQ had confirmed, and that a consumer rejected, which connects again as soon as it can."
		v.Queue("dead", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("failing", amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
		_, err := n.Eval(context.Background(), "[dets:sync(T) || T <- dets:all()].") // both are old
		must(t, err)
		began, random := time.Now(), random(t)
		kills := map[*soakPart]int{} // that lost something
		for round := range classic.faults(classic.Goal) {
			queue := fmt.Sprint("young-", round)
			const inYoung, inClassic = 10, 2000
			sent := confirmed(t, v, "failing", inClassic)
			stop := rejecting(v, "failing")
			t.Cleanup(stop) // also when it fails
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum"})
			confirmed(t, v, queue, inYoung)
			<-time.After(time.Duration(random.IntN(100)) * time.Millisecond)
			n.Kill()
			restart(t, v, n, "dead", "failing")
			isThere := make(chan bool)
			go func() { isThere <- answers(v, queue) }()
			brokertest.Eventually(t, "all are rejected", func() bool { return v.Depth("failing") == 0 })
			stop()
			lost := map[*soakPart]int{classic: len(sent) - countDistinct(t, v, sent, "failing", "dead")}
			if !<-isThere {
				lost[young] = inYoung
			}
			young.Done++
			young.Messages, classic.Messages = young.Messages+inYoung, classic.Messages+inClassic
			for _, p := range []*soakPart{young, classic} {
				if p.Lost += lost[p]; lost[p] > 0 {
					kills[p]++
				}
				p.Seconds = time.Since(began).Seconds()
			}
		}
		young.Note += fmt.Sprintf(" %d of %d kills lost one.", kills[young], young.Done)
		classic.Note += fmt.Sprintf(" %d of %d kills lost some.", kills[classic], young.Done)
	})
}

// confirmed publishes n messages to a queue, and returns their ids when RabbitMQ has
// confirmed them.
func confirmed(t *testing.T, v *brokertest.VHost, queue string, n int) map[string]bool {
	t.Helper()
	conn, err := brokertest.Connect(v.URL())
	must(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	must(t, err)
	must(t, ch.Confirm(false))
	all, confirms := map[string]bool{}, []*amqp.DeferredConfirmation{}
	for range n {
		id := fmt.Sprint(rand.Uint64())
		all[id] = true
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: 2})
		must(t, err)
		confirms = append(confirms, c)
	}
	for _, c := range confirms {
		if !c.Wait() {
			t.Fatal("RabbitMQ did not confirm a message of the test's own")
		}
	}
	return all
}

// rejecting rejects all of a queue until it is stopped, and connects again when it must.
func rejecting(v *brokertest.VHost, queue string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			rejectOnce(ctx, v, queue)
			<-time.After(5 * time.Millisecond)
		}
	})
	return func() { cancel(); running.Wait() }
}

// rejectOnce is rejecting on one connection.
func rejectOnce(ctx context.Context, v *brokertest.VHost, queue string) {
	conn, err := brokertest.Connect(v.URL())
	if err != nil {
		return
	}
	end := func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }
	defer end()
	defer context.AfterFunc(ctx, end)()
	ch, err := conn.Channel()
	if err != nil || ch.Qos(100, 0, false) != nil {
		return
	}
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return
	}
	for d := range in {
		_ = d.Reject(false)
	}
}

// countDistinct takes all of some queues, and counts those of some ids.
func countDistinct(t *testing.T, v *brokertest.VHost, ids map[string]bool, queues ...string) int {
	t.Helper()
	found := map[string]bool{}
	conn, err := brokertest.Connect(v.URL())
	must(t, err)
	defer conn.Close()
	for _, queue := range queues {
		ch, err := conn.Channel()
		must(t, err)
		in, err := ch.Consume(queue, "", true, false, false, false, nil)
		must(t, err)
		for more := true; more; {
			select {
			case d := <-in:
				if ids[d.MessageId] {
					found[d.MessageId] = true
				}
			case <-time.After(3 * time.Second): // there is no more
				more = false
			}
		}
		must(t, ch.Close())
	}
	return len(found)
}
