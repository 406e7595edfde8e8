package stories_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
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
func bodies(c *brokertest.Consumer, n int) (all []string) {
	for range n {
		all = append(all, string(c.Ack().Body))
	}
	slices.Sort(all)
	return all
}

// A paused queue retries nothing while another does, over a restart too; when it is
// released, all come back, with the attempts they had.
func TestAPausedQueueRetriesNothingUntilItIsResumed(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ctx, data := context.Background(), t.TempDir()
		deadLettered(v, "orders", "quorum")
		deadLettered(v, "mail", "quorum")
		s := managed(t, v, threeAttempts, data)
		must(t, s.Client.PauseQueue(ctx, "orders", "the database is down"))
		orders, mail := v.ConsumeMany("orders"), v.ConsumeMany("mail")
		var want []string
		for i := range 20 {
			body := fmt.Sprint(i)
			want = append(want, body)
			orders.Fail(body)
			mail.Fail(body)
		}
		slices.Sort(want)
		if got := bodies(mail, 20); !slices.Equal(got, want) {
			t.Errorf("the other queue got back %v", got)
		}
		brokertest.Eventually(t, "20 wait", func() bool { return s.kept(t, "orders").Waiting == 20 })
		orders.Nothing()
		held, err := s.Client.Message(ctx, s.only(t, "queue:orders text:19"))
		if err != nil || len(held.HeldBy) == 0 || !strings.HasSuffix(held.HeldBy[0].Why, ": the database is down") {
			t.Errorf("held back by %+v, %v", held.HeldBy, err)
		}
		must(t, s.Stop())
		s = managed(t, v, threeAttempts, data)
		is, err := s.Client.Overview(ctx)
		must(t, err)
		var failed int64
		for _, minute := range is.Hour {
			failed += minute.Failed
		}
		expect.Equal(t, failed, 40, "failed in the last hour, after a restart")
		if !slices.Contains(is.Parts, inspect.Part{Name: "Ledger", Text: "adds up", Well: true}) {
			t.Errorf("the parts are %+v", is.Parts)
		}
		mail.Fail("after a restart")
		mail.Take("after a restart")
		orders.Nothing()
		if q := s.kept(t, "orders"); q.Waiting != 20 || q.Pause == nil || q.Pause.Reason != "the database is down" {
			t.Errorf("after a restart: %+v", q)
		}
		brokertest.Eventually(t, "they are late", func() bool {
			m, err := s.Client.Message(ctx, held.ID)
			must(t, err)
			return time.Since(*m.Due) > time.Second
		})
		must(t, s.Client.ResumeQueue(ctx, "orders", ""))
		var got []string
		for range 20 {
			d := orders.Next()
			expect.Equal(t, d.Headers[wire.HeaderAttempt], any(int64(1)), "came back with attempt")
			got = append(got, string(d.Body))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("released: %v", got)
		}
		brokertest.Eventually(t, "one that was retried late says why", func() bool {
			m, err := s.Client.Message(ctx, held.ID)
			must(t, err)
			by := m.Timeline[0].LateBy
			return len(by) == 1 && strings.HasSuffix(by[0].Why, ": the database is down")
		})
	})
}

const oneAttempt = `policies: [{name: p, queues: ["*"], attempts: 1}]`

// A person sends parked messages back: the first few, then the rest, to a queue
// whose consumer works again; edits one, and copies another elsewhere.
func TestAPersonReplaysParkedMessages(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ctx := context.Background()
		deadLettered(v, "orders", "quorum")
		v.Queue("elsewhere", nil)
		s := managed(t, v, oneAttempt, t.TempDir())
		orders := v.ConsumeMany("orders")
		var want []string
		for i := range 30 {
			want = append(want, fmt.Sprintf(`{"n":%d}`, i))
			v.Publish("", "orders", amqp.Publishing{Body: []byte(want[i]), ContentType: "application/json"})
			reject(t, orders.Next())
		}
		parked := s.WaitParked(t, 30)

		copy := actions.Act{Verb: actions.Copy, IDs: []string{parked[0].ID}, To: "elsewhere"}
		copied := s.act(t, copy)
		expect.Equal(t, v.ConsumeMany("elsewhere").Next().Headers[wire.HeaderID], any(copied.New),
			"the copy has the id")
		copy.To = "nowhere"
		if _, err := s.Client.Act(ctx, copy); err == nil {
			t.Error("a copy to a queue that does not exist was taken")
		}

		document := `{"n":1000}`
		edited, err := s.Client.Edit(ctx, actions.EditRequest{ID: parked[0].ID, Document: &document})
		must(t, err)
		d := orders.Next()
		if d.Headers[wire.HeaderID] != edited.New || d.Headers[wire.HeaderAttempt] != int64(0) ||
			d.ContentType != "application/json" {
			t.Errorf("edited, it came with %v", d.Headers)
		}
		reject(t, d)
		s.WaitParked(t, 30)
		again, err := s.Client.Message(ctx, edited.New)
		must(t, err)
		expect.Equal(t, again.MadeFrom, parked[0].ID, "having failed again, the edited one is made from")
		must(t, errOf(s.Client.Act(ctx, actions.Act{Verb: actions.Discard, IDs: []string{edited.New}})))

		p, err := s.Client.Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders state:parked"})
		if err != nil || p.Count != 29 || len(p.Blocked) > 0 || len(p.Queues) != 1 || !p.Queues[0].Exists {
			t.Fatalf("%+v, %v", p, err)
		}
		must(t, errOf(s.Client.Start(ctx, p.ID,
			operations.Start{CanarySize: 4, CanaryWait: "300ms", ExpectCount: &p.Count})))
		got := bodies(orders, 29)
		if o := s.end(t, p.ID); o.State != operations.Finished || o.Done != 29 || len(got) != 29 ||
			len(slices.Compact(got)) != 29 {
			t.Errorf("%s (%s) with %d done; came back: %v", o.State, o.Why, o.Done, got)
		}
	})
}

// A message too old for another attempt is parked. A person replays it as often as its policy allows, and then it
// stays parked: each attempt says how often it was replayed, and its age does not count any more.
func TestAReplayIsNoSecondIncident(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ctx := t.Context()
		deadLettered(v, "orders", "quorum")
		s := managed(t, v, `policies: [{name: p, queues: ["*"], attempts: 9, backoff: [20ms, 2h], jitter: none,
  no_consumer: retry, max_age: 1h, max_replays: 2}]`, t.TempDir())
		c := v.ConsumeMany("orders")
		forged := amqp.Table{wire.HeaderReplays: int64(7)}
		v.Publish("", "orders", amqp.Publishing{Body: []byte("1"), Headers: forged})
		reject(t, c.Next())
		d := c.Next()
		if d.Headers[wire.HeaderReplays] != nil {
			t.Errorf("before any replay it came with %v", d.Headers)
		}
		reject(t, d)
		old := s.WaitParked(t, 1)[0]
		const tooOld = `later than 1h after its first failure (max_age of policy "p")`
		if old.Attempt != 2 || old.Replays != 0 || !strings.Contains(old.ParkedFor, tooOld) {
			t.Errorf("parked as %+v", old)
		}
		next := func(attempt, replays int) amqp.Delivery {
			t.Helper()
			d := c.Next()
			if d.Headers[wire.HeaderAttempt] != int64(attempt) || d.Headers[wire.HeaderReplays] != int64(replays) {
				t.Errorf("it came with %v, want attempt %d and %d replays", d.Headers, attempt, replays)
			}
			return d
		}
		park := func(d amqp.Delivery) {
			t.Helper()
			d.Headers[wire.HeaderPark] = "no such customer"
			v.Publish(wire.ExchangeFailures, "orders", amqp.Publishing{Body: d.Body, Headers: d.Headers})
			must(t, d.Ack(false))
		}
		expect.Equal(t, s.Replay(t, "replays:0"), 1, "are replayed")
		reject(t, next(0, 1))
		reject(t, next(1, 1))
		brokertest.Eventually(t, "it waits for 2h, and the claim of its retry has ended", func() bool {
			page, err := s.Client.Messages(ctx, "id:"+old.ID, "", 9)
			return err == nil && len(page.Messages) == 1 && page.Messages[0].Attempt == 2
		})
		s.act(t, actions.Act{Verb: actions.Replay, IDs: []string{old.ID}})
		park(next(2, 1))
		s.WaitParked(t, 1)
		expect.Equal(t, s.Replay(t, "replays:1"), 1, "are replayed")
		park(next(0, 2))
		if p := s.WaitParked(t, 1)[0]; p.ID != old.ID || p.Replays != 2 {
			t.Errorf("parked as %+v", p)
		}
		const why = `policy "p" allows 2 replays of a message, and it had them: raise max_replays, or edit the message`
		refused, err := s.Client.Act(ctx, actions.Act{Verb: actions.Replay, IDs: []string{old.ID}})
		if err != nil || refused.Done != 0 || refused.Outcomes[0].Why != why {
			t.Errorf("a third replay: %+v, %v", refused, err)
		}
		p, err := s.Client.Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders"})
		if err != nil || p.Count != 0 || len(p.Skipped) != 1 || p.Skipped[0].Why != why {
			t.Errorf("a plan: %+v, %v", p, err)
		}
		c.Nothing()
	})
}

// What is adopted from a queue that dead-letters elsewhere would fail there again unseen: the plan of a replay says so.
func TestAPlanSaysWhereANewFailureIsNotSeen(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("mail.dlq", nil)
		v.Queue("mail", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mail.dlq"})
		s := adopting(t, v, v.Management)
		c := v.ConsumeMany("mail")
		c.Fail("1")
		brokertest.Eventually(t, "it is dead-lettered", func() bool { return v.Depth("mail.dlq") == 1 })
		if op := s.adopt(t, operations.PlanRequest{From: "mail.dlq"}); op.Done != 1 {
			t.Fatalf("adopted: %+v", op)
		}
		const why = `a new failure in the queue "mail" will not be seen here: it dead-letters to the queue "mail.dlq"`
		unseen := func() bool {
			p, err := s.Client.Plan(t.Context(), operations.PlanRequest{Verb: actions.Replay, Query: "queue:mail"})
			must(t, err)
			expect.Equal(t, p.Count, 1, "messages in the plan")
			return slices.ContainsFunc(p.Warnings, func(w string) bool { return strings.HasPrefix(w, why) })
		}
		if !unseen() {
			t.Error("the plan does not warn")
		}
		v.Must("DELETE", "queues/"+v.Name+"/mail", nil)
		v.Queue("mail", amqp.Table{"x-dead-letter-exchange": wire.ExchangeDeadLetters})
		if unseen() {
			t.Error("the plan warns of a queue that is enrolled")
		}
	})
}

// culprit has headers that RabbitMQ 3.10 itself cannot deliver.
var culprit = amqp.Table{"x-death": []any{amqp.Table{"queue": "work", "reason": "rejected", "exchange": "",
	"count":        1.5,
	"routing-keys": []any{"work"}, "time": time.Unix(1_700_000_000, 0)}}}

// A message whose dead letter RabbitMQ 3.10 itself cannot deliver (it ends each
// connection that consumes it) is out of the way of all others within seconds,
// and a person is notified. RabbitMQ 4 can deliver it, and it comes back.
func TestWhatRabbitMQCannotDeliverIsQuarantined(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, soon).ready(t)
		deadLettered(v, "work", "quorum")
		work := v.ConsumeMany("work")
		n := 0
		ids := map[string]any{}
		round := func(many, culprits int) {
			t.Helper()
			due := map[string]bool{} // to come back
			for i := range many {
				n++
				p := amqp.Publishing{Body: fmt.Append(nil, "message ", n)}
				if i%(many/culprits) == many/culprits/2 {
					p.Headers, p.Body = culprit, fmt.Append(nil, "culprit ", n)
				}
				v.Publish("", "work", p)
				if v.Since4() || p.Headers == nil {
					due[string(p.Body)] = true
				}
			}
			for len(due) > 0 {
				d := work.Next()
				if d.Headers[wire.HeaderAttempt] == nil {
					reject(t, d)
					continue
				}
				body, id := string(d.Body), d.Headers[wire.HeaderID]
				// RabbitMQ's crash is one: what was taken and not acknowledged comes twice.
				if ids[body] == nil && !due[body] || ids[body] != nil && ids[body] != id ||
					d.Headers[wire.HeaderAttempt] != int64(1) {
					t.Errorf("%q came back with attempt %v and id %v, before with %v", body,
						d.Headers[wire.HeaderAttempt], id, ids[body])
				}
				ids[body] = id
				delete(due, body)
				must(t, d.Ack(false))
			}
		}
		quarantined := func(want int) {
			t.Helper()
			if v.Since4() {
				want = 0
			}
			brokertest.Eventually(t, fmt.Sprint(want, " are in quarantine, and the service says so"), func() bool {
				notices := strings.Join(s.Notices(), "\n")
				return v.Depth(wire.QueueQuarantine) == want && (want == 0 && notices == "" ||
					strings.Contains(notices, fmt.Sprint("cannot be parked: ", want)))
			})
			s.ready(t)
		}
		round(200, 1)
		quarantined(1)
		v.CloseConnections(v.ServiceUser())
		round(60, 3)
		quarantined(4)
		must(t, s.Stop())
		s = startAt(t, v, soon, s.Data).ready(t)
		quarantined(4)
		round(20, 1)
		quarantined(5)
		v.Must("DELETE", "queues/"+v.Name+"/"+wire.QueueQuarantine+"/contents", nil)
		quarantined(0)
	})
}

// What was quarantined is parked, with the reason. Where RabbitMQ 3.10 can deliver a message nowhere,
// that ends one connection only, and the service names the command that removes it.
func TestTheQuarantineIsParked(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configured(t, v, soon, t.TempDir())
		c.Broker.Management = v.Management // which says that the queue consents
		deadLettered(v, "work", "quorum")
		must(t, run(t, c).ready(t).Stop()) // it has declared what it needs
		work := v.ConsumeMany("work")
		bodies := []string{"one", "culprit", "two"}
		for _, body := range bodies {
			p := amqp.Publishing{Body: []byte(body), MessageId: "id of " + body}
			if body == "culprit" {
				p.Headers = culprit
			}
			v.Publish("", "work", p)
			reject(t, work.Next())
		}
		quarantineAll(t, v, len(bodies))
		s := run(t, c).ready(t)
		if !v.Since4() {
			remove := broker.RemoveQuarantined(v.Name)
			brokertest.Eventually(t, "one is parked, and the service says how the next is removed", func() bool {
				says := strings.Join(s.Notices(), "\n")
				return strings.Contains(says, "cannot be parked: 2, ") && strings.Contains(says, remove) &&
					s.metric(t, "redrive_quarantine") == "2"
			})
			s.WaitParked(t, 1)
			v.Publish(wire.ExchangeParked, "", amqp.Publishing{Body: []byte("parked"),
				Headers: amqp.Table{wire.HeaderQueue: "work"}})
			s.WaitParked(t, 2)
			s.ready(t)
			must(t, s.Stop()) // as that command is to remove the first, which is perhaps being delivered
			brokertest.Eventually(t, "both are ready", func() bool { return v.Depth(wire.QueueQuarantine) == 2 })
			v.Must("POST", "queues/"+v.Name+"/"+wire.QueueQuarantine+"/get", map[string]any{"count": 1,
				"ackmode": "ack_requeue_false", "encoding": "auto"})
			s = run(t, c).ready(t)
		}
		s.WaitParked(t, 3)
		brokertest.Eventually(t, "nothing is in quarantine", func() bool {
			return s.metric(t, "redrive_quarantine") == "0" && len(s.Notices()) == 0 &&
				v.Depth(wire.QueueQuarantine) == 0
		})
		for _, m := range s.Parked(t) {
			if m.Exchange == "" && m.RoutingKey == "" { // the one that was parked in RabbitMQ
				continue
			}
			if m.Queue != "work" || m.Reason != wire.ReasonRejected || m.RoutingKey != "work" || m.Attempt != 1 ||
				!strings.Contains(m.ParkedFor, wire.QueueQuarantine) {
				t.Errorf("parked is %+v", m)
			}
		}
		s.Replay(t, "")
		for range 3 {
			if d := work.Next(); d.Headers["x-death"] != nil || d.RoutingKey != "work" && d.MessageId != "" {
				t.Errorf("%q came back as %+v", d.Body, d)
			}
		}
	})
}

// quarantineAll uses up the delivery limit of all that is in the intake, while no service
// consumes it, as a small one of a policy's.
func quarantineAll(t *testing.T, v *brokertest.VHost, n int) {
	t.Helper()
	v.Policy("small", `^redrive\.intake$`, 0, map[string]any{"delivery-limit": 2})
	brokertest.Eventually(t, "all are in quarantine", func() bool {
		ch, err := v.Dial().Channel()
		if err != nil {
			return false
		}
		if d, ok, err := ch.Get(wire.QueueIntake, false); ok && err == nil {
			_ = d.Reject(true)
		}
		_ = ch.Close()
		return v.Depth(wire.QueueQuarantine) == n
	})
	v.Must("DELETE", "policies/"+v.Name+"/small", nil)
}

// What is parked in RabbitMQ is shown with what its trail says, and can be replayed like
// all else.
func TestTheParkingLotInRabbitMQIsCollected(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		c := configured(t, v, `policies: [{name: exact, queues: [orders]}, {name: rest, queues: ["*"], no_consumer: retry}]`, t.TempDir())
		c.Broker.Management = v.Management // which says that the queue other does not dead-letter to Redrive
		s := run(t, c).ready(t)
		v.Queue("orders", nil)
		v.Queue("other", nil)
		firstFailed := time.Unix(1_700_000_000, 0)
		parked := func(queue string) amqp.Publishing {
			return amqp.Publishing{Body: []byte("body of " + queue), ContentType: "text/plain",
				Headers: amqp.Table{"mine": int32(7),
					wire.HeaderID: uuid.NewString(), wire.HeaderAttempt: int64(5), wire.HeaderQueue: queue,
					wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "order.eu",
					wire.HeaderFirstFailed: firstFailed, wire.HeaderReason: wire.ReasonReported,
					wire.HeaderError: "no stock", wire.HeaderParkReason: "it failed 5 times"}}
		}
		sent := parked("orders")
		v.Publish(wire.ExchangeParked, "orders", sent)
		got, size := s.WaitParked(t, 1)[0], len(sent.Body)
		want := inspect.Message{ID: sent.Headers[wire.HeaderID].(string), Key: got.Key, Group: got.Group,
			ContentType: "text/plain", Queue: "orders", State: "parked", Attempt: 5, ParkedAt: got.ParkedAt,
			ParkedFor: "it failed 5 times",
			Reason:    "reported", Error: "no stock", FirstFailed: got.FirstFailed, Failed: got.Failed,
			Exchange:   "shop",
			RoutingKey: "order.eu", Size: &size}
		if d := cmp.Diff(want, got); d != "" || !got.FirstFailed.Equal(firstFailed) {
			t.Errorf("parked (-want +got):\n%s", d)
		}
		expect.Equal(t, v.Depth(wire.QueueParked), 0, "are in RabbitMQ still")
		// A policy names its queue exactly, so it may be retried there.
		expect.Equal(t, s.Replay(t, "queue:orders"), 1, "were replayed")
		if d := v.ConsumeMany("orders").Next(); string(d.Body) != "body of orders" || d.RoutingKey != "order.eu" ||
			d.Headers["mine"] != int32(7) || d.Headers[wire.HeaderParkReason] != nil {
			t.Errorf("%q came back with %q, headers %v", d.Body, d.RoutingKey, d.Headers)
		}
		// What a header says enrols no queue, and no one vouches for a user.
		hostile := parked("other")
		hostile.Headers[wire.HeaderUserID] = "admin"
		v.Publish(wire.ExchangeParked, "", hostile)
		if p := s.WaitParked(t, 1)[0]; p.Queue != "other" || len(p.Notes) != 1 ||
			!strings.Contains(p.Notes[0], "that is not proven") {
			t.Errorf("parked as %+v", p)
		}
		expect.Equal(t, s.Replay(t, "queue:other"), 1, "were replayed")
		parkedFor := func(why string) func() bool {
			return func() bool {
				return slices.ContainsFunc(s.Parked(t), func(m inspect.Message) bool {
					return strings.Contains(m.ParkedFor, why)
				})
			}
		}
		brokertest.Eventually(t, "it is parked again", parkedFor("not enrolled"))
		// One without a trail, and ones with an odd one, are kept too.
		v.Publish(wire.ExchangeParked, "", amqp.Publishing{Body: []byte("x")})
		odd := amqp.Table{"list": []any{amqp.Table{}}}
		for _, h := range []string{wire.HeaderID, wire.HeaderAttempt, wire.HeaderQueue, wire.HeaderExchange,
			wire.HeaderRoutingKey, wire.HeaderFirstFailed,
			wire.HeaderReason, wire.HeaderError, wire.HeaderParkReason, wire.HeaderUserID} {
			odd[h] = []any{h}
		}
		v.Publish(wire.ExchangeParked, "", amqp.Publishing{Headers: odd})
		v.Publish(wire.ExchangeParked, "", amqp.Publishing{Headers: amqp.Table{wire.HeaderQueue: "redrive.intake",
			wire.HeaderReason: strings.Repeat("x", 70_000), wire.HeaderParkReason: strings.Repeat("y", 50_000)}})
		s.WaitParked(t, 4)
		expect.Equal(t, s.Replay(t, "queue:redrive.intake"), 1, "were replayed")
		brokertest.Eventually(t, "our own queue is no work queue",
			parkedFor(`no policy allows the queue "redrive.intake"`))
		expect.Equal(t, v.Depth(wire.QueueParked)+v.Depth(wire.QueueIntake)+v.Depth("other"), 0,
			"messages are where they should not be")
	})
}

// A message whose queue is deleted while it waits in RabbitMQ is parked; and a
// queue that is declared again is bound again at its next dead letter.
func TestAQueueThatIsGoneLosesNothingThatWaitsInRabbitMQ(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: ["*"], attempts: 9, backoff: {fixed: 500ms}, wait: {levels: [500ms]}, no_queue: 100ms}]`).ready(t)
		ch := v.Channel()
		deadLettered(v, "orders", "classic")
		fail := func(body string) {
			v.Publish("", "orders", amqp.Publishing{Body: []byte(body)})
			d, ok, err := ch.Get("orders", false)
			if err != nil || !ok {
				t.Fatalf("no message in orders: %v", err)
			}
			reject(t, d)
			if e := s.wait(t, retry.Waiting); e.Way != "levels" {
				t.Fatalf("%s waits as %+v", body, e)
			}
		}
		fail("one")
		must(t, errOf(ch.QueueDelete("orders", false, false, false)))
		p := s.WaitParked(t, 1)[0]
		if p.Queue != "orders" || p.Attempt != 1 ||
			!strings.Contains(p.ParkedFor, `the queue "orders" does not exist any more`) {
			t.Errorf("parked as %+v", p)
		}
		if e := s.wait(t, retry.Waiting); e.Way != retry.InStore { // it was due, and its queue looked for
			t.Errorf("it waits as %+v", e)
		}
		deadLettered(v, "orders", "classic")
		fail("two") // and the queue is bound again
		v.ConsumeMany("orders").Take("two")
		s.Replay(t, "queue:orders")
		brokertest.Eventually(t, "the first is on its way", func() bool { return len(s.Parked(t)) == 0 })
	})
}

// A queue that RabbitMQ deletes with its last consumer, as in a deploy, is waited for, also by
// reports. Messages of a queue that is another connection's alone are parked, and no retry exchange
// of it is left.
func TestAQueueThatIsAwayIsWaitedFor(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: ["*"], attempts: 9, backoff: {fixed: 100ms}}]`).ready(t)
		ch := v.Channel()
		redrive := amqp.Table{"x-dead-letter-exchange": "redrive"}
		declare := func() { must(t, errOf(ch.QueueDeclare("orders", false, true, false, false, redrive))) }
		consume := func() <-chan amqp.Delivery {
			in, err := ch.Consume("orders", "consumer", false, false, false, false, nil)
			must(t, err)
			return in
		}
		const n = 20
		declare()
		in := consume()
		for range n {
			v.Publish("", "orders", amqp.Publishing{Body: []byte("x")})
		}
		for range n {
			reject(t, <-in)
		}
		must(t, ch.Cancel("consumer", false))
		s.says(t, "its messages wait for it")
		v.Publish(wire.ExchangeFailures, "orders", amqp.Publishing{Body: []byte("reported")})
		brokertest.Eventually(t, "the report waits too", func() bool { return s.kept(t, "orders").Waiting == n+1 })
		declare()
		for in, i := consume(), 0; i <= n; i++ {
			must(t, (<-in).Ack(false))
		}
		must(t, errOf(ch.QueueDeclare("mine", false, false, true, false, redrive)))
		must(t, ch.PublishWithContext(t.Context(), "", "mine", true, false, amqp.Publishing{}))
		brokertest.Eventually(t, "it is rejected", func() bool {
			d, ok, err := ch.Get("mine", false)
			must(t, err)
			return ok && d.Reject(false) == nil
		})
		expect.Contains(t, s.WaitParked(t, 1)[0].ParkedFor, "parked as", "exclusive to another connection")
		if err := v.Channel().ExchangeDeclarePassive(wire.RetryExchange("mine"), "fanout", true, false, false, false,
			nil); err == nil {
			t.Error("its retry exchange is left")
		}
	})
}

// What was made for a queue goes with it, unless something waits for the queue.
func TestRetryExchangesOfDeletedQueuesAreRemoved(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		for name, manage := range map[string]bool{"by the ledger": false, "by the management API": true} {
			t.Run(name, func(t *testing.T) {
				ch := v.Channel()
				exists := func(queue string) bool {
					return v.Channel().ExchangeDeclarePassive(wire.RetryExchange(queue), "fanout", true, false, false,
						false, nil) == nil
				}
				c := servertest.Config(t, v, `policies: [{name: waits, queues: [waits], backoff: {fixed: 1h}}, {name: p, queues: ["*"], attempts: 9, backoff: {fixed: 50ms}}]`)
				if !manage {
					c.Broker.Management = ""
				}
				s := run(t, c).ready(t)
				long := strings.Repeat("x", 255)
				all := []string{"a-gone", long, "stays", "waits", "z-gone"}
				for _, q := range all {
					deadLettered(v, q, "classic")
					in := v.ConsumeMany(q)
					in.Fail("x")
					if q != "waits" {
						must(t, in.Next().Ack(false))
					}
				}
				brokertest.Eventually(t, "all is retried", func() bool {
					return s.kept(t, "waits").Waiting == 1 && s.kept(t, "z-gone").Waiting == 0
				})
				for _, q := range []string{"waits", "never"} { // as enroll has left it
					must(t, ch.ExchangeDeclare(wire.RetryExchange(q), "fanout", true, false, false, false, nil))
				}
				must(t, s.Stop())
				for _, q := range all {
					if _, err := ch.QueueDelete(q, false, false, false); q != "stays" && err != nil {
						t.Fatal(err)
					}
					if q == "stays" {
						deadLettered(v, q, "classic")
						must(t, ch.QueueBind(q, "", wire.RetryExchange(q), false, nil))
					}
				}
				run(t, c).ready(t)
				for _, q := range []string{"a-gone", long, "z-gone"} { // in this order
					brokertest.Eventually(t, "the exchange of "+q+" is removed", func() bool { return !exists(q) })
				}
				for q, want := range map[string]bool{"stays": true, "waits": true, "never": !manage} {
					expect.Equal(t, exists(q), want, "the exchange of %s exists", q)
				}
				for _, q := range []string{"stays", "waits", "never"} {
					must(t, ch.ExchangeDelete(wire.RetryExchange(q), false, false))
				}
				must(t, errOf(ch.QueueDelete("stays", false, false, false)))
			})
		}
	})
}

// What waited in RabbitMQ and then found no binding to its queue, as RabbitMQ parks it
// just after it has started, comes back by itself.
func TestAMissingBindingIsDeclaredAgain(t *testing.T) {
	const n = 300
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: ["*"], attempts: 9, backoff: {fixed: 500ms}, wait: {levels: [500ms]}}]`).ready(t)
		deadLettered(v, "orders", "quorum")
		v.Exchange("shop", "topic", "orders")
		c, ch := v.ConsumeMany("orders"), v.Channel()
		for range n {
			v.Publish("shop", "orders", amqp.Publishing{Body: []byte("x")})
		}
		var failed []amqp.Delivery
		for range n {
			failed = append(failed, c.Next())
		}
		reject(t, failed[0])
		s.wait(t, retry.Waiting) // the queue is bound for it
		must(t, ch.QueueUnbind("orders", "orders", wire.ExchangeDue, nil))
		for _, d := range failed[1:] {
			reject(t, d)
		}
		for range n {
			expect.Equal(t, c.Ack().Headers[wire.HeaderAttempt], any(int64(1)), "came back with attempt")
		}
		expect.Equal(t, len(s.Parked(t)), 0, "are parked")
		// The next to fail has its binding again.
		v.Publish("shop", "orders", amqp.Publishing{Body: []byte("x")})
		reject(t, c.Next())
		expect.Equal(t, c.Next().Exchange, wire.ExchangeDue, "the next came back through")
	})
}

var must, errOf = expect.NoError, expect.ErrOf
