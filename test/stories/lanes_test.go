package stories_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

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
