package faults_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
	"github.com/redrive-mq/redrive/internal/rabbitnode"
	"github.com/redrive-mq/redrive/internal/wait/stored"
)

// inFlight bounds the duplicates of one crash: what was stored and not yet
// acknowledged (the prefetch), and what was returned and not yet deleted.
const inFlight = 4096 + stored.InFlight

func TestKillingTheServiceLosesNothing(t *testing.T) {
	const kills = 30 // on each of two versions
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newLedger(t, v, "orders")
		p := newProcess(t, v.URL())
		p.start()
		p.waitReady() // until the exchange is there RabbitMQ drops what is dead-lettered to it
		p.kill()
		consuming(t, l)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for range kills {
			p.start()
			l.publish(150)
			// Any moment will do: while it opens, connects, takes in, or returns.
			<-time.After(time.Duration(random.IntN(600)) * time.Millisecond)
			p.kill()
		}
		p.start()
		l.settle(settleWithin)
		p.waitReady()
		if err := p.term(); err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
		l.account(kills, inFlight)
	})
}

func TestStoppingTheServiceDuplicatesNothing(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newLedger(t, v, "orders")
		p := newProcess(t, v.URL())
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
		l.settle(settleWithin)
		l.account(0, 0)
	})
}

func TestKillingRabbitMQLosesNothing(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		t.Parallel()
		l := newLedger(t, v, "orders")
		p := newProcess(t, v.URL())
		p.start()
		p.waitReady()
		// RabbitMQ 3.10 writes the registration of a quorum queue to disk some
		// minutes after it was declared, and a kill before that loses the queue
		// for good [measured on 3.10.8: names.dets]. These queues are to be old.
		if _, err := n.Eval(context.Background(), "[dets:sync(T) || T <- dets:all()]."); err != nil {
			t.Fatal(err)
		}
		consuming(t, l)
		const kills = 3
		for range kills {
			l.publish(2000)
			<-time.After(200 * time.Millisecond)
			n.Kill()
			if err := n.Restart(context.Background()); err != nil {
				t.Fatal(err)
			}
			p.waitReady()
		}
		l.settle(settleWithin)
		p.waitReady()
		l.account(kills, inFlight)
	})
}

func TestCuttingConnectionsLosesNothing(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newLedger(t, v, "orders")
		proxy := brokertest.NewProxy(t, v)
		p := newProcess(t, proxy.URL)
		p.start()
		p.waitReady()
		consuming(t, l)
		const cuts = 15
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for i := range cuts {
			proxy.CutAfter(random.Int64N(100_000))
			brokertest.Eventually(t, "the connections are cut", func() bool {
				l.publish(5)
				return proxy.Cuts() > i
			})
		}
		l.settle(settleWithin)
		p.waitReady()
		l.account(cuts, inFlight)
	})
}
