package stories_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// managed starts a service that can ask RabbitMQ about queues.
func managed(t *testing.T, v *brokertest.VHost, policies, data string) *service {
	t.Helper()
	c := configured(t, v, policies, data)
	c.Broker.Management = v.Management
	return run(t, c).ready(t)
}

// bodies takes n deliveries and acknowledges them.
func (c *consumer) bodies(n int) (all []string) {
	c.t.Helper()
	for range n {
		d := c.next()
		all = append(all, string(d.Body))
		if err := d.Ack(false); err != nil {
			c.t.Fatal(err)
		}
	}
	slices.Sort(all)
	return all
}

// A paused queue retries nothing while another does, over a restart too; when it is
// released, all come back, with the attempts they had.
func TestAPausedQueueRetriesNothingUntilItIsResumed(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ctx, data := context.Background(), t.TempDir()
		deadLettered(v, "orders", "quorum")
		deadLettered(v, "mail", "quorum")
		s := managed(t, v, threeAttempts, data)
		if err := s.Client.PauseQueue(ctx, "orders", "the database is down"); err != nil {
			t.Fatal(err)
		}
		ch, orders, mail := v.Channel(), consume(t, v, "orders"), consume(t, v, "mail")
		var want []string
		for i := range 20 {
			body := fmt.Sprint(i)
			want = append(want, body)
			publish(t, ch, "", "orders", amqp.Publishing{Body: []byte(body)})
			publish(t, ch, "", "mail", amqp.Publishing{Body: []byte(body)})
			reject(t, orders.next())
			reject(t, mail.next())
		}
		slices.Sort(want)
		if got := mail.bodies(20); !slices.Equal(got, want) {
			t.Errorf("the other queue got back %v", got)
		}
		brokertest.Eventually(t, "20 wait", func() bool { return s.kept(t, "orders").Waiting == 20 })
		orders.none(500 * time.Millisecond)
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		s = managed(t, v, threeAttempts, data)
		orders.none(500 * time.Millisecond)
		if q := s.kept(t, "orders"); q.Waiting != 20 || q.Pause == nil || q.Pause.Reason != "the database is down" {
			t.Errorf("after a restart: %+v", q)
		}
		if err := s.Client.ResumeQueue(ctx, "orders", ""); err != nil {
			t.Fatal(err)
		}
		var got []string
		for range 20 {
			d := orders.next()
			if d.Headers[wire.HeaderAttempt] != int64(1) {
				t.Errorf("came back with attempt %v", d.Headers[wire.HeaderAttempt])
			}
			got = append(got, string(d.Body))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("released: %v", got)
		}
	})
}

const oneAttempt = `policies: [{name: p, queues: ["*"], attempts: 1}]`

// A person sends parked messages back: the first few, then the rest, to a queue
// whose consumer works again; edits one, and copies another elsewhere.
func TestAPersonReplaysParkedMessages(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ctx := context.Background()
		deadLettered(v, "orders", "quorum")
		v.Queue("elsewhere", nil)
		s := managed(t, v, oneAttempt, t.TempDir())
		ch, orders := v.Channel(), consume(t, v, "orders")
		var want []string
		for i := range 30 {
			want = append(want, fmt.Sprintf(`{"n":%d}`, i))
			publish(t, ch, "", "orders", amqp.Publishing{Body: []byte(want[i]), ContentType: "application/json"})
			reject(t, orders.next())
		}
		parked := s.WaitParked(t, 30)

		copied, err := s.Client.Act(ctx, actions.Act{Verb: actions.Copy, IDs: []string{parked[0].ID}, To: "elsewhere"})
		if err != nil || copied.Done != 1 {
			t.Fatalf("%+v, %v", copied, err)
		}
		if d := consume(t, v, "elsewhere").next(); d.Headers[wire.HeaderID] != copied.Outcomes[0].New {
			t.Errorf("the copy has the headers %v", d.Headers)
		}
		if _, err := s.Client.Act(ctx, actions.Act{Verb: actions.Copy, IDs: []string{parked[0].ID}, To: "nowhere"}); err == nil {
			t.Error("a copy to a queue that does not exist was taken")
		}

		document := `{"n":1000}`
		edited, err := s.Client.Edit(ctx, actions.EditRequest{ID: parked[0].ID, Document: &document})
		if err != nil {
			t.Fatal(err)
		}
		d := orders.next()
		if d.Headers[wire.HeaderID] != edited.New || d.Headers[wire.HeaderAttempt] != int64(0) || d.ContentType != "application/json" {
			t.Errorf("edited, it came with %v", d.Headers)
		}
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}

		p, err := s.Client.Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders state:parked"})
		if err != nil || p.Count != 29 || len(p.Blocked) > 0 || len(p.Queues) != 1 || !p.Queues[0].Exists {
			t.Fatalf("%+v, %v", p, err)
		}
		if _, err := s.Client.Start(ctx, p.ID, operations.Start{CanarySize: 4, CanaryWait: "300ms", ExpectCount: &p.Count}); err != nil {
			t.Fatal(err)
		}
		got := orders.bodies(29)
		var o operations.Operation
		brokertest.Eventually(t, "it has ended", func() bool {
			o, err = s.Client.Operation(ctx, p.ID)
			return err == nil && o.Ended != nil
		})
		if o.State != operations.Finished || o.Done != 29 || len(got) != 29 || len(slices.Compact(got)) != 29 {
			t.Errorf("%s (%s) with %d done; came back: %v", o.State, o.Why, o.Done, got)
		}
	})
}

// The first few come back: the rest stays parked.
func TestACanaryReplaysTheFirstMessagesAlone(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ctx := context.Background()
		deadLettered(v, "orders", "quorum")
		s := managed(t, v, oneAttempt, t.TempDir())
		ch, orders := v.Channel(), consume(t, v, "orders")
		for range 10 {
			publish(t, ch, "", "orders", amqp.Publishing{Body: []byte("x")})
			reject(t, orders.next())
		}
		s.WaitParked(t, 10)
		p, err := s.Client.Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Client.Start(ctx, p.ID, operations.Start{CanarySize: 2, CanaryWait: "10m"}); err != nil {
			t.Fatal(err)
		}
		reject(t, orders.next())
		reject(t, orders.next())
		brokertest.Eventually(t, "it has stopped", func() bool {
			o, err := s.Client.Operation(ctx, p.ID)
			return err == nil && o.State == operations.Stopped && o.Done == 2
		})
		s.WaitParked(t, 10)
		orders.none(200 * time.Millisecond)
	})
}
