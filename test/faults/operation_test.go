package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// An operation whose service is killed at any point goes on where it was: in the end
// its account has each message once, each has come to its consumer, and what came
// twice is known by its marks.
func TestAKilledOperationReplaysEachMessageOnce(t *testing.T) {
	t.Parallel()
	const messages, kills = 3000, 5
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		p.configure(`policies: [{name: p, queues: ["*"], attempts: 5, backoff: {fixed: 1h}, no_consumer: retry}]`) // what fails again stays away; no one consumes until all are retried
		want := p.park("orders", messages)
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		c := newCrashes(p, v, n, "orders")
		p.start()
		p.waitReady()
		ctx, client := context.Background(), httpapi.Client{Addr: p.listen}
		plan, err := client.Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders state:parked"})
		if err != nil || plan.Count != messages {
			t.Fatalf("%d planned, %v", plan.Count, err)
		}
		if _, err := client.Start(ctx, plan.ID, operations.Start{Rate: 2000}); err != nil {
			t.Fatal(err)
		}
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for range kills {
			// Any moment will do: while it opens, connects, makes due, or retries.
			<-time.After(time.Duration(random.IntN(400)) * time.Millisecond)
			p.kill()
			c.note()
			p.start()
		}
		p.waitReady()
		brokertest.Eventually(t, "all have returned", func() bool {
			o, err := client.Operation(ctx, plan.ID)
			if err != nil {
				t.Fatal(err)
			}
			count, err := client.Count(ctx, "queue:orders (state:waiting OR state:parked)")
			return err == nil && o.State == operations.Finished && count.Count == 0
		})
		c.take()
		replayedOnce(t, client, plan.ID, want, c.came)
		c.account(want)
	})
}

// replayedOnce checks that the account of an operation has each message once, as done,
// and that all have come to their queue. It returns how many came again.
func replayedOnce(t *testing.T, client httpapi.Client, operation string, want map[string]string, came map[string]int) (duplicates int) {
	t.Helper()
	ctx := context.Background()
	account := map[string]int{}
	for after := ""; ; {
		page, err := client.Outcomes(ctx, operation, after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Outcomes {
			if account[o.ID]++; o.Outcome != "done" {
				t.Errorf("%s: %s, %s", o.ID, o.Outcome, o.Why)
			}
		}
		if after = page.After; after == "" {
			break
		}
	}
	for id, body := range want {
		if account[id] != 1 {
			t.Errorf("%s is in the account %d times", id, account[id])
		}
		if n := came[fmt.Sprint(id, " 0 ", body)]; n == 0 {
			t.Errorf("%s is lost, or came altered", id)
		} else {
			duplicates += n - 1
		}
	}
	if len(account) != len(want) || len(came) != len(want) {
		t.Errorf("%d messages in the account and %d at the consumer, want %d", len(account), len(came), len(want))
	}
	t.Logf("%d messages, %d duplicates", len(want), duplicates)
	return duplicates
}

// park writes parked messages into the data folder of a service that does not run;
// their bodies by their ids.
func (p *process) park(queue string, n int) map[string]string {
	p.t.Helper()
	s, err := diskstore.Open(p.data(), diskstore.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	return park(p.t, s, queue, n)
}

// park keeps parked messages in a store and closes it; their bodies by their ids.
func park(t *testing.T, s store.Store, queue string, n int) map[string]string {
	t.Helper()
	bodies := map[string]string{}
	var all []*store.Record
	for i := range n {
		now := time.Now()
		r := &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: store.Parked, Due: now, Failures: 5, Reason: wire.ReasonRejected,
			Error: fmt.Sprintf("no such article: %d", i), Policy: "p", FirstFailed: now, FailedAt: now, ParkedFor: "it failed 5 times", Proven: true,
			Message: wire.Message{RoutingKey: queue, DeliveryMode: 2, Body: fmt.Appendf(nil, "body %d", i)}}
		bodies[r.ID.String()] = string(r.Message.Body)
		all = append(all, r)
	}
	if err := s.Add(context.Background(), all); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return bodies
}

// taken is what a queue holds: how often each id, attempt and body.
func taken(t *testing.T, v *brokertest.VHost, queue string) map[string]int {
	t.Helper()
	ch := v.Channel()
	holds, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	in, err := ch.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	came := map[string]int{}
	for range holds.Messages {
		d := <-in
		came[arrival(d)]++
	}
	return came
}
