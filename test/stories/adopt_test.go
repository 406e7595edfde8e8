package stories_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
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
	"github.com/redrive-mq/redrive/internal/server/servertest"
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
	return s.end(t, s.begin(t, r, operations.Start{}).ID)
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
				v.Queue(work, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "",
					"x-dead-letter-routing-key": dlq})
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
			out, code := s.redrive(t, args...)
			expect.Equal(t, code, 0, "redrive %v says %s, and exits with", args, out)
			return out
		}
		expect.Contains(t, redrive("adopt"), "redrive adopt lists", "classic.dlq", "classic.mail, classic.orders")
		expect.Contains(t, redrive("adopt", "classic.dlq", "--limit", "30", "--dry-run"),
			"redrive adopt --dry-run says", "Adopt 30 messages from classic.dlq? Nothing is done yet.")
		expect.Equal(t, v.Depth("classic.dlq"), 200, "are left by a dry run")
		expect.Contains(t, redrive("adopt", "classic.dlq", "--sample", "150", "--yes"), "redrive adopt --sample says",
			"The first 150 messages", "work queue  classic.mail", "no stock of 7")
		brokertest.Eventually(t, "they are back", func() bool { return v.Depth("classic.dlq") == 200 })
		v.Queue("limited.dlq", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 3})
		v.Publish("", "limited.dlq", amqp.Publishing{DeliveryMode: 2})
		limited, err := s.Client.Plan(t.Context(), operations.PlanRequest{Verb: actions.Adopt, From: "limited.dlq",
			Sample: 10})
		if counts := strings.HasPrefix(v.Version, "3."); counts != (err != nil &&
			strings.Contains(err.Error(), "counts each look")) {
			t.Errorf("a sample of a queue with a delivery limit: %+v, %v", limited.Sampled, err)
		}
		v.DeleteQueue("limited.dlq")
		expect.Contains(t, redrive("adopt", "classic.dlq", "--limit", "30", "--yes", "--expect-count", "30"),
			"redrive adopt says", "30 messages are adopted, and parked")
		for _, kind := range []string{"classic", "quorum"} {
			op := s.adopt(t, operations.PlanRequest{From: kind + ".dlq", Limit: int64(v.Depth(kind+".dlq") - 50)})
			expect.Equal(t, fmt.Sprint(op.State, op.Done, " ", op.Why),
				fmt.Sprintf("finished%d 50 more messages are in the queue now", op.Count), "came of it")
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
		expect.Contains(t, detail.ParkedFor, "one is parked as", "adopted it from queue")
		expect.Equal(t, s.adopt(t, operations.PlanRequest{From: "mail_error"}).Done, 1, "is adopted of MassTransit's")
		if page, err := s.Client.Messages(t.Context(), "queue:mail", "", 10); err != nil || len(page.Messages) != 1 ||
			page.Messages[0].Error != "no stock" {
			t.Errorf("it is %+v, %v", page.Messages, err)
		}
		groups, err := s.Client.Groups(t.Context(), "state:parked", "")
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
				if got = append(got, string(d.Body)); d.Headers["x-death"] != nil || d.Headers[wire.HeaderID] == nil ||
					d.Headers["n"] != int32(1) {
					t.Fatalf("it comes with %v", d.Headers)
				}
				must(t, d.Ack(false))
			}
			slices.Sort(got)
			expect.Equal(t, len(slices.Compact(got)), 100, "come back")
			c.Fail("later")
			brokertest.Eventually(t, "the next dead letter goes where it went", func() bool {
				return v.Depth(kind+".dlq") == 1
			})
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
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
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
		op := s.adopt(t, operations.PlanRequest{From: "enrolled", EvenWithConsumers: true,
			WorkQueues: []string{"work"}})
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
		ctx := t.Context()
		op := s.begin(t, operations.PlanRequest{Verb: actions.Adopt, From: "old.dlq"}, operations.Start{Rate: 50})
		beyond := func(done int64) {
			brokertest.Eventually(t, fmt.Sprint("it goes on after ", done), func() bool {
				now, err := s.Client.Operation(ctx, op.ID)
				return err == nil && now.Done > done
			})
		}
		beyond(0)
		op, err := s.Client.Order(ctx, op.ID, operations.Pause)
		must(t, err)
		<-time.After(300 * time.Millisecond) // one that went on would take some
		expect.Equal(t, v.Depth("old.dlq"), n-int(op.Done), "are left while it is paused")
		must(t, errOf(s.Client.Order(ctx, op.ID, operations.Resume)))
		beyond(op.Done)
		op, err = s.Client.Order(ctx, op.ID, operations.Cancel)
		must(t, err)
		c := v.ConsumeMany("old.dlq")
		for i := op.Done; i < n; i++ {
			expect.Equal(t, string(c.Next().Body), fmt.Sprint(i), "comes next of what is left")
		}
		expect.Equal(t, s.WaitParked(t, int(op.Done))[0].Queue, "old", "is where they failed")
	})
}

// planUnadopt plans to put back what was adopted from a queue.
func (s *service) planUnadopt(t *testing.T, queue string) operations.Plan {
	t.Helper()
	p, err := s.Client.Plan(t.Context(), operations.PlanRequest{Verb: actions.Unadopt, To: queue})
	must(t, err)
	return p
}

// unadopt puts back what was adopted from a queue, and returns the operation at its end.
func (s *service) unadopt(t *testing.T, queue string) operations.Operation {
	t.Helper()
	return s.end(t, s.begin(t, operations.PlanRequest{Verb: actions.Unadopt, To: queue}, operations.Start{}).ID)
}

// came is all of a message that is the same when it is put back.
func came(d amqp.Delivery) string {
	return fmt.Sprint(string(d.Body), d.ContentType, d.ContentEncoding, d.Priority, d.CorrelationId, d.ReplyTo,
		d.MessageId, d.Timestamp.Unix(), d.Type, d.AppId)
}

// A team that changes its mind has its dead-letter queue again: what is still parked goes back, in order and as
// it came. What was replayed, discarded or edited stays so.
func TestWhatWasAdoptedIsPutBack(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("dlq", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("copies", nil)
		for _, work := range []string{"orders", "mail"} {
			v.Queue(work, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "",
				"x-dead-letter-routing-key": "dlq"})
			dead(t, v, work, "dlq", 100, amqp.Table{"n": int32(1), "at": time.Unix(1_700_000_000, 0),
				"in": amqp.Table{"a": []any{int64(1), "b"}}})
		}
		envelope, err := json.Marshal(map[string]any{"RoutingKey": "mail", "Exchange": "shop", "Queue": "mail",
			"Exception": "no stock", "Message": "{}", "DateTime": "2026-11-20T10:00:00Z",
			"BasicProperties": map[string]any{"Type": "Shop.Mail"}})
		must(t, err)
		v.Publish("", "dlq", amqp.Publishing{DeliveryMode: 2, Type: "EasyNetQ.SystemMessages.Error, EasyNetQ",
			Body: envelope, ContentType: "application/json", CorrelationId: "c", MessageId: "m", AppId: "shop",
			Timestamp: time.Unix(1_700_000_001, 0), Priority: 3,
			ReplyTo: "answers", Headers: amqp.Table{"h": "x", "CC": []any{"copies"}}, UserId: "guest"})
		// What was in the queue, as a consumer gets it.
		peek := v.ConsumeMany("dlq")
		var was []amqp.Delivery
		for range 201 {
			was = append(was, peek.Next())
		}
		must(t, peek.Channel.Close())
		brokertest.Eventually(t, "they are requeued", func() bool { return v.Depth("dlq") == 201 })

		s := adopting(t, v, v.Management)
		expect.Equal(t, s.adopt(t, operations.PlanRequest{From: "dlq"}).Done, 201, "are adopted")
		v.Queue("other.dlq", nil)
		v.Publish("", "other.dlq", amqp.Publishing{DeliveryMode: 2, Body: []byte("another queue's")})
		expect.Equal(t, s.adopt(t, operations.PlanRequest{From: "other.dlq"}).Done, 1, "is adopted of another queue")
		must(t, s.Client.AllowReplays(t.Context(), "orders", ""))
		left := map[string]bool{}
		for _, m := range s.WaitParked(t, 202) {
			read, err := s.Client.Body(t.Context(), m.ID)
			must(t, err)
			body, err := io.ReadAll(read)
			must(t, err)
			must(t, read.Close())
			left[string(body)] = true
			switch string(body) {
			case "orders 3", "orders 50":
				s.act(t, actions.Act{Verb: actions.Replay, IDs: []string{m.ID}})
			case "mail 7":
				s.act(t, actions.Act{Verb: actions.Discard, IDs: []string{m.ID}})
			case "orders 8":
				edited := []byte("orders 8, edited")
				must(t, errOf(s.Client.Edit(t.Context(), actions.EditRequest{ID: m.ID, Body: &edited})))
			default:
				delete(left, string(body))
			}
		}
		p := s.planUnadopt(t, "dlq")
		expect.Equal(t, fmt.Sprint(p.Count, p.Blocked, p.Warnings), "197 [] []", "is planned")
		op := s.unadopt(t, "dlq")
		expect.Equal(t, fmt.Sprint(op.State, op.Done, op.Failed, op.Why), "finished197 0", "came of it")
		c := v.ConsumeMany("dlq")
		for _, d := range was {
			if left[string(d.Body)] {
				continue
			}
			is := c.Next()
			if came(is) != came(d) {
				t.Fatalf("it comes back as\n%s, and came as\n%s", came(is), came(d))
			}
			expect.Equal(t, is.UserId, "", "is the user-id, which RabbitMQ refuses from the service's user")
			delete(d.Headers, "CC")
			delete(d.Headers, "x-delivery-count")
			delete(d.Headers, "x-acquired-count")
			if !reflect.DeepEqual(is.Headers, d.Headers) {
				t.Fatalf("it comes back with\n%v, and came with\n%v", is.Headers, d.Headers)
			}
		}
		must(t, c.Channel.Close())
		expect.Equal(t, v.Depth("copies"), 1, "are copied")
		expect.Equal(t, s.WaitParked(t, 1)[0].AdoptedFrom, "other.dlq", "is still parked")
		work := v.ConsumeMany("orders")
		for range 3 { // were replayed
			work.Next()
		}
		ledger, err := s.Client.Ledger(t.Context(), true)
		must(t, err)
		expect.Equal(t, fmt.Sprint(ledger.Total.Off, ledger.Total.Forwarded), "0 197", "off, and forwarded")
	})
}

// Nothing is put where it would be lost, or would come back.
func TestWhereNothingIsPutBack(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("dlq", amqp.Table{"x-queue-type": "quorum"})
		for i := range 30 {
			v.Publish("", "dlq", amqp.Publishing{DeliveryMode: 2, Body: fmt.Append(nil, i), Expiration: "3600000"})
		}
		s := adopting(t, v, v.Management)
		expect.Equal(t, s.adopt(t, operations.PlanRequest{From: "dlq"}).Done, 30, "are adopted")
		again := func(arguments amqp.Table) {
			t.Helper()
			_, err := v.Channel().QueueDelete("dlq", false, false, false)
			must(t, err)
			v.Queue("dlq", arguments)
			brokertest.Eventually(t, "the management API knows it", func() bool {
				p := s.planUnadopt(t, "dlq")
				return !strings.Contains(fmt.Sprint(p.Warnings), "not known")
			})
		}
		for says, arguments := range map[string]amqp.Table{
			"is a stream":           {"x-queue-type": "stream"},
			"dead-letters to":       {"x-dead-letter-exchange": "redrive"},
			"has room for 20: give": {"x-max-length": int32(20)},
		} {
			again(arguments)
			if p := s.planUnadopt(t, "dlq"); !strings.Contains(fmt.Sprint(p.Blocked), says) {
				t.Errorf("%v: it is blocked by %q", arguments, p.Blocked)
			}
		}
		again(amqp.Table{"x-message-ttl": int32(60_000), "x-max-length": int32(20), "x-overflow": "reject-publish"})
		warnings := fmt.Sprint(s.planUnadopt(t, "dlq").Warnings)
		for _, says := range []string{"expire after 1m0s", "no more than 20", "30 of the messages have an expiration"} {
			expect.Contains(t, warnings, "the warnings", says)
		}
		// What is full stops it.
		op := s.unadopt(t, "dlq")
		if op.State != operations.Stopped || !strings.Contains(op.Why, "is it full?") || op.Done == 0 {
			t.Errorf("it is %s: %s, after %d", op.State, op.Why, op.Done)
		}
		brokertest.Eventually(t, "none is lost", func() bool {
			return v.Depth("dlq")+len(s.Parked(t)) == 30 && v.Depth("dlq") == int(op.Done)
		})
		// A queue that is deleted meanwhile stops it too.
		left := len(s.Parked(t))
		again(nil)
		p := s.planUnadopt(t, "dlq")
		_, err := v.Channel().QueueDelete("dlq", false, false, false)
		must(t, err)
		op, err = s.Client.Start(t.Context(), p.ID, operations.Start{})
		must(t, err)
		brokertest.Eventually(t, "it stops", func() bool {
			op, err = s.Client.Operation(t.Context(), op.ID)
			return err == nil && op.State == operations.Stopped && strings.Contains(op.Why, "does not exist")
		})
		expect.Equal(t, len(s.Parked(t)), left, "are parked")
		// So does a right that is missing.
		v.Queue("dlq", nil)
		rights := management.ServiceRights(policy.Set{policy.Default()}, "*")
		rights.Write = `^(redrive\..*|dlq)$`
		v.Give(v.ServiceUser(), rights)
		op = s.unadopt(t, "dlq")
		if op.State != operations.Stopped || !strings.Contains(op.Why, "redrive permissions --adopt") {
			t.Errorf("without the right it is %s: %s", op.State, op.Why)
		}
		v.Give(v.ServiceUser(), management.ServiceRights(policy.Set{policy.Default()}, "*"))
		// Consumers get what is put back, if a person says that they are to.
		c := v.ConsumeMany("dlq")
		brokertest.Eventually(t, "it has a consumer", func() bool {
			return strings.Contains(fmt.Sprint(s.planUnadopt(t, "dlq").Blocked), "has consumers (1)")
		})
		p, err = s.Client.Plan(t.Context(),
			operations.PlanRequest{Verb: actions.Unadopt, To: "dlq", EvenWithConsumers: true})
		must(t, err)
		_, err = s.Client.Start(t.Context(), p.ID, operations.Start{})
		must(t, err)
		for range left {
			c.Next()
		}
	})
}

const followedPolicies = `policies:
  - {name: p, queues: ["*"], attempts: 3, backoff: {fixed: 300ms}, jitter: none, no_consumer: retry}
adopt:
`

// follows waits until the service follows a queue, or is in another state, and returns that.
func (s *service) follows(t *testing.T, queue, state string) (is operations.Follow) {
	t.Helper()
	brokertest.Eventually(t, fmt.Sprintf("%s is %s", queue, state), func() bool {
		all, err := s.Client.DeadLetterQueues(t.Context())
		must(t, err)
		is = operations.Follow{}
		for _, q := range all.Queues {
			if q.Queue == queue && q.Follow != nil {
				is = *q.Follow
			}
		}
		return is.State == state
	})
	return is
}

// diesTo declares a work queue whose dead letters go to a queue.
func diesTo(v *brokertest.VHost, work, kind, dlq string) {
	v.Queue(work, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dlq})
}

// A team has a work queue with a dead-letter queue of its own, and changes neither: what its consumer
// rejects comes back after its delay, with its attempts counted, and is parked in the end.
func TestAFollowedQueueIsRetried(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		for _, kind := range []string{"classic", "quorum"} {
			v.Queue(kind+".dlq", amqp.Table{"x-queue-type": kind})
			diesTo(v, kind, kind, kind+".dlq")
			v.Exchange(kind+".shop", "fanout", kind)
		}
		s := run(t, servertest.Config(t, v, followedPolicies+`  classic.dlq: {queue: classic, then: retry}
  "*.dlq": {then: retry}
`)).ready(t)
		for _, kind := range []string{"classic", "quorum"} { // by its name, and as the only one that leads there
			s.follows(t, kind+".dlq", operations.Following)
			c := v.ConsumeMany(kind)
			v.Publish(kind+".shop", "order.eu", amqp.Publishing{DeliveryMode: 2, MessageId: "7", Body: []byte("order"),
				Headers: amqp.Table{"x-exception-message": "no stock"}})
			failed, id := reject(t, c.Next()), any(nil)
			for attempt := 1; attempt <= 2; attempt++ {
				d := c.Next()
				if waited := time.Since(failed); waited < 300*time.Millisecond {
					t.Errorf("it came back after %s", waited)
				}
				h := d.Headers
				if id == nil {
					id = h[wire.HeaderID]
				}
				if h[wire.HeaderID] != id || id == nil || h[wire.HeaderAttempt] != int64(attempt) ||
					h[wire.HeaderQueue] != kind || h[wire.HeaderExchange] != kind+".shop" ||
					h[wire.HeaderRoutingKey] != "order.eu" || h["x-death"] != nil {
					t.Errorf("attempt %d comes with %v", attempt, h)
				}
				failed = reject(t, d)
			}
			var parked int
			brokertest.Eventually(t, "it is parked", func() bool {
				parked = 0
				for _, m := range s.Parked(t) {
					if m.Queue == kind {
						parked++
						if m.ID != id || m.Attempt != 3 || m.Exchange != kind+".shop" || m.Error != "no stock" {
							t.Errorf("parked as %+v", m)
						}
					}
				}
				return parked > 0
			})
			expect.Equal(t, parked, 1, "are parked of %s", kind)
			expect.Equal(t, s.Replay(t, "queue:"+kind), 1, "are replayed")
			d := c.Next()
			expect.Equal(t, d.Headers[wire.HeaderAttempt], any(int64(0)), "attempts of a replayed one")
			reject(t, d) // and is seen when it fails again
			if d := c.Next(); d.Headers[wire.HeaderID] != id || d.Headers[wire.HeaderAttempt] != int64(1) {
				t.Errorf("after the replay it comes with %v", d.Headers)
			} else {
				must(t, d.Ack(false))
			}
		}
	})
}

// Where no work queue is named, or a message says that it failed in another, nothing is retried.
func TestWhatAFollowedQueueParks(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		for dlq, works := range map[string][]string{
			"mixed.dlq": {"a", "b"}, "named.dlq": {"c", "d"}, "plain.dlq": {"e"}, "none_error": nil,
		} {
			v.Queue(dlq, amqp.Table{"x-queue-type": "quorum"})
			for _, work := range works {
				diesTo(v, work, "quorum", dlq)
			}
		}
		s := run(t, servertest.Config(t, v, followedPolicies+`  mixed.dlq: {then: retry}
  named.dlq: {queue: c, then: retry}
  plain.dlq: e
  none_error: {then: retry}
`)).ready(t)
		for _, queue := range []string{"mixed.dlq", "named.dlq", "plain.dlq", "none_error"} {
			s.follows(t, queue, operations.Following)
		}
		for _, work := range []string{"a", "b", "d", "e"} {
			c := v.ConsumeMany(work)
			v.Publish("", work, amqp.Publishing{DeliveryMode: 2, Body: []byte("same")})
			reject(t, c.Next())
		}
		for range 2 { // the same bytes: two messages
			v.Publish("", "none_error", amqp.Publishing{DeliveryMode: 2, Body: []byte("same"),
				Headers: amqp.Table{"MT-Reason": "fault", "MT-Fault-Message": "no stock"}})
		}
		all := s.WaitParked(t, 6)
		ids := map[string]bool{}
		for _, m := range all {
			ids[m.ID] = true
			detail, err := s.Client.Message(t.Context(), m.Key)
			must(t, err)
			why := map[string]string{"a": "2 queues dead-letter there", "b": "2 queues dead-letter there",
				"d": `says that it failed in "d"`, "e": "what lands there is parked",
				"": "no queue dead-letters there"}[m.Queue]
			if why == "" || !strings.Contains(detail.ParkedFor, why) {
				t.Errorf("one of %q is parked because %s", m.Queue, detail.ParkedFor)
			}
		}
		expect.Equal(t, len(ids), 6, "ids")
		// What a framework publishes to the queue that the config names a work queue for is of that one.
		c := v.ConsumeMany("c")
		v.Publish("", "named.dlq", amqp.Publishing{DeliveryMode: 2, Body: []byte("framework"),
			Headers: amqp.Table{"MT-Reason": "fault"}})
		if d := c.Ack(); string(d.Body) != "framework" || d.Headers[wire.HeaderAttempt] != int64(1) {
			t.Errorf("it comes as %+v", d)
		}
	})
}

// What cannot be followed says why, stops no other queue, and is followed once it can be.
func TestAQueueThatCannotBeFollowed(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("fine.dlq", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("log", amqp.Table{"x-queue-type": "stream"})
		v.Queue("busy", amqp.Table{"x-queue-type": "quorum"})
		deadLettered(v, "enrolled", "quorum")
		busy := v.ConsumeMany("busy")
		own := v.DialURL(v.URL())
		ch, err := own.Channel()
		must(t, err)
		must(t, errOf(ch.QueueDeclare("mine", false, false, true, false, nil)))
		c := servertest.Config(t, v, followedPolicies+`  late: {}
  log: {}
  busy: {}
  enrolled: {}
  mine: {}
  secret: {}
  "*.dlq": {}
`)
		var readable []string
		for _, name := range c.FollowedQueues() {
			if name != "secret" {
				readable = append(readable, name)
			}
		}
		c.Broker.URL = v.ServiceURL(c.Policies, readable...)
		v.Queue("secret", amqp.Table{"x-queue-type": "quorum"})
		s := run(t, c)
		for queue, state := range map[string]string{"late": "missing", "log": "stream", "busy": "consumers",
			"enrolled": "enrolled", "mine": "exclusive", "secret": "forbidden", "fine.dlq": operations.Following} {
			if is := s.follows(t, queue, state); (is.Why == "") != (state == operations.Following) {
				t.Errorf("%s is %+v", queue, is)
			}
		}
		if _, text := s.get(t, "/readyz"); !strings.Contains(text, "followed queue late: ") ||
			strings.Contains(text, "followed queue fine.dlq") {
			t.Errorf("/readyz says %s", text)
		}
		_, page := s.get(t, "/")
		out, _ := s.redrive(t, "adopt")
		for onPage, inTable := range map[string]string{"late": "late", "Not followed: missing": "missing, park",
			"fine.dlq": "fine.dlq", "Followed: what comes is parked": "following, park"} {
			if !strings.Contains(page, onPage) || !strings.Contains(out, inTable) {
				t.Errorf("%s is not on the page, or redrive adopt says\n%s", onPage, out)
			}
		}
		v.Publish("", "fine.dlq", amqp.Publishing{DeliveryMode: 2, Body: []byte("fine")})
		s.WaitParked(t, 1)

		v.Queue("late", amqp.Table{"x-queue-type": "classic"})
		v.Publish("", "late", amqp.Publishing{DeliveryMode: 2, Body: []byte("late")})
		must(t, busy.Channel.Close())
		must(t, ch.Close())
		must(t, own.Close())
		brokertest.Eventually(t, "the exclusive queue is gone", func() bool {
			_, err := v.Channel().QueueDeclare("mine", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			return err == nil
		})
		v.Queue("later.dlq", amqp.Table{"x-queue-type": "quorum"})
		v.ServiceURL(c.Policies, c.FollowedQueues()...)
		for _, queue := range []string{"late", "busy", "mine", "secret", "later.dlq"} {
			s.follows(t, queue, operations.Following)
		}
		s.WaitParked(t, 2)
		// It is deleted while it is followed, and comes again.
		must(t, errOf(v.Channel().QueueDelete("late", false, false, false)))
		s.follows(t, "late", "missing")
		v.Queue("late", amqp.Table{"x-queue-type": "classic"})
		v.Publish("", "late", amqp.Publishing{DeliveryMode: 2, Body: []byte("again")})
		s.WaitParked(t, 3)
	})
}

// A person has a queue followed, over a restart, and stops it. What the config follows, it alone decides.
func TestAPersonHasAQueueFollowed(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		for _, queue := range []string{"mail_error", "orders_error"} {
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum"})
		}
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		c := servertest.Config(t, v, followedPolicies+"  mail_error: {}\n")
		c.Broker.URL = v.ServiceURL(c.Policies, "mail_error", "orders_error")
		s := run(t, c)
		s.follows(t, "mail_error", operations.Following)
		if out, code := s.redrive(t, "adopt", "mail_error", "--unfollow"); code == 0 ||
			!strings.Contains(out, "the config follows") {
			t.Errorf("unfollowing what the config follows: %d %s", code, out)
		}
		if out, code := s.redrive(t, "adopt", "orders_error", "--unfollow"); code == 0 ||
			!strings.Contains(out, "is not followed") {
			t.Errorf("unfollowing what is not followed: %d %s", code, out)
		}
		out, code := s.redrive(t, "adopt", "orders_error", "--queue", "orders", "--follow", "--then", "retry", "--yes")
		expect.Equal(t, code, 0, "is the exit code: %s", out)
		if is := s.follows(t, "orders_error", operations.Following); is.By == "" || is.Queue != "orders" {
			t.Errorf("it is followed as %+v", is)
		}
		if _, page := s.get(t, "/"); strings.Count(page, `name="stop"`) != 1 {
			t.Error("the page offers to stop what the config follows, or does not what a person has followed")
		}
		must(t, s.Stop())
		s = run(t, c)
		s.follows(t, "orders_error", operations.Following)
		work := v.ConsumeMany("orders")
		v.Publish("", "orders_error", amqp.Publishing{DeliveryMode: 2, Body: []byte("failed")})
		work.Take("failed")
		out, code = s.redrive(t, "adopt", "orders_error", "--unfollow")
		expect.Equal(t, code, 0, "is the exit code: %s", out)
		brokertest.Eventually(t, "it is no longer consumed", func() bool {
			all, err := s.Client.DeadLetterQueues(t.Context())
			must(t, err)
			at, _ := v.State("orders_error")
			return at.Consumers == 0 && !slices.ContainsFunc(all.Queues, func(q operations.DeadLetterQueue) bool {
				return q.Queue == "orders_error" && q.Follow != nil
			})
		})
		v.Publish("", "orders_error", amqp.Publishing{DeliveryMode: 2, Body: []byte("stays")})
		v.Publish("", "mail_error", amqp.Publishing{DeliveryMode: 2, Body: []byte("mail")})
		s.WaitParked(t, 1)
		expect.Equal(t, v.Depth("orders_error"), 1, "stays in the queue")
	})
}

// Two services follow one queue: the second knows the consumer of the first, RabbitMQ shares the messages
// out, and each is parked once.
func TestTwoServicesFollowOneQueue(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("shared_error", amqp.Table{"x-queue-type": "quorum"})
		var all []*service
		for range 2 {
			s := run(t, servertest.Config(t, v, "adopt: {shared_error: shared}"))
			s.follows(t, "shared_error", operations.Following)
			all = append(all, s)
		}
		const n = 200
		for i := range n {
			v.Publish("", "shared_error", amqp.Publishing{DeliveryMode: 2, Body: fmt.Append(nil, i)})
		}
		brokertest.Eventually(t, "all are parked, each once", func() bool {
			return len(all[0].Parked(t))+len(all[1].Parked(t)) == n
		})
		ids := map[string]bool{}
		for _, s := range all {
			parked := s.Parked(t)
			for _, m := range parked {
				ids[m.ID] = true
			}
			if len(parked) == 0 {
				t.Error("one gets no message")
			}
		}
		expect.Equal(t, len(ids), n, "are parked by both")
	})
}
