package stories_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/internal/whatif"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

const ruled = `policies:
  - name: orders
    queues: [orders, late]
    attempts: 5
    backoff: {fixed: 50ms}
    jitter: none
    no_consumer: retry
    retry_priority: 2
    rules:
      - {name: invalid, when: "error:/invalid IBAN|validation/", then: park, why: ask the shop}
      - {name: spam, when: "header.kind:spam", then: discard}
      - {name: refund, when: "body.kind:refund", then: {forward: {queue: refunds}}}
      - {name: slow, when: "error:*timeout* attempt:1", backoff: {fixed: 700ms}}
      - {name: once, when: "type:Once", attempts: 2}
      - {name: late, when: "reason:expired", then: retry}
  - {name: new, queues: [new], attempts: 3, backoff: {fixed: 50ms}, jitter: none, no_consumer: retry, max_age: 1s}
redirects: [{from: old, to: new}]
`

// Each outcome of a rule, for messages that are rejected and that are reported, by the least rights.
func TestEachOutcomeOfARule(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "classic", "x-max-priority": int32(9), "x-dead-letter-exchange": "redrive"})
		v.Queue("refunds", nil)
		s := run(t, servertest.Config(t, v, ruled)).ready(t)
		ch, c := v.Channel(), consume(t, v, "orders")
		report := func(body, failed string, h amqp.Table) {
			t.Helper()
			h[wire.HeaderError] = failed
			publish(t, ch, wire.ExchangeFailures, "orders", amqp.Publishing{ContentType: "application/json", Priority: 7, Headers: h, Body: []byte(body)})
		}
		// park, at once
		report("{}", "Validation failed", amqp.Table{})
		p := s.WaitParked(t, 1)[0]
		if p.ParkedFor != `ask the shop (rule "invalid" of policy "orders")` || p.Policy != "orders" || p.Rule != "invalid" || p.Attempt != 1 {
			t.Errorf("parked as %+v", p)
		}
		if d, err := s.Client.Message(t.Context(), p.ID, inspect.ReadAs{}); err != nil || d.Timeline[0].Rule != "invalid" || d.Timeline[0].Why != p.ParkedFor {
			t.Errorf("its timeline is %+v, %v", d.Timeline, err)
		}
		if page, err := s.Client.Messages(t.Context(), "rule:inv* policy:orders", "", 10); err != nil || len(page.Messages) != 1 {
			t.Errorf("rule:inv* finds %d, %v", len(page.Messages), err)
		}
		// a consumer parks by a header
		report("{}", "x", amqp.Table{wire.HeaderPark: "no such customer", "kind": "spam"})
		if p := s.WaitParked(t, 2); !strings.Contains(p[0].ParkedFor+p[1].ParkedFor, "its consumer parked it: no such customer") {
			t.Errorf("parked for %q and %q", p[0].ParkedFor, p[1].ParkedFor)
		}
		// discard, of a message that is rejected
		publish(t, ch, "", "orders", amqp.Publishing{Headers: amqp.Table{"kind": "spam"}})
		reject(t, c.next())
		if e := s.wait(t, retry.Discarded); e.Rule != "spam" {
			t.Errorf("discarded: %+v", e)
		}
		// forward, by what its body has
		report(`{"kind":"refund"}`, "x", amqp.Table{})
		brokertest.Eventually(t, "it is forwarded", func() bool { return v.Depth("refunds") == 1 })
		// another delay, and the priority of retries
		began := time.Now()
		report("slow", "upstream TIMEOUT", amqp.Table{})
		if d := c.next(); time.Since(began) < 700*time.Millisecond || d.Priority != 2 || string(d.Body) != "slow" || d.Headers[wire.HeaderPark] != nil {
			t.Errorf("after %s: priority %d, %q", time.Since(began), d.Priority, d.Body)
		} else if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
		// another number of attempts
		publish(t, ch, "", "orders", amqp.Publishing{Type: "Once", Body: []byte("once")})
		reject(t, c.next())
		reject(t, c.next())
		if p := s.WaitParked(t, 3)[0]; p.Rule != "once" || p.Attempt != 2 || !strings.HasSuffix(p.ParkedFor, `allows 2 attempts; rule "once"`) {
			t.Errorf("parked as %+v", p)
		}
		// a reason that the policy does not retry
		c.none(0)
		deadLettered(v, "late", "classic")
		publish(t, ch, "", "late", amqp.Publishing{Expiration: "1"})
		brokertest.Eventually(t, "an expired message is retried", func() bool {
			page, err := s.Client.Messages(t.Context(), "state:retried reason:expired", "", 10)
			return err == nil && len(page.Messages) == 1
		})
		against(t, s)
	})
}

// against compares another configuration with what the story before left.
func against(t *testing.T, s *service) {
	t.Helper()
	c, err := config.Parse("changed.yaml", []byte(strings.NewReplacer("validation", "nothing else", "then: discard", "then: park", "kind:refund", "kind:other").Replace(ruled)))
	if err != nil {
		t.Fatal(err)
	}
	r, err := whatif.Run(t.Context(), c, s.Client, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range r.Rows {
		got = append(got, fmt.Sprintf("%s/%s %v %v", row.Policy, row.Rule, row.Would, row.Did))
	}
	// All is known of what is parked, but not the headers and bodies of what was retried: "slow" and
	// the expired message. What was discarded at once or forwarded is not counted.
	want := "orders/slow {0 0 0 0 1} {0 1 0 0 0}\norders/once {1 0 0 0 0} {1 0 0 0 0}\norders/late {0 0 0 0 1} {0 1 0 0 0}\norders/ {1 1 0 0 0} {2 0 0 0 0}"
	if s := strings.Join(got, "\n"); s != want {
		t.Errorf("%d messages, park, retry, discard, forward, not known:\n%s\nwant\n%s", r.Messages, s, want)
	}
}

// What fails in one queue is retried to another, by that one's policy and rights; and never later
// than its longest age.
func TestARedirectAndALongestAge(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		deadLettered(v, "old", "quorum")
		deadLettered(v, "new", "quorum")
		s := run(t, servertest.Config(t, v, ruled)).ready(t)
		ch, old, renewed := v.Channel(), consume(t, v, "old"), consume(t, v, "new")
		publish(t, ch, "", "old", amqp.Publishing{Body: []byte("x"), Headers: amqp.Table{"mine": "yes"}})
		reject(t, old.next())
		d := renewed.next()
		if d.Headers[wire.HeaderQueue] != "new" || d.RoutingKey != "old" || d.Headers["mine"] != "yes" {
			t.Errorf("redirected as %+v", d)
		}
		time.Sleep(time.Second) // until its longest age is over
		reject(t, d)
		p := s.WaitParked(t, 1)[0]
		if p.Queue != "new" || !strings.Contains(p.ParkedFor, "(max_age)") {
			t.Errorf("parked as %+v", p)
		}
		old.none(100 * time.Millisecond)
	})
}
