package stories_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// Each way of RabbitMQ's that these brokers have, three attempts.
var ways = []struct {
	name, policies string
	waits          []time.Duration // as the way rounds them
}{
	{"levels", `policies: [{name: p, queues: ["*"], attempts: 3, backoff: [150ms, 400ms], wait: {levels: [200ms, 500ms]}}]`, []time.Duration{200 * time.Millisecond, 500 * time.Millisecond}},
	{"fixed", `policies: [{name: p, queues: ["*"], attempts: 3, backoff: {fixed: 200ms}, wait: {fixed: 300ms}}]`, []time.Duration{300 * time.Millisecond, 300 * time.Millisecond}},
	{"dynamic", `policies: [{name: p, queues: ["*"], attempts: 3, backoff: [150ms, 400ms], jitter: none, wait: dynamic}]`, []time.Duration{200 * time.Millisecond, 400 * time.Millisecond}},
	{"message-ttl", `policies: [{name: p, queues: ["*"], attempts: 3, backoff: {fixed: 200ms}, wait: message-ttl}]`, []time.Duration{200 * time.Millisecond, 200 * time.Millisecond}},
	{"binary", `policies: [{name: p, queues: ["*"], attempts: 3, backoff: [150ms, 400ms], jitter: none, wait: {binary: 100ms}}]`, []time.Duration{200 * time.Millisecond, 400 * time.Millisecond}},
}

// A message waits in RabbitMQ, and nowhere else; it comes back as it was, with
// its attempts counted on, and is parked after the last.
func TestAMessageWaitsInRabbitMQ(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				deadLettered(v, "orders", "quorum")
				v.Exchange("shop", "topic", "orders")
				s := start(t, v, strings.Replace(way.policies, `"*"`, "orders", 1)).ready(t)
				c := consume(t, v, "orders")
				sent := amqp.Publishing{
					Headers: everyHeader(), ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 3,
					CorrelationId: "corr", ReplyTo: "reply", MessageId: "m1", Timestamp: time.Unix(1_700_000_000, 0), Type: "created",
					UserId: "guest", AppId: "shop", Body: []byte("\x00\xff{}"),
				}
				publish(t, v.Channel(), "shop", "orders", sent)
				failed := reject(t, c.next())
				var id any
				for i, wait := range way.waits {
					if e := s.wait(t, retry.Waiting); e.Way != way.name || e.Delay != wait || e.Instead != "" {
						t.Errorf("attempt %d waits as %+v; want %s with %s", i+1, e, way.name, wait)
					}
					d := c.next()
					if early := failed.Add(wait); time.Now().Before(early) {
						t.Errorf("attempt %d came %s early", i+2, time.Until(early))
					}
					ours, rest := amqp.Table{}, amqp.Table{}
					for k, val := range d.Headers {
						switch {
						case strings.HasPrefix(k, "x-redrive-"):
							ours[k] = val
						case !slices.Contains([]string{"x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
							"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason"}, k): // its wait is a death to RabbitMQ
							rest[k] = val
						}
					}
					if d := cmp.Diff(everyHeader(), rest); d != "" {
						t.Errorf("headers (-published +retried):\n%s", d)
					}
					if string(d.Body) != string(sent.Body) || d.ContentType != sent.ContentType || d.ContentEncoding != sent.ContentEncoding ||
						d.DeliveryMode != 2 || d.Priority != 3 || d.CorrelationId != "corr" || d.ReplyTo != "reply" || d.MessageId != "m1" ||
						!d.Timestamp.Equal(sent.Timestamp) || d.Type != "created" || d.UserId != "" || d.AppId != "shop" || d.Expiration != "" {
						t.Errorf("properties changed: %+v", d)
					}
					if id == nil {
						id = ours[wire.HeaderID]
					}
					want := amqp.Table{
						wire.HeaderID: id, wire.HeaderAttempt: int64(i + 1), wire.HeaderQueue: "orders",
						wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "orders", wire.HeaderFirstFailed: ours[wire.HeaderFirstFailed],
						wire.HeaderReason: "rejected", wire.HeaderUserID: "guest",
					}
					if d := cmp.Diff(want, ours); d != "" {
						t.Errorf("our headers (-want +got):\n%s", d)
					}
					if q := s.kept(t, "orders"); q.Waiting != 0 || q.Way != way.name {
						t.Errorf("the service has %+v", q)
					}
					failed = reject(t, d)
				}
				p := s.WaitParked(t, 1)[0]
				if p.ID != id || p.Attempt != 3 || p.Queue != "orders" || p.Exchange != "shop" || p.RoutingKey != "orders" {
					t.Errorf("parked as %+v", p)
				}
				if n := s.Replay(t, "queue:orders"); n != 1 {
					t.Fatalf("replayed %d", n)
				}
				if d := c.next(); d.Headers[wire.HeaderAttempt] != int64(0) || d.Headers[wire.HeaderUserID] != "guest" {
					t.Errorf("replayed with headers %v", d.Headers)
				}
			})
		})
	}
}

// What waits in RabbitMQ survives its restart, and the service does not matter.
func TestWhatWaitsInRabbitMQSurvivesItsRestart(t *testing.T) {
	const n = 50
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, node *rabbitnode.Node) {
		deadLettered(v, "orders", "quorum")
		s := start(t, v, `policies: [{name: p, queues: ["*"], attempts: 3, backoff: {fixed: 5s}, wait: {levels: [5s]}}]`).ready(t)
		c := consume(t, v, "orders")
		ch := v.Channel()
		for range n {
			publish(t, ch, "", "orders", amqp.Publishing{Body: []byte("x"), DeliveryMode: 2})
		}
		for range n {
			reject(t, c.next())
		}
		for range n {
			if e := s.wait(t, retry.Waiting); e.Way != "levels" {
				t.Fatalf("one waits as %+v", e)
			}
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := node.Eval(context.Background(), "[dets:sync(T) || T <- dets:all()]."); err != nil { // see TestKillingRabbitMQLosesNothing
			t.Fatal(err)
		}
		node.Kill()
		if err := node.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
		var again *brokertest.Consumer
		brokertest.Eventually(t, "RabbitMQ is back", func() bool {
			conn, err := amqp.Dial(v.URL())
			if err != nil {
				return false
			}
			t.Cleanup(func() { conn.Close() })
			ch, err := conn.Channel()
			if err == nil {
				_, err = ch.QueueDeclarePassive("orders", true, false, false, false, nil)
			}
			if err == nil {
				again = v.ConsumeOn(ch, "orders")
			}
			return err == nil
		})
		for range n {
			if d := again.Take("x"); d.Headers[wire.HeaderAttempt] != int64(1) {
				t.Errorf("one came back with headers %v", d.Headers)
			}
		}
	})
}

// A way that RabbitMQ refuses costs a copy on disk, never a message, and is tried
// again.
func TestAWayThatIsRefusedLeavesItsMessagesOnDisk(t *testing.T) {
	const levels = `policies: [{name: p, queues: ["*"], attempts: 9, backoff: {fixed: 200ms}, wait: {levels: [200ms]}}]`
	for _, c := range []struct {
		name, policies string
		prepare        func(*brokertest.VHost)
		why            string
	}{
		{"no plugin", `policies: [{name: p, queues: ["*"], attempts: 9, backoff: {fixed: 200ms}, jitter: none, wait: delayed-exchange}]`, func(*brokertest.VHost) {}, wire.ErrNoType.Error()},
		{"declared otherwise", levels, func(v *brokertest.VHost) { v.Exchange(wire.ExchangeDue, "fanout") }, wire.ErrDiffers.Error()},
		{"nacked", levels, func(v *brokertest.VHost) {
			v.Must("PUT", "policies/"+v.Name+"/full", map[string]any{"pattern": "^redrive[.]delay[.]", "apply-to": "queues", "definition": map[string]any{"max-length": 0}})
		}, wire.ErrNacked.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				c.prepare(v)
				deadLettered(v, "orders", "quorum")
				s := start(t, v, c.policies).ready(t)
				in := consume(t, v, "orders")
				ch := v.Channel()
				const n = 20
				for range n {
					publish(t, ch, "", "orders", amqp.Publishing{Body: []byte("x")})
				}
				for range n {
					reject(t, in.next())
				}
				for range n {
					if d := in.next(); d.Headers[wire.HeaderAttempt] != int64(1) {
						t.Errorf("one came back with headers %v", d.Headers)
					}
				}
				for e := s.wait(t, retry.Waiting); e.Instead == ""; e = s.wait(t, retry.Waiting) {
					if c.name != "nacked" { // the first into an empty queue is taken
						t.Errorf("one waits as %+v", e)
					}
				}
				if notices := s.Notices(); len(notices) != 1 || !strings.Contains(notices[0], c.why) {
					t.Errorf("the service says %q; want %q", notices, c.why)
				}
				if p := s.Problems(); len(p) != 0 {
					t.Errorf("it is not ready: %q", p)
				}
				if c.name != "nacked" {
					return
				}
				v.Must("DELETE", "policies/"+v.Name+"/full", nil)
				brokertest.Eventually(t, "messages wait in RabbitMQ again", func() bool {
					publish(t, ch, "", "orders", amqp.Publishing{Body: []byte("x")})
					reject(t, in.next())
					return s.wait(t, retry.Waiting).Way == "levels" && len(s.Notices()) == 0
				})
			})
		})
	}
}

// The right to write into the exchanges of the ways is the right to write into the
// queues behind them; a user without it cannot get at them, whatever its messages
// say and whatever it declares.
func TestWaitingInRabbitMQChoosesNoOtherQueue(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		// With the management API, by which it is known that no other queue consents to a report.
		s := run(t, servertest.Config(t, v, `policies: [{name: p, queues: ["*"], attempts: 9, backoff: {fixed: 100ms}, wait: {levels: [100ms]}}]`)).ready(t)
		user := "mallory-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, "^mine.*$", `^(mine.*|amq\.default|redrive\.failures)$`, "^mine.*$")
		deadLettered(v, "mine", "quorum")
		deadLettered(v, "secret", "quorum") // enrolled, and reachable through redrive.due
		v.Queue("other", nil)               // not enrolled
		publish(t, v.Channel(), "", "secret", amqp.Publishing{Body: []byte("theirs")})
		secret, other, mine := consume(t, v, "secret"), consume(t, v, "other"), consume(t, v, "mine")
		reject(t, secret.next())
		if d := secret.next(); string(d.Body) != "theirs" || d.Exchange != wire.ExchangeDue {
			t.Fatalf("%q came through %q", d.Body, d.Exchange)
		}

		as := func() *amqp.Channel {
			ch, err := v.DialURL(v.URLAs(user, "pw")).Channel()
			if err != nil {
				t.Fatal(err)
			}
			return ch
		}
		refused := func(what string, err error) {
			t.Helper()
			var e *amqp.Error
			if !errors.As(err, &e) || e.Code != amqp.AccessRefused {
				t.Errorf("%s: %v; want it refused", what, err)
			}
		}
		for _, exchange := range []string{wire.ExchangeDue, wire.DelayPrefix + "100ms"} {
			ch := as()
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			if err := ch.Publish(exchange, "secret", false, false, amqp.Publishing{Body: []byte("straight")}); err != nil {
				t.Fatal(err)
			}
			refused("publishing to "+exchange, <-closed)
			_, err := as().QueueDeclare("mine.ttl", true, false, false, false, amqp.Table{"x-message-ttl": int64(0),
				"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "secret"})
			refused("a queue that dead-letters to "+exchange, err)
		}

		mallory := as()
		death := func(queue string) amqp.Table {
			return amqp.Table{"queue": queue, "reason": "rejected", "exchange": wire.ExchangeDue, "count": int64(1),
				"routing-keys": []any{"secret"}, "time": time.Unix(1_700_000_000, 0)}
		}
		for name, forged := range map[string]amqp.Table{
			"a death elsewhere": {"x-death": []any{death("secret")}},
			"a death here":      {"x-death": []any{death("mine")}},
			"our headers": {wire.HeaderQueue: "secret", wire.HeaderExchange: wire.ExchangeDue, wire.HeaderRoutingKey: "secret",
				wire.HeaderReason: "rejected", wire.HeaderParkReason: "x"},
			"copies": {"CC": []any{"mine", "mine"}, "BCC": []any{"mine"}},
			"delay":  {"x-delay": int32(1), wire.HeaderDelay: int64(1)},
		} {
			publish(t, mallory, "", "mine", amqp.Publishing{Headers: forged, Body: []byte(name)})
			for d := mine.next(); ; d = mine.next() {
				if d.Headers[wire.HeaderAttempt] == nil { // the first, and what CC made of it
					reject(t, d)
					continue
				}
				if string(d.Body) != name || d.Exchange != wire.ExchangeDue || d.RoutingKey != "mine" || d.Headers[wire.HeaderQueue] != "mine" {
					t.Errorf("%s: %q came back through %q with %q, headers %v", name, d.Body, d.Exchange, d.RoutingKey, d.Headers)
				}
				if err := d.Ack(false); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
		// A report enrols nothing: no binding, no message.
		publish(t, mallory, wire.ExchangeFailures, "other", amqp.Publishing{Body: []byte("report")})
		p := s.WaitParked(t, 1)[0]
		if p.Queue != "other" || !strings.Contains(p.ParkedFor, "not enrolled") {
			t.Errorf("parked as %+v", p)
		}
		// Nor does one with that right reach more than what is behind redrive.due.
		v.Grant(user, "^mine.*$", `^(mine.*|amq\.default|redrive\.failures|redrive\.delay\..*)$`, "^mine.*$")
		publish(t, as(), wire.DelayPrefix+"100ms", "other", amqp.Publishing{Body: []byte("past"), Headers: amqp.Table{wire.HeaderQueue: "secret"}})
		brokertest.Eventually(t, "it is parked", func() bool { return len(s.Parked(t)) == 2 })
		if n := s.Replay(t, "queue:other"); n != 2 {
			t.Fatalf("replayed %d", n)
		}
		brokertest.Eventually(t, "both are parked again", func() bool {
			all := s.Parked(t)
			return len(all) == 2 && strings.Contains(all[0].ParkedFor, "not enrolled") && strings.Contains(all[1].ParkedFor, "not enrolled")
		})
		other.none(200 * time.Millisecond)
		secret.none(0)
	})
}

// A forward target that is full, and rejects what is published, stops nothing but what goes
// there: retries of its work queue go on, though it has a rate. The service names the
// target, stays ready, and goes on by itself when the target has room.
func TestAFullForwardTargetStopsNoRetry(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: [orders], attempts: 2, backoff: {fixed: 100ms}, jitter: none, rate: 10/s, exhausted: {forward: {queue: dead}}}]`).ready(t)
		v.Queue("dead", amqp.Table{"x-queue-type": "classic"})
		v.Policy("full", "^dead$", 0, map[string]any{"max-length": 1, "overflow": "reject-publish"})
		deadLettered(v, "orders", "quorum")
		ch := v.Channel()
		publish(t, ch, "", "dead", amqp.Publishing{Body: []byte("it is full")})
		c := consume(t, v, "orders")
		const stuck, retried = 5, 20
		for i := range stuck {
			publish(t, ch, "", "orders", amqp.Publishing{Body: fmt.Append(nil, "stuck ", i)})
			reject(t, c.next())
			reject(t, c.next())
		}
		problem := func() string {
			for _, p := range s.Problems() {
				if strings.Contains(p, "orders") {
					return p
				}
			}
			return ""
		}
		brokertest.Eventually(t, "the target is named", func() bool {
			return strings.HasPrefix(problem(), "forwards of queue orders to queue dead: ") && s.kept(t, "orders").Waiting == stuck
		})
		const blocked = `redrive_forward_blocked{queue="orders",target="queue dead"}`
		if n := s.metric(t, blocked); n != "1" {
			t.Errorf("%s is %q", blocked, n)
		}
		if resp, err := http.Get("http://" + s.Addr() + "/readyz"); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("its readiness: %v, %v", resp, err)
		} else {
			resp.Body.Close()
		}
		began := time.Now()
		for i := range retried {
			publish(t, ch, "", "orders", amqp.Publishing{Body: fmt.Append(nil, "retried ", i)})
			reject(t, c.next())
			if d := c.next(); !strings.HasPrefix(string(d.Body), "retried ") {
				t.Errorf("%s was retried", d.Body)
			} else if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%d were retried in %s while the target was full", retried, time.Since(began))
		if p := problem(); !strings.HasPrefix(p, "forwards of queue orders to queue dead: ") {
			t.Errorf("meanwhile its problem was %q", p)
		}
		v.Policy("full", "^dead$", 0, map[string]any{"max-length": 100, "overflow": "reject-publish"})
		dead := consume(t, v, "dead")
		for range 1 + stuck {
			if err := dead.next().Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		brokertest.Eventually(t, "no problem is left", func() bool { return problem() == "" && s.kept(t, "orders").Waiting == 0 && s.metric(t, blocked) == "" })
	})
}

// A forward target and a work queue whose leaders hang, which is not the same as dead, hold up
// nothing but what is to go there. Retries do not wait for consumers here, since RabbitMQ may
// count none in a queue whose leader hangs.
func TestQueuesThatHangStopNoRetry(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, node *rabbitnode.Node) {
		s := start(t, v, `policies: [{name: p, queues: [orders, hangs], attempts: 2, backoff: {fixed: 3s}, jitter: none, no_consumer: retry, exhausted: {forward: {queue: dead}}}]`).ready(t)
		leader := func(do, queue string) {
			t.Helper()
			if _, err := node.Eval(t.Context(), fmt.Sprintf("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<%q>>, queue, <<%q>>)), ok = sys:%s(amqqueue:get_pid(Q)).", v.Name, queue, do)); err != nil {
				t.Fatal(err)
			}
		}
		v.Queue("dead", amqp.Table{"x-queue-type": "quorum"})
		deadLettered(v, "orders", "quorum")
		deadLettered(v, "hangs", "quorum")
		ch := v.Channel()
		c, hangs := consume(t, v, "orders"), consume(t, v, "hangs")
		const stuck, retried = 5, 20
		fail := func(from *consumer, queue, body string, times int) {
			t.Helper()
			publish(t, ch, "", queue, amqp.Publishing{Body: []byte(body)})
			for range times {
				reject(t, from.next())
			}
		}
		fail(c, "orders", "before", 1)
		if err := c.next().Ack(false); err != nil {
			t.Fatal(err)
		}
		leader("suspend", "dead")
		for range stuck {
			fail(c, "orders", "stuck", 2)
		}
		if err := s.Client.PauseQueue(t.Context(), "hangs", "until its leader hangs"); err != nil {
			t.Fatal(err)
		}
		for range stuck {
			fail(hangs, "hangs", "stuck", 1)
		}
		leader("suspend", "hangs")
		if err := s.Client.ResumeQueue(t.Context(), "hangs", ""); err != nil {
			t.Fatal(err)
		}
		brokertest.Eventually(t, "both wait", func() bool {
			return s.kept(t, "orders").Waiting == stuck && s.kept(t, "hangs").Waiting == stuck
		})
		for i := range retried {
			fail(c, "orders", fmt.Sprint("retried ", i), 1)
		}
		for range retried {
			if d := c.next(); !strings.HasPrefix(string(d.Body), "retried ") {
				t.Errorf("%s was retried", d.Body)
			} else if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		brokertest.Eventually(t, "only what is for the target waits", func() bool { return s.kept(t, "orders").Waiting == stuck })
		const blocked, paused = `redrive_forward_blocked{queue="orders",target="queue dead"}`, `redrive_queue_paused{queue="hangs",why="unreachable"}`
		named := func() (lanes int) {
			for _, p := range s.Problems() {
				if strings.HasPrefix(p, "queue hangs: ") || strings.HasPrefix(p, "forwards of queue orders to queue dead: ") {
					lanes++
				}
			}
			return lanes
		}
		brokertest.Eventually(t, "both are named", func() bool {
			return named() == 2 && s.metric(t, blocked) == "1" && s.metric(t, paused) == "1"
		})
		if p := strings.Join(s.Problems(), "; "); !strings.Contains(p, "RabbitMQ has not confirmed") {
			t.Errorf("its problems are %s", p)
		}
		leader("resume", "dead")
		leader("resume", "hangs")
		dead := consume(t, v, "dead")
		for range stuck {
			if err := dead.next().Ack(false); err != nil {
				t.Fatal(err)
			}
			if err := hangs.next().Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		brokertest.Eventually(t, "no problem is left", func() bool {
			return s.kept(t, "orders").Waiting+s.kept(t, "hangs").Waiting == 0 && named() == 0 && s.metric(t, blocked) == "" && s.metric(t, paused) == ""
		})
	})
}
