package stories_test

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// adopting runs a service whose user may adopt queues.
func adopting(t *testing.T, v *brokertest.VHost, policies string, queues ...string) *service {
	t.Helper()
	c := servertest.Config(t, v, policies)
	rights := permissions.Adopting(c.Policies, queues...)
	rights.Write = strings.TrimSuffix(rights.Write, ")$") + `|amq\.default)$`
	v.Give(v.ServiceUser(), rights)
	return run(t, c).ready(t)
}

// adopt adopts a queue to its end.
func (s *service) adopt(t *testing.T, r actions.AdoptRequest) actions.Adoption {
	t.Helper()
	if _, err := s.Client.Adopt(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	var a actions.Adoption
	brokertest.Eventually(t, "the queue "+r.Queue+" is adopted", func() bool {
		a = s.adoption(t, r.Queue)
		return a.Ended != nil
	})
	if a.Problem != "" {
		t.Errorf("adopted %s: %s", r.Queue, a.Problem)
	}
	return a
}

func (s *service) adoption(t *testing.T, queue string) actions.Adoption {
	t.Helper()
	all, err := s.Client.Adoptions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all.Adoptions {
		if a.Queue == queue {
			return a
		}
	}
	return actions.Adoption{}
}

const adoptPolicies = `policies: [{name: p, queues: [orders], attempts: 3, backoff: {fixed: 50ms}, jitter: none, no_consumer: retry}]`

// What is in a dead-letter queue that RabbitMQ filled is parked with its queue, reason and times, and is
// replayed to the queue it failed in, without x-death and with its routing key.
func TestAdoptADeadLetterQueue(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		for _, kind := range []string{"classic", "quorum"} {
			v.Queue(kind+".dlq", amqp.Table{"x-queue-type": kind})
		}
		v.Exchange("dlx", "fanout", "classic.dlq", "quorum.dlq")
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "dlx"})
		v.Queue("gone", amqp.Table{"x-dead-letter-exchange": "dlx"})
		v.Exchange("shop", "topic")
		ch := v.Channel()
		if err := ch.QueueBind("orders", "order.#", "shop", false, nil); err != nil {
			t.Fatal(err)
		}
		s := adopting(t, v, adoptPolicies, "*.dlq")
		const n = 40
		orders, gone := consume(t, v, "orders"), consume(t, v, "gone")
		for i := range n {
			publish(t, ch, "shop", fmt.Sprint("order.", i), amqp.Publishing{DeliveryMode: 2, MessageId: fmt.Sprint("o", i), Headers: amqp.Table{"n": int32(i)}, Body: []byte("an order")})
			reject(t, orders.next())
		}
		publish(t, ch, "", "gone", amqp.Publishing{Body: []byte("lost home")})
		reject(t, gone.next())
		publish(t, ch, "", "classic.dlq", amqp.Publishing{Body: []byte("never failed")})
		publish(t, ch, "", "quorum.dlq", amqp.Publishing{Body: []byte("never failed")})
		if _, err := v.Channel().QueueDelete("gone", false, false, false); err != nil {
			t.Fatal(err)
		}
		for _, queue := range []string{"classic.dlq", "quorum.dlq"} {
			brokertest.Eventually(t, "all are dead-lettered", func() bool { return v.Depth(queue) == n+2 })
			checkPreview(t, s, queue, n)
			if a := s.adopt(t, actions.AdoptRequest{Queue: queue}); a.Adopted != n+2 || a.Left != 0 {
				t.Errorf("adopted as %+v", a)
			}
			if left := v.Depth(queue); left != 0 {
				t.Errorf("%d messages are in %s still", left, queue)
			}
		}
		perQueue := map[string]int{}
		for _, p := range s.WaitParked(t, 2*(n+2)) {
			perQueue[p.Queue]++
			if p.Queue == "orders" && (p.Reason != wire.ReasonRejected || p.Attempt != 1 || p.Exchange != "shop" || !strings.HasPrefix(p.RoutingKey, "order.")) {
				t.Errorf("parked as %+v", p)
			}
		}
		if perQueue["orders"] != 2*n || perQueue["gone"] != 2 || perQueue[""] != 2 {
			t.Errorf("parked for the queues %v", perQueue)
		}
		if done := s.Replay(t, "queue:orders"); done != 2*n {
			t.Errorf("%d are replayed", done)
		}
		came := map[string]int{}
		for range 2 * n {
			d := orders.next()
			came[d.RoutingKey+" "+d.MessageId]++
			if d.Headers["x-death"] != nil || d.Headers[wire.HeaderAttempt] != int64(0) || d.Headers["n"] == nil || string(d.Body) != "an order" {
				t.Errorf("replayed as %+v", d)
			}
			if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		if len(came) != n {
			t.Errorf("%d different messages came", len(came))
		}
	})
}

func checkPreview(t *testing.T, s *service, queue string, n int) {
	t.Helper()
	p, err := s.Client.PreviewAdopt(t.Context(), actions.AdoptRequest{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	if p.Messages != n+2 || p.LookedAt != n+2 || len(p.Origins) != 3 || p.Origins[0].Queue != "orders" || p.Origins[0].Messages != n || p.Origins[0].Obstacle != "" {
		t.Errorf("%s: the preview is %+v", queue, p)
	}
	for _, o := range p.Origins {
		if o.Queue == "gone" && !strings.Contains(o.Obstacle, "no longer exists") && !strings.Contains(o.Obstacle, "no policy takes") { // RabbitMQ 4.3 does not tell this user
			t.Errorf("of a queue that is gone it says %q", o.Obstacle)
		}
	}
	if len(p.Unknown) == 0 || len(p.Groups) != 3 {
		t.Errorf("%s: not known %+v, groups %+v", queue, p.Unknown, p.Groups)
	}
}

// A queue that is followed is adopted as it fills, also after its adoption was stopped and begun again.
func TestFollowADeadLetterQueue(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders.dlq", amqp.Table{"x-queue-type": "quorum"})
		s := adopting(t, v, adoptPolicies, "*.dlq")
		ch := v.Channel()
		for round := range 2 {
			if _, err := s.Client.Adopt(t.Context(), actions.AdoptRequest{Queue: "orders.dlq", Follow: true}); err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				publish(t, ch, "", "orders.dlq", amqp.Publishing{Body: []byte("late")})
				s.WaitParked(t, round*3+i+1)
			}
			if _, err := s.Client.Adopt(t.Context(), actions.AdoptRequest{Queue: "orders.dlq"}); err == nil || !strings.Contains(err.Error(), "being adopted already") {
				t.Errorf("adopted twice at once: %v", err)
			}
			if err := s.Client.StopAdopting(t.Context(), "orders.dlq", ""); err != nil {
				t.Fatal(err)
			}
		}
		publish(t, ch, "", "orders.dlq", amqp.Publishing{Body: []byte("stays")})
		brokertest.Eventually(t, "a message that is published after that stays in the queue", func() bool { return v.Depth("orders.dlq") == 1 })
	})
}

// What cannot be adopted says so, and nothing is lost.
func TestAQueueThatCannotBeAdopted(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("forbidden", nil)
		v.Queue("log", amqp.Table{"x-queue-type": "stream"})
		s := adopting(t, v, adoptPolicies, "log", "none")
		ch := v.Channel()
		for _, queue := range []string{"forbidden", "log"} {
			publish(t, ch, "", queue, amqp.Publishing{DeliveryMode: 2, Body: []byte("stays")})
		}
		for queue, says := range map[string]string{"none": "no queue", "redrive.intake": "Redrive's own", "log": "stream"} {
			if _, err := s.Client.Adopt(t.Context(), actions.AdoptRequest{Queue: queue}); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", queue, err)
			}
		}
		if _, err := s.Client.Adopt(t.Context(), actions.AdoptRequest{Queue: "forbidden"}); err != nil {
			t.Fatal(err)
		}
		brokertest.Eventually(t, "it has ended", func() bool {
			a := s.adoption(t, "forbidden")
			return a.Ended != nil && strings.Contains(a.Problem, "redrive permissions --adopt forbidden")
		})
		if n := len(s.Parked(t)); n != 0 || v.Depth("forbidden") != 1 {
			t.Errorf("%d are parked, and %d in the queue", n, v.Depth("forbidden"))
		}
	})
}

// Each framework's error queue is adopted: its error is parked, and a replay is as first published.
func TestAdoptTheErrorQueueOfAFramework(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", nil)
		v.Queue("orders_error", amqp.Table{"x-queue-type": "quorum"})
		s := adopting(t, v, adoptPolicies, "orders_error")
		ch := v.Channel()
		for name, h := range frameworkHeaders("4711") {
			if name == "MassTransit" {
				h["MT-Fault-InputAddress"] = "rabbitmq://rabbit/orders"
			} else if name == "NServiceBus" {
				h["NServiceBus.FailedQ"] = "orders"
			} else {
				h["x-original-routingKey"], h["x-death"] = "order.eu", []any{amqp.Table{"queue": "orders", "reason": "rejected", "count": int64(2), "exchange": "elsewhere", "routing-keys": []any{"order.eu"}}}
			}
			h["kept"] = name
			publish(t, ch, "", "orders_error", amqp.Publishing{Headers: h, Body: []byte(name)})
		}
		s.adopt(t, actions.AdoptRequest{Queue: "orders_error"})
		for _, p := range s.WaitParked(t, 3) {
			d, err := s.Client.Message(t.Context(), p.ID, inspect.ReadAs{})
			if err != nil || d.Framework == nil || d.Queue != "orders" || !strings.Contains(d.Error, "4711") {
				t.Errorf("parked as %+v, %v", d, err)
			}
		}
		if done := s.Replay(t, "queue:orders"); done != 3 {
			t.Fatalf("%d are replayed", done)
		}
		c := consume(t, v, "orders")
		for range 3 {
			d := c.next()
			for name := range d.Headers {
				if strings.HasPrefix(name, "MT-") || strings.HasPrefix(name, "NServiceBus.") || strings.HasPrefix(name, "x-exception-") || strings.HasPrefix(name, "x-original-") || name == wire.HeaderError {
					t.Errorf("%s is replayed with %s", d.Body, name)
				}
			}
			if d.Headers["kept"] != string(d.Body) {
				t.Errorf("replayed as %+v", d)
			}
		}
	})
}

// What was adopted and not replayed goes back into its queue as it was, when that is asked for.
func TestUnadopt(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders.dlq", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("copies", nil)
		v.Exchange("dlx", "fanout", "orders.dlq")
		v.Queue("orders", amqp.Table{"x-dead-letter-exchange": "dlx"})
		s := adopting(t, v, adoptPolicies, "*.dlq")
		ch, orders := v.Channel(), consume(t, v, "orders")
		was := map[string]amqp.Delivery{}
		for _, id := range []string{"a", "b", "c"} {
			publish(t, ch, "", "orders", amqp.Publishing{DeliveryMode: 2, MessageId: id, AppId: "shop", Headers: amqp.Table{"kept": id, "MT-Reason": "fault", "MT-Fault-Message": "no stock"}, Body: []byte(id)})
			reject(t, orders.next())
		}
		publish(t, ch, "", "orders.dlq", amqp.Publishing{MessageId: "d", Headers: amqp.Table{"CC": []any{"copies"}, "kept": "d"}, Body: []byte("d")})
		v.Depth("copies") // RabbitMQ has copied it there, once
		dlq := consume(t, v, "orders.dlq")
		for range 4 {
			d := dlq.next()
			was[d.MessageId] = d
		}
		if err := dlq.ch.Close(); err != nil { // they are requeued
			t.Fatal(err)
		}
		s.adopt(t, actions.AdoptRequest{Queue: "orders.dlq"})
		s.WaitParked(t, 4)
		page, err := s.Client.Messages(t.Context(), "state:parked adopted:orders.dlq", "", 10)
		if err != nil || len(page.Messages) != 4 {
			t.Fatalf("found %d messages, %v", len(page.Messages), err)
		}
		act := actions.Act{Verb: actions.Unadopt}
		for _, m := range page.Messages {
			act.IDs = append(act.IDs, m.ID)
		}
		if done, err := s.Client.Act(t.Context(), act); err != nil || done.Done != 4 {
			t.Fatalf("%+v, %v", done, err)
		}
		dlq = consume(t, v, "orders.dlq")
		for range 4 {
			d := dlq.next()
			w := was[d.MessageId]
			delete(w.Headers, "CC")
			delete(w.Headers, "x-delivery-count")
			delete(w.Headers, "x-acquired-count")
			if fmt.Sprint(d.Headers) != fmt.Sprint(w.Headers) || string(d.Body) != string(w.Body) || d.AppId != w.AppId || d.DeliveryMode != 2 {
				t.Errorf("it was %+v, and is %+v", w, d)
			}
		}
		s.WaitParked(t, 0)
		if n := v.Depth("copies"); n != 1 {
			t.Errorf("%d messages are where only CC led to", n)
		}
	})
}
