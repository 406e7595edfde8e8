package faults_test

import (
	"context"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

func TestKillingTheServiceLosesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, policies string
		kills          int
	}{{"disk", policies, 30}, {"levels", policiesInRabbitMQ, 15}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				killing(t, newTally(t, v, "orders"), c.policies, times(c.kills))
			})
		})
	}
}

// times counts to n.
func times(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// killing kills a service so often while messages of a tally fail and come back.
func killing(t *testing.T, l *tally, policies string, kills iter.Seq[int]) {
	p := newProcess(t, l.v.ServiceURL(brokertest.Works("orders")))
	p.configure(policies)
	p.start()
	p.waitReady() // until the exchange is there RabbitMQ drops what is dead-lettered to it
	p.kill()
	consuming(t, l)
	random := random(t)
	for range kills {
		p.start()
		l.publish(150)
		// Any moment will do: while it opens, connects, stores, or retries.
		<-time.After(time.Duration(random.IntN(600)) * time.Millisecond)
		l.during(p.kill)
	}
	p.start()
	l.awaitAcknowledged(acknowledgedWithin)
	l.during(p.kill)
	p.start()
	l.publish(300) // what fails only now comes once, though it has just started after a kill
	l.awaitAcknowledged(acknowledgedWithin)
	p.waitReady()
	// Its own account of them balances, or this fails.
	t.Log(p.cli("ledger", "--recount"))
	if err := p.term(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	l.account()
}

func TestStoppingTheServiceDuplicatesNothing(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newTally(t, v, "orders")
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		consuming(t, l)
		for range 5 {
			p.start()
			p.waitReady()
			l.publish(1000)
			<-time.After(100 * time.Millisecond) // into the middle of it
			if err := p.term(); err != nil {
				t.Errorf("after SIGTERM: %v", err)
			}
		}
		p.start()
		l.awaitAcknowledged(acknowledgedWithin)
		l.account()
	})
}

func TestKillingRabbitMQLosesNothing(t *testing.T) {
	t.Parallel()
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		const kills = 2
		killingRabbitMQ(t, newTally(t, v, "orders"), n, 2000, times(kills))
	})
}

// killingRabbitMQ kills the node of a tally so often, with so many new messages each time, and
// stops it once.
func killingRabbitMQ(t *testing.T, l *tally, n *rabbitnode.Node, each int, kills iter.Seq[int]) {
	v := l.v
	p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
	p.start()
	p.waitReady()
	// RabbitMQ 3.10 writes the registration of a quorum queue to disk some
	// minutes after it was declared, and a kill before that loses the queue
	// for good [measured on 3.10.8: names.dets]. These queues are to be old.
	if _, err := n.Eval(context.Background(), "[dets:sync(T) || T <- dets:all()]."); err != nil {
		t.Fatal(err)
	}
	consuming(t, l)
	for range kills {
		l.publish(each)
		<-time.After(200 * time.Millisecond)
		l.during(func() {
			n.Kill()
			restart(t, v, n, "orders", wire.QueueIntake)
			p.waitReady()
		})
	}
	l.publish(each)
	<-time.After(200 * time.Millisecond)
	l.during(func() {
		if _, err := n.Shell(context.Background(), "rabbitmqctl stop_app && rabbitmqctl start_app"); err != nil {
			t.Fatal(err)
		}
		p.waitReady()
	})
	l.awaitAcknowledged(acknowledgedWithin)
	p.waitReady()
	l.publish(300) // what fails only now comes once
	l.awaitAcknowledged(acknowledgedWithin)
	l.account()
}

// restart starts a killed RabbitMQ, and again where it has not restored a
// quorum queue of its own: now and then its process does not survive the recovery
// [seen on 4.3.6: noproc], and only another start helps, as for any operator.
func restart(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node, queues ...string) {
	t.Helper()
	for range 4 {
		if err := n.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
		dead := ""
		for _, q := range queues {
			if !answers(v, q) {
				dead = q
			}
		}
		if dead == "" {
			return
		}
		t.Logf("RabbitMQ has not brought its queue %s back; starting it again", dead)
		n.Kill()
	}
	t.Fatal("RabbitMQ does not recover its own queues")
}

// answers tells whether a queue can be consumed from, within some seconds.
func answers(v *brokertest.VHost, queue string) bool {
	deadline := time.Now().Add(15 * time.Second)
	for time.Now().Before(deadline) {
		if conn, err := amqp.Dial(v.URL()); err == nil {
			giveUp := time.AfterFunc(time.Until(deadline), func() { _ = conn.CloseDeadline(time.Now()) })
			ch, err := conn.Channel()
			if err == nil {
				_, err = ch.Consume(queue, "", false, false, false, false, nil)
			}
			giveUp.Stop()
			_ = conn.CloseDeadline(time.Now().Add(time.Second))
			if err == nil {
				return true
			}
		}
		<-time.After(200 * time.Millisecond)
	}
	return false
}

func TestCuttingConnectionsLosesNothing(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newTally(t, v, "orders")
		proxy := brokertest.NewProxy(t, v)
		p := newProcess(t, proxy.At(v.ServiceURL(brokertest.Works("orders"))))
		p.start()
		p.waitReady()
		consuming(t, l)
		const cuts = 15
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for i := range cuts {
			l.during(func() {
				proxy.CutAfter(random.Int64N(100_000))
				brokertest.Eventually(t, "the connections are cut", func() bool {
					l.publish(5)
					return proxy.Cuts() > i
				})
			})
		}
		l.awaitAcknowledged(acknowledgedWithin)
		p.waitReady()
		l.account()
	})
}

// What is parked in RabbitMQ is taken from there when it is safe on disk, and not
// before.
func TestKillingTheServiceLosesNothingThatIsCollected(t *testing.T) {
	t.Parallel()
	const kills, each = 10, 200
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		p.start()
		p.waitReady()
		ch := v.Channel()
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		want := map[string]bool{}
		for range kills {
			for range each {
				id := uuid.NewString()
				want[id] = true
				if err := ch.PublishWithContext(context.Background(), wire.ExchangeParked, "orders", true, false, amqp.Publishing{DeliveryMode: 2,
					Headers: amqp.Table{wire.HeaderID: id, wire.HeaderQueue: "orders", wire.HeaderAttempt: int64(3)}}); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(time.Duration(random.IntN(300)) * time.Millisecond)
			p.kill()
			p.start()
		}
		p.waitReady()
		var got map[string]int
		client := httpapi.Client{Addr: p.listen}
		brokertest.Eventually(t, "all is collected", func() bool {
			got = map[string]int{}
			for after := ""; ; {
				page, err := client.Messages(context.Background(), "state:parked", after, 1000)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range page.Messages {
					got[m.ID]++
				}
				if after = page.After; after == "" {
					return len(got) == len(want)
				}
			}
		})
		if err := p.term(); err != nil { // what was taken is now acknowledged
			t.Errorf("after SIGTERM: %v", err)
		}
		if n := v.Depth(wire.QueueParked); n != 0 {
			t.Errorf("%d came back to RabbitMQ", n)
		}
		duplicates := 0
		for id := range want {
			if got[id] == 0 {
				t.Errorf("%s is lost, and one is parked that was not published", id)
			}
			duplicates += max(got[id]-1, 0)
		}
		if duplicates > kills*1024 {
			t.Errorf("%d duplicates, more than %d kills explain", duplicates, kills)
		}
		t.Logf("%d messages, %d duplicates over %d kills", len(want), duplicates, kills)
	})
}
