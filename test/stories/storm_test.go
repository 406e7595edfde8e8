package stories_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/upstream"
)

const (
	stormed = 400 // messages, all of which fail first
	// enoughCalls is how many calls backoff alone is given time for; the breaker has
	// the same time, however slow the machine is.
	enoughCalls = 20_000
	limping     = 2 * time.Second
)

// What an upstream gets that dies, limps and recovers: with backoff alone, and with
// breaker and rate, which spare it all but a hundredth of these calls. Neither loses
// a message. (bench/storm.go measures a longer outage, and other ways.)
func TestABreakerSparesAnUpstreamThatIsDown(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		const backoff = `attempts: 1000000, backoff: {exponential: {initial: 50ms, factor: 2, max: 200ms}}`
		alone, took := storm(t, v, "alone", backoff, func(again int, _ time.Duration) bool { return again >= enoughCalls })
		with, _ := storm(t, v, "spared", backoff+`, rate: 80/s, settle: 5s, breaker: {least: 10, window: 10s, wait: 1s, max_wait: 4s, probes: 1, ramp: 1s}`,
			func(_ int, down time.Duration) bool { return down >= took })
		t.Logf("down for %s: %d calls again with backoff alone, %d with breaker and rate", took.Round(time.Millisecond), alone, with)
		if 100*with > alone {
			t.Errorf("%d calls again reached it while it was down, and with backoff alone %d did: more than 1 in 100", with, alone)
		}
		if with < 10 {
			t.Errorf("%d calls again: the breaker cannot have known that it is down, nor that it is back", with)
		}
	})
}

// storm has all messages of a queue fail, has them retried against an upstream that is down
// until enough says so, and waits until all are done. It tells how many calls again
// came while it was down, and how long that was.
func storm(t *testing.T, v *brokertest.VHost, queue, policy string, enough func(again int, down time.Duration) bool) (again int, down time.Duration) {
	t.Helper()
	s := start(t, v, `policies: [{name: storm, queues: ["`+queue+`"], `+policy+`}]`).ready(t)
	deadLettered(v, queue, "quorum")
	u := upstream.New(20 * stormed)
	c := upstream.NewConsumer(u, false)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	ch := v.Channel()
	go func() { ended <- c.Run(ctx, ch, queue) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	began := time.Now()
	u.Down(began)
	send := v.Channel()
	for i := range stormed {
		c.Publishes(i)
		publish(t, send, "", queue, amqp.Publishing{MessageId: strconv.Itoa(i), DeliveryMode: amqp.Persistent})
	}
	began = time.Now()
	for deadline := began.Add(5 * time.Minute); !enough(again, down); {
		select {
		case err := <-ended:
			ended <- err
			t.Fatal("the consumer has ended")
		case <-time.After(20 * time.Millisecond):
		}
		if down = time.Since(began); time.Now().After(deadline) {
			t.Fatalf("in %s %d calls again came", down, again)
		}
		_, again = u.WhileDown()
	}
	back := time.Now()
	u.Back(back, back.Add(limping))
	first, again := u.WhileDown()
	if first != stormed {
		t.Errorf("%d new messages came while it was down, want %d", first, stormed)
	}
	left := c.Mark()
	if left != stormed {
		t.Errorf("%d are left to do, and none of %d was done", left, stormed)
	}
	select {
	case <-c.Drained:
	case <-time.After(3 * time.Minute):
		left, _ := c.Account()
		t.Fatalf("%d were never done; the service has %+v", left, s.kept(t, queue))
	}
	t.Logf("%s: all are done %s after it was back", queue, time.Since(back).Round(time.Millisecond))
	brokertest.Eventually(t, "nothing is left in the service", func() bool { q := s.kept(t, queue); return q.Waiting == 0 && q.Parked == 0 })
	if _, twice := c.Account(); twice > 0 {
		t.Errorf("%d were done twice", twice)
	}
	if off := s.metric(t, fmt.Sprintf("redrive_ledger_imbalance{queue=%q}", queue)); off != "0" {
		t.Errorf("the ledger is off by %q", off)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	return again, down
}
