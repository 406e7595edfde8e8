package stories_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// adopting starts a service with only a broker's URL in its config, whose user may take from dead-letter
// queues.
func adopting(t *testing.T, v *brokertest.VHost, url string) *service {
	t.Helper()
	s := configured(t, v, "", t.TempDir())
	s.Broker.Management = url
	v.Give(v.ServiceUser(), management.ServiceRights(policy.Set{policy.Default()}, "*"))
	return run(t, s).ready(t)
}

// dead has n messages of a work queue be dead-lettered to another, in order.
func dead(t *testing.T, v *brokertest.VHost, queue, dlq string, n int, headers amqp.Table) {
	t.Helper()
	before, c := v.Depth(dlq), v.ConsumeMany(queue)
	for i := range n {
		v.Publish("", queue, amqp.Publishing{DeliveryMode: 2, Headers: headers, Body: fmt.Append(nil, queue, " ", i)})
	}
	for range n {
		reject(t, c.Next())
	}
	brokertest.Eventually(t, "all are dead letters", func() bool { return v.Depth(dlq) == before+n })
	must(t, c.Channel.Close()) // not before: it would undo rejects that 3.10.8 has not sent to the queue
}

// adopt plans an adoption, runs it to its end, and returns it.
func (s *service) adopt(t *testing.T, r operations.PlanRequest) operations.Operation {
	t.Helper()
	r.Verb = actions.Adopt
	p, err := s.Client.Plan(t.Context(), r)
	must(t, err)
	op, err := s.Client.Start(t.Context(), p.ID, operations.Start{})
	must(t, err)
	brokertest.Eventually(t, "the adoption ends", func() bool {
		op, err = s.Client.Operation(t.Context(), op.ID)
		must(t, err)
		return op.Ended != nil
	})
	return op
}

// A team comes with full dead-letter queues, and the service has only a broker's URL. It finds them, parks
// what is in them with what x-death says, and an administrator's word lets it be replayed. Nothing
// else changes: the next dead letter goes where it went.
func TestADeadLetterQueueIsAdopted(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		for _, kind := range []string{"classic", "quorum"} {
			dlq := kind + ".dlq"
			v.Queue(dlq, amqp.Table{"x-queue-type": kind})
			v.Exchange(kind+".dlx", "direct", dlq)
			for _, work := range []string{"orders", "mail"} {
				work = kind + "." + work
				v.Queue(work, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dlq})
				dead(t, v, work, dlq, 100, amqp.Table{"x-exception-message": "no stock of 7", "n": int32(1)})
			}
		}
		// MassTransit's, which it publishes to.
		v.Queue("mail", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("mail_error", amqp.Table{"x-queue-type": "quorum"})
		v.Publish("", "mail_error", amqp.Publishing{DeliveryMode: 2, Headers: amqp.Table{"MT-Reason": "fault",
			"MT-Fault-Message": "no stock", "MT-Redelivery-Count": int32(3), "tenant": "x"},
			ContentType: "application/vnd.masstransit+json", Body: []byte(`{"headers":{"MT-Redelivery-Count":3}}`)})
		v.Queue("EasyNetQ_Default_Error_Queue", amqp.Table{"x-queue-type": "quorum"})
		v.Publish("", "EasyNetQ_Default_Error_Queue", amqp.Publishing{DeliveryMode: 2,
			Type: "EasyNetQ.SystemMessages.Error, EasyNetQ", Body: []byte(`{"RoutingKey":"mail","Exchange":"shop",
				"Queue":"mail","Exception":"no stock","Message":"{\u0022id\u0022:7}","DateTime":"2026-11-20T10:00:00Z",
				"BasicProperties":{"Type":"Shop.Mail, Shop","UserId":"root","Expiration":"00:00:00.001","Headers":{
				"tenant":{"Type":14,"Value":"eA=="},
				"CC":{"Type":15,"Value":[{"Type":14,"Value":"bWFpbF9lcnJvcg=="}]}}}}`)})
		s := adopting(t, v, v.Management)
		brokertest.Eventually(t, "RabbitMQ counts them, and they are found", func() bool {
			all, err := s.Client.DeadLetterQueues(t.Context())
			must(t, err)
			var found []string
			for _, q := range all.Queues {
				found = append(found, fmt.Sprint(q.Queue, q.Ready, q.WorkQueues))
			}
			return fmt.Sprint(found) == "[EasyNetQ_Default_Error_Queue1 [] "+
				"classic.dlq200 [classic.mail classic.orders] mail_error1 [mail] "+
				"quorum.dlq200 [quorum.mail quorum.orders]]"
		})

		redrive := func(args ...string) string {
			t.Helper()
			var out, errs strings.Builder
			if code := cli.Run(t.Context(), append(args, "--address", s.Client.Addr), &out, &errs, cli.Build{}); code != 0 {
				t.Fatalf("redrive %v: exit code %d: %s%s", args, code, &out, &errs)
			}
			return out.String()
		}
		if out := redrive("adopt"); !strings.Contains(out, "classic.dlq") || !strings.Contains(out, "classic.mail, classic.orders") {
			t.Errorf("redrive adopt lists\n%s", out)
		}
		if out := redrive("adopt", "classic.dlq", "--limit", "30", "--dry-run"); !strings.Contains(out, "Adopt 30 messages from classic.dlq? Nothing is done yet.") {
			t.Errorf("redrive adopt --dry-run says\n%s", out)
		}
		expect.Equal(t, v.Depth("classic.dlq"), 200, "are left by a dry run")
		if out := redrive("adopt", "classic.dlq", "--sample", "150", "--yes"); !strings.Contains(out, "The first 150 messages") ||
			!strings.Contains(out, "work queue  classic.mail") || !strings.Contains(out, "no stock of 7") {
			t.Errorf("redrive adopt --sample says\n%s", out)
		}
		brokertest.Eventually(t, "they are back", func() bool { return v.Depth("classic.dlq") == 200 })
		v.Queue("limited.dlq", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 3})
		v.Publish("", "limited.dlq", amqp.Publishing{DeliveryMode: 2})
		limited, err := s.Client.Plan(t.Context(), operations.PlanRequest{Verb: actions.Adopt, From: "limited.dlq", Sample: 10})
		if counts := strings.HasPrefix(v.Version, "3."); counts != (err != nil && strings.Contains(err.Error(), "counts each look")) {
			t.Errorf("a sample of a queue with a delivery limit: %+v, %v", limited.Sampled, err)
		}
		v.DeleteQueue("limited.dlq")
		if out := redrive("adopt", "classic.dlq", "--limit", "30", "--yes", "--expect-count", "30"); !strings.Contains(out, "30 messages are adopted, and parked") {
			t.Errorf("redrive adopt says\n%s", out)
		}
		for _, kind := range []string{"classic", "quorum"} {
			op := s.adopt(t, operations.PlanRequest{From: kind + ".dlq", Limit: int64(v.Depth(kind+".dlq") - 50)})
			expect.Equal(t, fmt.Sprint(op.State, op.Done, " ", op.Why), fmt.Sprintf("finished%d 50 more messages are in the queue now", op.Count), "came of it")
			op = s.adopt(t, operations.PlanRequest{From: kind + ".dlq"})
			expect.Equal(t, fmt.Sprint(op.State, op.Done, op.Why), "finished50", "came of the rest")
			expect.Equal(t, v.Depth(kind+".dlq"), 0, "are left")
		}
		all := s.WaitParked(t, 400)
		ids := map[string]bool{}
		for _, m := range all {
			ids[m.ID] = true
			if m.Error != "no stock of 7" || m.Reason != "rejected" || m.Attempt != 1 {
				t.Fatalf("one is shown as %+v", m)
			}
		}
		expect.Equal(t, len(ids), 400, "ids")
		detail, err := s.Client.Message(t.Context(), all[0].ID)
		must(t, err)
		if !strings.Contains(detail.ParkedFor, "adopted it from queue") {
			t.Errorf("one is parked as %+v", detail)
		}
		expect.Equal(t, s.adopt(t, operations.PlanRequest{From: "mail_error"}).Done, 1, "is adopted of MassTransit's")
		if page, err := s.Client.Messages(t.Context(), "queue:mail", "", 10); err != nil || len(page.Messages) != 1 || page.Messages[0].Error != "no stock" {
			t.Errorf("it is %+v, %v", page.Messages, err)
		}
		groups, err := s.Client.Groups(t.Context(), "state:parked")
		must(t, err)
		expect.Equal(t, len(groups.Groups), 5, "groups, one for each work queue")

		// Without a word of an administrator's it is parked again, and says so.
		expect.Equal(t, s.Replay(t, "queue:classic.orders"), 100, "are replayed")
		brokertest.Eventually(t, "they are parked again", func() bool {
			n := 0
			for _, m := range s.Parked(t) {
				if m.Queue == "classic.orders" && strings.Contains(m.ParkedFor, "redrive allow-replays") {
					n++
				}
			}
			return n == 100
		})
		for _, kind := range []string{"classic", "quorum"} {
			work := kind + ".orders"
			must(t, s.Client.AllowReplays(t.Context(), work, ""))
			expect.Equal(t, s.Replay(t, "queue:"+work), 100, "are replayed")
			c := v.ConsumeMany(work)
			var got []string
			for range 100 {
				d := c.Next()
				if got = append(got, string(d.Body)); d.Headers["x-death"] != nil || d.Headers[wire.HeaderID] == nil || d.Headers["n"] != int32(1) {
					t.Fatalf("it comes with %v", d.Headers)
				}
				must(t, d.Ack(false))
			}
			slices.Sort(got)
			expect.Equal(t, len(slices.Compact(got)), 100, "come back")
			c.Fail("later")
			brokertest.Eventually(t, "the next dead letter goes where it went", func() bool { return v.Depth(kind+".dlq") == 1 })
		}

		// Who takes the word back has what is replayed from then on parked.
		must(t, s.Client.AllowReplays(t.Context(), "mail", ""))
		config := filepath.Join(t.TempDir(), "redrive.yaml")
		text := fmt.Appendf(nil, "broker: {url: %q, management: %q}", v.URL(), v.Management)
		must(t, os.WriteFile(config, text, 0o600))
		disallow := func() (code int, says string) {
			var out strings.Builder
			code = cli.Run(t.Context(), []string{"unenroll", "--replays", "mail", "--yes", "--config", config},
				&out, &out, cli.Build{})
			return code, out.String()
		}
		if code, says := disallow(); code != 0 || !strings.Contains(says, "nothing is replayed to queue") {
			t.Errorf("unenroll ends with %d and says\n%s", code, says)
		}
		if code, says := disallow(); code == 0 || !strings.Contains(says, "nothing to undo") {
			t.Errorf("a second one ends with %d and says\n%s", code, says)
		}
		expect.Equal(t, s.Replay(t, "queue:mail"), 1, "is replayed")
		brokertest.Eventually(t, "it is parked again", func() bool {
			detail, err = s.Client.Message(t.Context(), s.only(t, "queue:mail"))
			return err == nil && strings.Contains(detail.ParkedFor, "redrive allow-replays")
		})

		// The framework's headers are shown as long as it is kept, and its consumer gets it without them.
		detail, err = s.Client.Message(t.Context(), s.only(t, "queue:mail"))
		must(t, err)
		expect.Equal(t, frameworks(detail.Headers), "MT-Fault-Message MT-Reason MT-Redelivery-Count", "are shown")
		must(t, s.Client.AllowReplays(t.Context(), "mail", ""))
		expect.Equal(t, s.Replay(t, "queue:mail"), 1, "is replayed")
		c := v.ConsumeMany("mail")
		d := c.Next()
		for name := range d.Headers {
			if strings.HasPrefix(name, "MT-") {
				t.Errorf("it comes with %s", name)
			}
		}
		expect.Equal(t, d.Headers["tenant"], any("x"), "is still there")
		expect.Equal(t, string(d.Body), `{"headers":{"MT-Redelivery-Count":0}}`, "comes")
		must(t, d.Ack(false))

		// EasyNetQ's consumer gets the message without its envelope, and no other queue gets it.
		op := s.adopt(t, operations.PlanRequest{From: "EasyNetQ_Default_Error_Queue"})
		expect.Equal(t, op.Done, 1, "is adopted of EasyNetQ's")
		detail, err = s.Client.Message(t.Context(), s.only(t, "queue:mail"))
		must(t, err)
		shown := strings.Join(strings.Fields(detail.Body.Text), "")
		expect.Equal(t, detail.Type+" "+shown, `Shop.Mail, Shop {"id":7}`, "is shown")
		expect.Equal(t, s.Replay(t, "queue:mail"), 1, "is replayed")
		d = c.Next()
		h := d.Headers
		got := fmt.Sprint(d.Type, " ", string(d.Body), " ", h["tenant"], h["CC"], d.UserId, d.Expiration)
		expect.Equal(t, got, `Shop.Mail, Shop {"id":7} x<nil>`, "comes")
		must(t, d.Ack(false))
		expect.Equal(t, v.Depth("mail_error"), 0, "are copied")
	})
}

// only returns the id of the only message that a query finds.
func (s *service) only(t *testing.T, query string) string {
	t.Helper()
	page, err := s.Client.Messages(t.Context(), query, "", 10)
	must(t, err)
	if len(page.Messages) != 1 {
		t.Fatalf("%s finds %+v", query, page.Messages)
	}
	return page.Messages[0].ID
}

// frameworks are the names of MassTransit's headers.
func frameworks(headers []inspect.Header) string {
	var names []string
	for _, h := range headers {
		if strings.HasPrefix(h.Name, "MT-") {
			names = append(names, h.Name)
		}
	}
	return strings.Join(names, " ")
}

// What is adopted by mistake would park production traffic.
func TestWhatIsNotAdopted(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		deadLettered(v, "enrolled", "quorum")
		v.Queue("work", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("log", amqp.Table{"x-queue-type": "stream"})
		for _, queue := range []string{"work", "enrolled", "log"} {
			v.Publish("", queue, amqp.Publishing{DeliveryMode: 2, Body: []byte(queue)})
		}
		v.ConsumeMany("work")
		s := adopting(t, v, v.Management)
		brokertest.Eventually(t, "RabbitMQ counts them", func() bool {
			work, _ := v.State("work")
			log, _ := v.State("log")
			return work.Consumers == 1 && log.Ready == 1
		})
		for _, c := range []struct {
			from, queue, says string
			err               error
		}{
			{from: "redrive.intake", err: inspect.ErrInvalid, says: "one of Redrive's own queues"},
			{from: "gone", err: inspect.ErrNotFound, says: "does not exist"},
			{from: "work", says: "has consumers (1)"},
			{from: "enrolled", says: "is enrolled"},
			{from: "log", says: "is a stream"},
		} {
			p, err := s.Client.Plan(t.Context(), operations.PlanRequest{Verb: actions.Adopt, From: c.from})
			if c.err == nil && err == nil {
				_, err = s.Client.Start(t.Context(), p.ID, operations.Start{})
			}
			var problem *httpapi.Problem
			if err == nil || !errors.As(err, &problem) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("from %s: %v", c.from, err)
			}
		}
		op := s.adopt(t, operations.PlanRequest{From: "enrolled", EvenWithConsumers: true, WorkQueues: []string{"work"}})
		expect.Equal(t, fmt.Sprint(op.State, op.Done), "finished1", "came of one that a person is sure of")
		expect.Equal(t, s.WaitParked(t, 1)[0].Queue, "work", "is where it failed")
	})
}

// A paused adoption takes nothing, and one that is cancelled leaves the rest as it was, in order. Without
// the management API too, the queue that old.dlq is named after is where its messages failed.
func TestAnAdoptionIsPausedAndCancelled(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("old", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("old.dlq", amqp.Table{"x-queue-type": "quorum"})
		const n = 300
		for i := range n {
			v.Publish("", "old.dlq", amqp.Publishing{DeliveryMode: 2, Body: []byte(fmt.Sprint(i))})
		}
		s := adopting(t, v, "")
		ctx := context.Background()
		p, err := s.Client.Plan(ctx, operations.PlanRequest{Verb: actions.Adopt, From: "old.dlq"})
		must(t, err)
		op, err := s.Client.Start(ctx, p.ID, operations.Start{Rate: 50})
		must(t, err)
		brokertest.Eventually(t, "it has begun", func() bool { op, err = s.Client.Operation(ctx, op.ID); return err == nil && op.Done > 0 })
		op, err = s.Client.Order(ctx, op.ID, operations.Pause)
		must(t, err)
		<-time.After(300 * time.Millisecond) // one that went on would take some
		expect.Equal(t, v.Depth("old.dlq"), n-int(op.Done), "are left while it is paused")
		_, err = s.Client.Order(ctx, op.ID, operations.Resume)
		must(t, err)
		done := op.Done
		brokertest.Eventually(t, "it goes on", func() bool { op, err = s.Client.Operation(ctx, op.ID); return err == nil && op.Done > done })
		op, err = s.Client.Order(ctx, op.ID, operations.Cancel)
		must(t, err)
		c := v.ConsumeMany("old.dlq")
		for i := op.Done; i < n; i++ {
			expect.Equal(t, string(c.Next().Body), fmt.Sprint(i), "comes next of what is left")
		}
		expect.Equal(t, s.WaitParked(t, int(op.Done))[0].Queue, "old", "is where they failed")
	})
}
