package faults_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

const libraryPrefetch = 200

// newLibraryTally is a tally whose queue only the library consumes.
func newLibraryTally(t *testing.T, v *brokertest.VHost) *tally {
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
	return emptyTally(t, v, "orders")
}

// handle is a handler whose messages fail as the tally's do.
func (t *tally) handle(_ context.Context, m *redrive.Message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	headers := maps.Clone(amqp.Table(m.Headers))
	headers[wire.HeaderAttempt] = int64(m.Attempt - 1)
	if m.ID != "" {
		headers[wire.HeaderID] = m.ID
	}
	if m.Exchange != "" {
		t.wrong = append(t.wrong, fmt.Sprintf("%q came by the exchange %q", m.MessageID, m.Exchange))
	}
	if t.fails(amqp.Delivery{MessageId: m.MessageID, Body: m.Body, Headers: headers, RoutingKey: m.RoutingKey, Redelivered: m.Redelivered}) {
		return errors.New("it fails twice")
	}
	t.done(m.MessageID)
	return nil
}

// library runs a consumer until the function it returns is called, which tells
// what Consume returned.
func library(t *testing.T, l *tally, url string) (stop func() error) {
	t.Helper()
	k := redrive.Consumer{Queue: l.queue, Wait: redrive.Levels(wait), Concurrency: 50, Prefetch: libraryPrefetch,
		Policy: policy.Policy{Attempts: failures + 1, Backoff: policy.Fixed(wait)}, Handler: l.handle}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- redrive.Consume(ctx, redrive.Config{URLs: []string{url}}, k) }()
	stop = sync.OnceValue(func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) { // as where it had not begun yet
			return err
		}
		return nil
	})
	t.Cleanup(func() {
		if t.Failed() { // what waits for what, while it still waits
			var stacks strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
			t.Logf("goroutines:\n%s", &stacks)
		}
		must(t, stop())
	})
	return stop
}

// consumesAgain waits until the library has a connection again: until then its workers go
// on with what was delivered to them over the one that broke, and RabbitMQ delivers that
// again.
func (t *tally) consumesAgain() {
	t.test.Helper()
	t.mu.Lock()
	failedOnce := fmt.Sprintf("%s-%d 1", t.queue, len(t.bodies))
	t.mu.Unlock()
	t.publish(1)
	brokertest.Eventually(t.test, "the library consumes again", func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return !t.failed[failedOnce].IsZero() // it may be a redelivery, which seen does not count
	})
}

func TestCuttingTheLibrarysConnectionsLosesNothing(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newLibraryTally(t, v)
		proxy := brokertest.NewProxy(t, v)
		library(t, l, proxy.URL)
		random := random(t)
		for range times(5, 10) {
			l.during(func() {
				cutUnderLoad(l, proxy.Proxy, random.Int64N(100_000))
				l.consumesAgain()
			})
		}
		l.awaitAcknowledged()
		l.publish(300) // what fails only now comes once
		l.awaitAcknowledged()
		l.account()
	})
}

func TestKillingRabbitMQUnderTheLibraryLosesNothing(t *testing.T) {
	t.Parallel()
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		l := newLibraryTally(t, v)
		library(t, l, v.URL())
		l.publish(10)
		l.awaitAcknowledged()
		if _, err := n.Eval(context.Background(), "[dets:sync(T) || T <- dets:all()]."); err != nil { // see TestKillingRabbitMQLosesNothing
			t.Fatal(err)
		}
		for range times(2, 3) {
			l.publish(2000)
			<-time.After(200 * time.Millisecond)
			l.during(func() {
				n.Kill()
				restart(t, n)
				l.consumesAgain()
			})
		}
		l.awaitAcknowledged()
		l.publish(300) // what fails only now comes once
		l.awaitAcknowledged()
		l.account()
		expect.Equal(t, v.Depth(wire.QueueParked), 0, "messages are parked")
	})
}

func TestStoppingTheLibraryDuplicatesNothing(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newLibraryTally(t, v)
		for range times(3, 5) {
			stop := library(t, l, v.URL())
			l.publish(500)
			<-time.After(100 * time.Millisecond) // into the middle of it
			must(t, stop())
		}
		library(t, l, v.URL())
		l.awaitAcknowledged()
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
