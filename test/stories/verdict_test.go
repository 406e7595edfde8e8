package stories_test

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// What consumers report themselves: the error travels, the wish for a delay
// counts within the policy, and a report enrols no queue.
func TestAReportedFailure(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("named", nil)
		v.Queue("globbed.queue", nil)
		s := run(t, servertest.Config(t, v, `policies: [{name: p, queues: [named, "globbed.*"], attempts: 3, backoff: [100ms, 1s], jitter: none, no_consumer: retry}]`)).ready(t)
		ch, c := v.Channel(), consume(t, v, "named")
		report := func(queue string, delay any) {
			publish(t, ch, wire.ExchangeFailures, queue, amqp.Publishing{Expiration: "60000", Body: []byte("x"), Headers: amqp.Table{
				wire.HeaderError: "no \x1b[31mstock", wire.HeaderDelay: delay, wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "k"}})
		}
		for _, w := range []struct {
			delay any
			least time.Duration
		}{{int64(600), 600 * time.Millisecond}, {int32(3_600_000), time.Second}, {"soon", 100 * time.Millisecond}, {int64(-5), 100 * time.Millisecond}} {
			began := time.Now()
			report("named", w.delay)
			d := c.next()
			if waited := time.Since(began); waited < w.least {
				t.Errorf("with a wish of %v it waited %s, want at least %s", w.delay, waited, w.least)
			}
			if d.Headers[wire.HeaderError] != "no \x1b[31mstock" || d.Headers[wire.HeaderReason] != "reported" || d.RoutingKey != "k" ||
				d.Headers[wire.HeaderDelay] != nil || d.Expiration != "" || d.Headers[wire.HeaderExchange] != "shop" {
				t.Errorf("retried as %+v", d)
			}
			if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		report("globbed.queue", nil) // matched by a pattern only, and never dead-lettered
		report("unknown", nil)
		report("redrive.intake", nil)
		for _, p := range s.WaitParked(t, 3) {
			want := map[string]string{"globbed.queue": "is not enrolled", "unknown": "no policy allows", "redrive.intake": "one of Redrive's own"}[p.Queue]
			if want == "" || !strings.Contains(p.ParkedFor, want) {
				t.Errorf("%q is parked because %s", p.Queue, p.ParkedFor)
			}
		}
		if n := v.Depth("globbed.queue"); n != 0 {
			t.Errorf("a report put %d messages into a queue that is not enrolled", n)
		}
	})
}

func TestReasonsAreFilteredByPolicy(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies:
  - {name: loose, queues: [loose], backoff: {fixed: 50ms}, reasons: [expired], no_consumer: retry}
  - {name: rest, queues: ["*"], backoff: {fixed: 50ms}, jitter: none}`).ready(t)
		ch := v.Channel()
		deadLettered(v, "plain", "classic")
		deadLettered(v, "loose", "classic")
		publish(t, ch, "", "plain", amqp.Publishing{Expiration: "1"})
		p := s.WaitParked(t, 1)[0]
		if p.Queue != "plain" || p.Reason != "expired" || !strings.Contains(p.ParkedFor, "does not retry") {
			t.Errorf("parked as %+v", p)
		}
		publish(t, ch, "", "loose", amqp.Publishing{Expiration: "1", Body: []byte("x")})
		brokertest.Eventually(t, "an expired message comes back without its expiration", func() bool { return v.Depth("loose") == 1 })

		v.Queue("limited", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive", "x-delivery-limit": int64(1)})
		c := consume(t, v, "limited")
		publish(t, ch, "", "limited", amqp.Publishing{})
		for range 2 {
			if err := c.next().Reject(true); err != nil {
				t.Fatal(err)
			}
		}
		if d := c.next(); d.Headers[wire.HeaderReason] != "delivery_limit" || d.Headers[wire.HeaderAttempt] != int64(1) {
			t.Errorf("after the delivery limit: %v", d.Headers)
		}
	})
}

func TestAfterTheLastAttemptThePolicyDecides(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies:
  - {name: a, queues: [discarded], attempts: 1, exhausted: discard}
  - {name: b, queues: [forwarded], attempts: 1, exhausted: {forward: {queue: graveyard}}}
  - {name: c, queues: [astray], attempts: 1, exhausted: {forward: {exchange: nowhere, routing_key: k}}}`).ready(t)
		v.Queue("graveyard", nil)
		ch := v.Channel()
		for _, q := range []string{"discarded", "forwarded", "astray"} {
			deadLettered(v, q, "classic")
			publish(t, ch, "", q, amqp.Publishing{Body: []byte(q)})
			reject(t, consume(t, v, q).next())
		}
		if d := consume(t, v, "graveyard").next(); string(d.Body) != "forwarded" || d.Headers[wire.HeaderAttempt] != int64(1) || d.Headers["x-death"] != nil {
			t.Errorf("forwarded as %+v", d)
		}
		p := s.WaitParked(t, 1)[0]
		if p.Queue != "astray" || !strings.Contains(p.ParkedFor, `cannot be forwarded to exchange "nowhere"`) {
			t.Errorf("parked as %+v", p)
		}
		brokertest.Eventually(t, "nothing waits", func() bool {
			return s.kept(t, "discarded").Waiting+s.kept(t, "forwarded").Waiting+s.kept(t, "astray").Waiting == 0
		})
	})
}

func TestAQueueThatIsNotAllowedIsParked(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: [allowed]}]`).ready(t)
		deadLettered(v, "other", "quorum")
		publish(t, v.Channel(), "", "other", amqp.Publishing{})
		reject(t, consume(t, v, "other").next())
		if p := s.WaitParked(t, 1)[0]; !strings.Contains(p.ParkedFor, `no policy allows the queue "other"`) {
			t.Errorf("parked as %+v", p)
		}
	})
}
