package faults_test

import (
	"context"
	"fmt"
	"iter"
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
	brokertest.EachOfOurs(t, func(t *testing.T, b brokertest.Broker) {
		w := without{
			young:   r.part(t, fmt.Sprintf("RabbitMQ %s, a quorum queue just declared", b.Version), 20),
			classic: r.part(t, fmt.Sprintf("RabbitMQ %s, a classic queue that dead-letters", b.Version), 20),
		}
		t.Cleanup(w.note)
		w.classic.episodes(t, 2, func(t *testing.T) func(*testing.T) {
			v, n := brokertest.NewPrivate(t, b, "")
			return func(t *testing.T) { w.kill(t, v, n, w.classic.faults(5)) }
		})
	})
}

// without has the parts of both queues, of which each kill is one fault.
type without struct{ young, classic *soakPart }

// kill kills a node so often.
func (w without) kill(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node, kills iter.Seq[int]) {
	v.Queue("dead", amqp.Table{"x-queue-type": "quorum"})
	v.Queue("failing", amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
	_, err := n.Eval(context.Background(), "[dets:sync(T) || T <- dets:all()].") // both are old
	must(t, err)
	random := random(t)
	missing := map[string]int{} // the kill of each id; what comes late, after other kills too, is not lost
	for kill := range kills {
		queue := fmt.Sprint("young-", rand.Uint64())
		const inYoung, inClassic = 10, 2000
		for id := range confirmed(t, v, "failing", inClassic) {
			missing[id] = kill
		}
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
		take(t, v, missing, "failing", "dead")
		if <-isThere {
			w.young.count(1, inYoung, 0)
		} else {
			w.young.count(1, inYoung, inYoung)
		}
		w.classic.count(0, inClassic, 0)
	}
	take(t, v, missing, "failing", "dead")
	perKill := map[int]int{}
	for _, kill := range missing {
		perKill[kill]++
	}
	for _, lost := range perKill {
		w.classic.count(0, 0, lost)
	}
}

// count adds what kills did.
func (p *soakPart) count(kills, messages, lost int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Done += kills
	p.Messages += messages
	p.Lost += lost
	if p.Became == nil {
		p.Became = map[string]int{}
	}
	if lost > 0 {
		p.Became[killsThatLost]++
	}
}

const killsThatLost = "kills that lost some"

// note says how many kills lost something.
func (w without) note() {
	w.young.Note = fmt.Sprintf("without Redrive; messages that RabbitMQ had confirmed, of queues that it lost. %d of %d kills lost one.",
		w.young.Became[killsThatLost], w.young.Done)
	w.classic.Note = fmt.Sprintf("without Redrive; messages that RabbitMQ had confirmed, and that a consumer rejected, which connects again as soon as it can. %d of %d kills lost some.",
		w.classic.Became[killsThatLost], w.classic.Done)
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

// take takes all of some queues, and removes their ids from those that are missing.
func take(t *testing.T, v *brokertest.VHost, missing map[string]int, queues ...string) {
	t.Helper()
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
				delete(missing, d.MessageId)
			case <-time.After(3 * time.Second): // there is no more
				more = false
			}
		}
		must(t, ch.Close())
	}
}
