package stories_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// expire dead-letters n messages of a queue that no one consumes yet.
func expire(t *testing.T, v *brokertest.VHost, queue string, n int) {
	t.Helper()
	v.Queue(queue, amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "redrive"})
	ch := v.Channel()
	must(t, ch.Confirm(false))
	var last *amqp.DeferredConfirmation
	for i := range n {
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{Expiration: "0", Body: []byte(fmt.Sprint(i))})
		must(t, err)
		last = c
	}
	if !last.Wait() {
		t.Fatal("RabbitMQ did not confirm")
	}
}

const expiring = `attempts: 9, backoff: {fixed: 100ms}, jitter: none, reasons: [expired, rejected]`

// Messages are retried no faster than the policy says, in due order. (In fake time, both ways:
// TestTheRateIsExactOverAMinute.)
func TestRetriesKeepTheirRate(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		const rate, first, rest = 50, 60, 500
		start(t, v, fmt.Sprintf(`policies: [{name: slow, queues: [slow], no_consumer: retry, %s, rate: %d/s}]`, expiring, rate)).ready(t)
		began := time.Now()
		expire(t, v, "slow", first+rest)
		slow := v.ConsumeMany("slow")
		for i := range first + rest {
			d := slow.Next()
			if string(d.Body) != fmt.Sprint(i) {
				t.Fatalf("%s is number %d", d.Body, i)
			}
			must(t, d.Ack(false))
		}
		if took, least := time.Since(began), time.Second*rest/rate; took < least {
			t.Errorf("%d messages took %s at %d a second, the first %d of them at once", first+rest, took, rate, first)
		}
	})
}

// A queue without consumers gets one message back, for which an autoscaler starts a consumer, and
// says that the others wait, over a restart of the service too. It goes on by itself when there is a
// consumer, and a poller gets one message after the other.
func TestAQueueWithoutConsumersGetsAProbe(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		const policies = `policies: [{name: p, queues: ["*"], ` + expiring + `}]`
		s := start(t, v, policies).ready(t)
		expire(t, v, "orders", 20)
		s.wait(t, retry.Retried)
		if e := s.wait(t, retry.NoConsumer, retry.Retried); e.Kind != retry.NoConsumer || e.Queue != "orders" {
			t.Fatalf("%+v", e)
		}
		brokertest.Eventually(t, "it says so", func() bool {
			return strings.Contains(fmt.Sprint(s.Problems()), "consumers of queue orders") && s.metric(t, `redrive_queue_paused{queue="orders",why="no_consumer"}`) == "1" &&
				s.metric(t, `redrive_queue_consumers{queue="orders"}`) == "0"
		})
		must(t, s.Stop())
		s = startAt(t, v, policies, s.Data)
		if e := s.wait(t, retry.NoConsumer, retry.Retried); e.Kind != retry.NoConsumer {
			t.Fatalf("after a restart: %+v", e)
		}
		expect.Equal(t, v.Depth("orders"), 1, "are in the queue")
		for range 3 {
			brokertest.Eventually(t, "there is a message for a poller", func() bool {
				_, ok, err := v.Channel().Get("orders", true)
				must(t, err)
				return ok
			})
		}
		c := v.ConsumeMany("orders")
		c.Next()
		bodies(c, 16)
		if e := s.wait(t, retry.ConsumerBack); e.Queue != "orders" {
			t.Errorf("%+v", e)
		}
		s.ready(t)
	})
}

// A breaker opens while the consumer rejects all, lets nothing through but probes,
// and closes when it takes them.
func TestABreakerOpensAndCloses(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: ["*"], `+strings.Replace(expiring, "9", "90", 1)+`, in_flight: 40, settle: 1s,
			breaker: {least: 10, window: 10s, wait: 1s, max_wait: 2s, probes: 2, ramp: 2s}}]`).ready(t)
		const n = 200
		expire(t, v, "orders", n)
		c := v.ConsumeMany("orders")
		var opened, probes int
		for opened < 3 { // it opens on what fails, then on its probes
			select {
			case d := <-c.In:
				if opened > 0 {
					probes++
				}
				reject(t, d)
			case e := <-s.Events:
				if e.Kind == retry.Opened {
					opened++
				}
			case <-time.After(brokertest.Patience):
				t.Fatalf("opened %d times", opened)
			}
		}
		if probes < 2 || probes > 60 { // besides what was under way at first
			t.Errorf("%d came while it was open", probes)
		}
		if got := s.metric(t, `redrive_breaker_opened_total{queue="orders"}`); got < "3" {
			t.Errorf("opened %s times by the metric", got)
		}
		took := map[string]bool{}
		for closed := false; !closed || len(took) < n; {
			select {
			case d := <-c.In:
				if took[string(d.Body)] {
					t.Errorf("%s came again after its acknowledgement", d.Body)
				}
				took[string(d.Body)] = true
				must(t, d.Ack(false))
			case e := <-s.Events:
				closed = closed || e.Kind == retry.Closed
			case <-time.After(brokertest.Patience):
				t.Fatalf("%d of %d came, closed: %t", len(took), n, closed)
			}
		}
		brokertest.Eventually(t, "it is closed", func() bool { return s.metric(t, `redrive_breaker_state{queue="orders",state="closed"}`) == "1" })
		brokertest.Eventually(t, "nothing is left in the service", func() bool { q := s.kept(t, "orders"); return q.Waiting == 0 && q.Parked == 0 })
		expect.Equal(t, s.metric(t, `redrive_ledger_imbalance{queue="orders"}`), "0", "the ledger is off by")
	})
}

// A queue with many due messages delays another one's by a batch at most.
func TestManyDueMessagesDelayAnotherQueueByABatchAtMost(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ctx := context.Background()
		s := start(t, v, `policies: [{name: p, queues: ["*"], `+expiring+`, no_consumer: retry}]`).ready(t)
		const n = 20_000
		deadLettered(v, "many", "classic")
		deadLettered(v, "one", "classic")
		for _, queue := range []string{"many", "one"} { // so that both are bound: that takes as long as RabbitMQ does
			expire(t, v, queue, 1)
			for s.wait(t, retry.Retried).Queue != queue {
			}
			if _, err := v.Channel().QueuePurge(queue, false); err != nil { // what is behind it would not expire
				t.Fatal(err)
			}
		}
		must(t, errors.Join(s.Client.PauseQueue(ctx, "many", ""), s.Client.PauseQueue(ctx, "one", "")))
		expire(t, v, "many", n)
		brokertest.Eventually(t, "all wait", func() bool { return s.kept(t, "many").Waiting == n })
		expire(t, v, "one", 1)
		brokertest.Eventually(t, "the one waits", func() bool { return s.kept(t, "one").Waiting == 1 })
		for len(s.Events) > 0 {
			<-s.Events
		}
		released := make(chan error, 1)
		go func() {
			released <- errors.Join(s.Client.ResumeQueue(ctx, "many", ""), s.Client.ResumeQueue(ctx, "one", ""))
		}()
		for s.wait(t, retry.Resumed).Queue != "one" {
		}
		// At most what was on its way already, the batch of a round that had begun
		// before the release, and one of the round with the one.
		first := 0
		for s.wait(t, retry.Retried).Queue != "one" {
			first++
		}
		t.Logf("%d of the others came first", first)
		if first > retry.MaxClaimed+2*512 {
			t.Errorf("%d of the others came first", first)
		}
		must(t, <-released)
	})
}
