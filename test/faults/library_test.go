package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

const libraryPrefetch = 200

// newLibraryLedger is a ledger whose queue only the library consumes.
func newLibraryLedger(t *testing.T, v *brokertest.VHost) *ledger {
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
	return &ledger{t: t, v: v, queue: "orders", bodies: map[string][32]byte{}, failed: map[string]time.Time{}, seen: map[string][]time.Time{}, acked: map[string]int{}, ids: map[string]string{}}
}

// handle is a handler whose messages fail twice.
func (l *ledger) handle(_ context.Context, m *redrive.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, failed := m.MessageID, m.Attempt-1
	if _, known := l.bodies[id]; !known || string(m.Body) != "body of "+id || m.Headers["n"] != id || m.RoutingKey != l.queue || m.Exchange != "" {
		l.wrong = append(l.wrong, fmt.Sprintf("%q came altered or is not of this queue: %+v", id, m))
	}
	key := fmt.Sprint(id, " ", failed)
	if early := l.failed[key].Add(wait); failed > 0 && !m.Redelivered && time.Now().Before(early) {
		l.wrong = append(l.wrong, fmt.Sprintf("%s came %s early", key, time.Until(early)))
	}
	if m.ID != "" && l.ids[id] != "" && l.ids[id] != m.ID {
		l.wrong = append(l.wrong, fmt.Sprintf("%s has the ids %s and %s", id, l.ids[id], m.ID))
	} else if m.ID != "" {
		l.ids[id] = m.ID
	}
	if !m.Redelivered { // what RabbitMQ hands out again is no duplicate of ours
		l.seen[key] = append(l.seen[key], time.Now())
	}
	if failed < failures {
		if next := fmt.Sprint(id, " ", failed+1); l.failed[next].IsZero() {
			l.failed[next] = time.Now()
		}
		return errors.New("it fails twice")
	}
	l.acked[id]++
	return nil
}

// library runs a consumer until the function it returns is called, which tells
// what Consume returned.
func library(t *testing.T, l *ledger, url string) (stop func() error) {
	t.Helper()
	k := redrive.Consumer{Queue: l.queue, Wait: redrive.Levels(wait), Concurrency: 50, Prefetch: libraryPrefetch,
		Policy: policy.Policy{Attempts: failures + 1, Backoff: policy.Fixed(wait)}, Handler: l.handle}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- redrive.Consume(ctx, redrive.Config{URLs: []string{url}}, k) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}

// consumesAgain waits until the library has a connection again: until then its workers go
// on with what was delivered to them over the one that broke, and RabbitMQ delivers that
// again.
func (l *ledger) consumesAgain() {
	l.t.Helper()
	l.mu.Lock()
	key := fmt.Sprintf("%s-%d 0", l.queue, len(l.bodies))
	l.mu.Unlock()
	l.publish(1)
	brokertest.Eventually(l.t, "the library consumes again", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.seen[key]) > 0
	})
}

func TestCuttingTheLibrarysConnectionsLosesNothing(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newLibraryLedger(t, v)
		proxy := brokertest.NewProxy(t, v)
		library(t, l, proxy.URL)
		const cuts = 10
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
				l.consumesAgain()
			})
		}
		l.settle(settleWithin)
		l.account()
	})
}

func TestKillingRabbitMQUnderTheLibraryLosesNothing(t *testing.T) {
	t.Parallel()
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		l := newLibraryLedger(t, v)
		library(t, l, v.URL())
		l.publish(10)
		l.settle(settleWithin)
		if _, err := n.Eval(context.Background(), "[dets:sync(T) || T <- dets:all()]."); err != nil { // see TestKillingRabbitMQLosesNothing
			t.Fatal(err)
		}
		const kills = 3
		for range kills {
			l.publish(2000)
			<-time.After(200 * time.Millisecond)
			l.during(func() {
				n.Kill()
				restart(t, v, n, "orders", "redrive.delay.150ms", wire.QueueParked)
				l.consumesAgain()
			})
		}
		l.settle(settleWithin)
		l.account()
		if n := v.Depth(wire.QueueParked); n != 0 {
			t.Errorf("%d messages are parked", n)
		}
	})
}

func TestStoppingTheLibraryDuplicatesNothing(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newLibraryLedger(t, v)
		for range 5 {
			stop := library(t, l, v.URL())
			l.publish(500)
			<-time.After(100 * time.Millisecond) // into the middle of it
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		library(t, l, v.URL())
		l.settle(settleWithin)
		l.mu.Lock()
		for id, n := range l.acked {
			if n > 1 {
				l.wrong = append(l.wrong, fmt.Sprintf("%s succeeded %d times", id, n))
			}
		}
		l.mu.Unlock()
		l.account()
	})
}
