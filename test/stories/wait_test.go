package stories_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

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
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				c.prepare(v)
				deadLettered(v, "orders", "quorum")
				s := start(t, v, c.policies).ready(t)
				in := v.ConsumeMany("orders")
				const n = 20
				for range n {
					v.Publish("", "orders", amqp.Publishing{Body: []byte("x")})
				}
				for range n {
					reject(t, in.Next())
				}
				for range n {
					expect.Equal(t, in.Next().Headers[wire.HeaderAttempt], any(int64(1)), "came back with attempt")
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
					in.Fail("x")
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
		v.Publish("", "secret", amqp.Publishing{Body: []byte("theirs")})
		secret, other, mine := v.ConsumeMany("secret"), v.ConsumeMany("other"), v.ConsumeMany("mine")
		reject(t, secret.Next())
		if d := secret.Next(); string(d.Body) != "theirs" || d.Exchange != wire.ExchangeDue {
			t.Fatalf("%q came through %q", d.Body, d.Exchange)
		}

		as := func() *amqp.Channel {
			ch, err := v.DialURL(v.URLAs(user, "pw")).Channel()
			must(t, err)
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
			must(t, ch.Publish(exchange, "secret", false, false, amqp.Publishing{Body: []byte("straight")}))
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
			for d := mine.Next(); ; d = mine.Next() {
				if d.Headers[wire.HeaderAttempt] == nil { // the first, and what CC made of it
					reject(t, d)
					continue
				}
				if string(d.Body) != name || d.Exchange != wire.ExchangeDue || d.RoutingKey != "mine" || d.Headers[wire.HeaderQueue] != "mine" {
					t.Errorf("%s: %q came back through %q with %q, headers %v", name, d.Body, d.Exchange, d.RoutingKey, d.Headers)
				}
				must(t, d.Ack(false))
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
		expect.Equal(t, s.Replay(t, "queue:other"), 2, "were replayed")
		brokertest.Eventually(t, "both are parked again", func() bool {
			all := s.Parked(t)
			return len(all) == 2 && strings.Contains(all[0].ParkedFor, "not enrolled") && strings.Contains(all[1].ParkedFor, "not enrolled")
		})
		other.Nothing()
		secret.Nothing()
	})
}

// A forward target that is full, and rejects what is published, stops nothing but what goes
// there: retries of its work queue go on, though it has a rate. The service names the
// target, stays ready, and goes on by itself when the target has room.
func TestAFullForwardTargetStopsNoRetry(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: [orders], attempts: 2, backoff: {fixed: 100ms}, jitter: none, rate: 10/s, exhausted: {forward: {queue: dead}}}]`).ready(t)
		v.Queue("dead", amqp.Table{"x-queue-type": "classic"})
		v.Policy("full", "^dead$", 0, map[string]any{"max-length": 1, "overflow": "reject-publish"})
		deadLettered(v, "orders", "quorum")
		v.Publish("", "dead", amqp.Publishing{Body: []byte("it is full")})
		c := v.ConsumeMany("orders")
		const stuck, retried = 5, 20
		for i := range stuck {
			c.Fail(fmt.Sprint("stuck ", i))
			reject(t, c.Next())
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
		expect.Equal(t, s.metric(t, blocked), "1", "%s", blocked)
		if code, text := s.get(t, "/readyz"); code != http.StatusOK {
			t.Errorf("its readiness: %d, %s", code, text)
		}
		began := time.Now()
		for i := range retried {
			c.Fail(fmt.Sprint("retried ", i))
			if d := c.Next(); !strings.HasPrefix(string(d.Body), "retried ") {
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
		dead := v.ConsumeMany("dead")
		for range 1 + stuck {
			dead.Ack()
		}
		brokertest.Eventually(t, "no problem is left", func() bool { return problem() == "" && s.kept(t, "orders").Waiting == 0 && s.metric(t, blocked) == "" })
	})
}

// A forward target and a work queue whose leaders hang, which is not the same as dead, hold up
// nothing but what is to go there. Retries do not wait for consumers here, since RabbitMQ may
// count none in a queue whose leader hangs.
func TestQueuesThatHangStopNoRetry(t *testing.T) {
	brokertest.OnePrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		s := start(t, v, `policies: [{name: p, queues: [orders, hangs], attempts: 2, backoff: {fixed: 100ms}, jitter: none, no_consumer: retry, exhausted: {forward: {queue: dead}}}]`).ready(t)
		v.Queue("dead", amqp.Table{"x-queue-type": "quorum"})
		deadLettered(v, "orders", "quorum")
		deadLettered(v, "hangs", "quorum")
		c, hangs := v.ConsumeMany("orders"), v.ConsumeMany("hangs")
		const stuck, retried = 5, 20
		fail := func(from *brokertest.Consumer, queue, body string, times int) {
			t.Helper()
			v.Publish("", queue, amqp.Publishing{Body: []byte(body)})
			for range times {
				reject(t, from.Next())
			}
		}
		fail(c, "orders", "before", 1)
		c.Ack()
		v.Leader(n, "suspend", "dead")
		for range stuck {
			fail(c, "orders", "stuck", 2)
		}
		must(t, s.Client.PauseQueue(t.Context(), "hangs", "until its leader hangs"))
		for range stuck {
			fail(hangs, "hangs", "stuck", 1)
		}
		v.Leader(n, "suspend", "hangs")
		must(t, s.Client.ResumeQueue(t.Context(), "hangs", ""))
		brokertest.Eventually(t, "both wait", func() bool {
			return s.kept(t, "orders").Waiting == stuck && s.kept(t, "hangs").Waiting == stuck
		})
		for i := range retried {
			v.Publish("", "orders", amqp.Publishing{Body: fmt.Append(nil, "retried ", i)})
		}
		for again := 0; again < retried; {
			switch d := c.Next(); {
			case !strings.HasPrefix(string(d.Body), "retried "):
				t.Fatalf("%s was retried", d.Body)
			case d.Headers[wire.HeaderAttempt] == nil:
				reject(t, d)
			default:
				again++
				must(t, d.Ack(false))
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
		v.Leader(n, "resume", "dead")
		v.Leader(n, "resume", "hangs")
		dead := v.ConsumeMany("dead")
		for range stuck {
			dead.Ack()
			hangs.Ack()
		}
		brokertest.Eventually(t, "no problem is left", func() bool {
			return s.kept(t, "orders").Waiting+s.kept(t, "hangs").Waiting == 0 && named() == 0 && s.metric(t, blocked) == "" && s.metric(t, paused) == ""
		})
	})
}
