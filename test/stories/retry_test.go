package stories_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

const threeAttempts = `policies: [{name: p, queues: ["*"], attempts: 3, backoff: [200ms, 400ms], jitter: none}]`

// ways are where a message waits: in the store, and in RabbitMQ in each way that these brokers have.
var ways = []struct {
	name, queue, policy string
	waits               []time.Duration // as the way rounds them
}{
	{retry.InStore, "classic", `queues: ["*"], attempts: 3, backoff: [200ms, 400ms], jitter: none`, []time.Duration{200 * time.Millisecond, 400 * time.Millisecond}},
	{retry.InStore, "quorum", `queues: ["*"], attempts: 3, backoff: [200ms, 400ms], jitter: none`, []time.Duration{200 * time.Millisecond, 400 * time.Millisecond}},
	{"levels", "quorum", `queues: [orders], attempts: 3, backoff: [150ms, 400ms], wait: {levels: [200ms, 500ms]}`, []time.Duration{200 * time.Millisecond, 500 * time.Millisecond}},
	{"fixed", "quorum", `queues: [orders], attempts: 3, backoff: {fixed: 200ms}, wait: {fixed: 300ms}`, []time.Duration{300 * time.Millisecond, 300 * time.Millisecond}},
	{"dynamic", "quorum", `queues: [orders], attempts: 3, backoff: [150ms, 400ms], jitter: none, wait: dynamic`, []time.Duration{200 * time.Millisecond, 400 * time.Millisecond}},
	{"message-ttl", "quorum", `queues: [orders], attempts: 3, backoff: {fixed: 200ms}, wait: message-ttl`, []time.Duration{200 * time.Millisecond, 200 * time.Millisecond}},
	{"binary", "quorum", `queues: [orders], attempts: 3, backoff: [150ms, 400ms], jitter: none, wait: {binary: 100ms}`, []time.Duration{200 * time.Millisecond, 400 * time.Millisecond}},
}

// A message waits where its policy says, and nowhere else. It comes back as it was, not early, with its
// attempts counted, and is parked after the last; a person replays it from there.
func TestAFailedMessageIsRetriedAndParkedAtTheEnd(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name+" "+way.queue, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				deadLettered(v, "orders", way.queue)
				v.Exchange("shop", "topic")
				must(t, v.Channel().QueueBind("orders", "order.#", "shop", false, nil))
				s := start(t, v, "policies: [{name: p, "+way.policy+"}]").ready(t)
				c := v.ConsumeMany("orders")
				sent := brokertest.EveryProperty()
				before := time.Now()
				v.Publish("shop", "order.eu", sent)
				failed := reject(t, c.Next())
				inStore, id := way.name == retry.InStore, ""
				for i, wait := range way.waits {
					if e := s.wait(t, retry.Waiting); e.Way != way.name || e.Delay < wait || !inStore && e.Delay > wait || e.Instead != "" {
						t.Errorf("attempt %d waits as %+v; want %s with %s", i+1, e, way.name, wait)
					}
					d := c.Next()
					if early := failed.Add(wait); time.Now().Before(early) {
						t.Errorf("attempt %d came %s early", i+2, time.Until(early))
					}
					if inStore && (d.RoutingKey != "order.eu" || d.Exchange != wire.RetryExchange("orders")) {
						t.Errorf("retried through %q with routing key %q", d.Exchange, d.RoutingKey)
					}
					ours, rest := amqp.Table{}, amqp.Table{}
					for k, val := range d.Headers {
						switch {
						case strings.HasPrefix(k, "x-redrive-"):
							ours[k] = val
						case inStore && k == "x-delivery-count": // the broker's own, on quorum queues
						case !inStore && slices.Contains([]string{"x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
							"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason"}, k): // its wait is a death to RabbitMQ
						default:
							rest[k] = val
						}
					}
					expect.Equal(t, cmp.Diff(brokertest.EveryHeader(), rest), "", "headers (-published +retried):\n")
					properties := sent
					properties.Headers, properties.UserId, properties.Expiration = nil, "", "" // the user is in our header
					expect.Equal(t, cmp.Diff(properties, brokertest.Published(&d)), "",
						"properties (-published +retried):\n")
					firstFailed, _ := ours[wire.HeaderFirstFailed].(time.Time)
					if firstFailed.Before(before.Truncate(time.Second)) || firstFailed.After(time.Now()) {
						t.Errorf("first failed: %v", firstFailed)
					}
					if id == "" {
						id, _ = ours[wire.HeaderID].(string)
					}
					expect.Err(t, errOf(uuid.Parse(id)), nil, "id")
					want := amqp.Table{
						wire.HeaderID: id, wire.HeaderAttempt: int64(i + 1), wire.HeaderQueue: "orders",
						wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "order.eu", wire.HeaderFirstFailed: firstFailed,
						wire.HeaderReason: "rejected", wire.HeaderUserID: "guest",
					}
					expect.Equal(t, cmp.Diff(want, ours), "", "our headers (-want +got):\n")
					if q := s.kept(t, "orders"); !inStore && (q.Waiting != 0 || q.Way != way.name) {
						t.Errorf("the service has %+v", q)
					}
					failed = reject(t, d)
				}
				p := s.WaitParked(t, 1)[0]
				if p.ID != id || p.Attempt != 3 || p.Queue != "orders" || p.Exchange != "shop" || p.RoutingKey != "order.eu" || p.Size != 4 {
					t.Errorf("parked as %+v", p)
				}
				c.Nothing()
				expect.Equal(t, s.Replay(t, "id:"+id), 1, "were replayed")
				if d := c.Ack(); d.Headers[wire.HeaderID] != id || d.Headers[wire.HeaderAttempt] != int64(0) || d.Headers[wire.HeaderReplays] != int64(1) ||
					d.Headers[wire.HeaderUserID] != "guest" {
					t.Errorf("replayed with headers %v", d.Headers)
				}
				expect.Equal(t, len(s.Parked(t)), 0, "it is parked still")
			})
		})
	}
}

// What consumers report themselves: the error travels, the wish for a delay
// counts within the policy, and a report enrols no queue.
func TestAReportedFailure(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("named", nil)
		v.Queue("globbed.queue", nil)
		s := run(t, servertest.Config(t, v, `policies: [{name: p, queues: [named, "globbed.*"], attempts: 3, backoff: [100ms, 1s], jitter: none, no_consumer: retry}]`)).ready(t)
		c := v.ConsumeMany("named")
		report := func(queue string, delay any) {
			v.Publish(wire.ExchangeFailures, queue, amqp.Publishing{Expiration: "60000", Body: []byte("x"), Headers: amqp.Table{
				wire.HeaderError: "no \x1b[31mstock", wire.HeaderDelay: delay, wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "k"}})
		}
		for _, w := range []struct {
			delay any
			least time.Duration
		}{{int64(600), 600 * time.Millisecond}, {int32(3_600_000), time.Second}, {600.0, 600 * time.Millisecond}, {float32(599.5), 600 * time.Millisecond}, {"600", 600 * time.Millisecond}, {"soon", 100 * time.Millisecond}, {int64(-5), 100 * time.Millisecond}} {
			began := time.Now()
			report("named", w.delay)
			d := c.Next()
			if waited := time.Since(began); waited < w.least {
				t.Errorf("with a wish of %v it waited %s, want at least %s", w.delay, waited, w.least)
			}
			if d.Headers[wire.HeaderError] != "no \x1b[31mstock" || d.Headers[wire.HeaderReason] != "reported" || d.RoutingKey != "k" ||
				d.Headers[wire.HeaderDelay] != nil || d.Expiration != "" || d.Headers[wire.HeaderExchange] != "shop" {
				t.Errorf("retried as %+v", d)
			}
			must(t, d.Ack(false))
		}
		if n, warned := s.metric(t, `redrive_ignored_headers_total{header="x-redrive-delay",queue="named"}`), strings.Count(s.Log.String(), "is no number"); n != "2" || warned != 1 {
			t.Errorf("%s ignored headers are counted, and %d are in the log", n, warned)
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
		expect.Equal(t, v.Depth("globbed.queue"), 0, "a report put … messages into a queue that is not enrolled")
	})
}

// The first rule that matches a failure decides, after what the consumer says itself; what no rule matches is
// the policy's.
func TestRulesDecideByTheError(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		for _, q := range []string{"orders", "slow"} {
			v.Queue(q, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		}
		s := start(t, v, `policies:
  - name: p
    queues: [orders]
    attempts: 3
    backoff: {fixed: 100ms}
    jitter: none
    no_consumer: retry
    rules:
      - {name: bad data, when: 'error:"invalid IBAN" or exception:ValidationError', then: park}
      - {when: 'error:/time.?out|deadlock/ attempt:<2', then: {backoff: [300ms], attempts: 9}}
      - {when: header.tenant:trial, then: discard}
      - {when: body.kind:bulk, then: {forward: {queue: slow}}}
      - {when: reason:expired, then: {delay: 50ms}}
`).ready(t)
		c := v.ConsumeMany("orders")
		report := func(body, text string, h amqp.Table) {
			headers := amqp.Table{wire.HeaderError: text}
			maps.Copy(headers, h)
			v.Publish(wire.ExchangeFailures, "orders", amqp.Publishing{Body: []byte(body), ContentType: "application/json", Headers: headers})
		}
		report(`{"n":1}`, "invalid IBAN", nil)
		report(`{"n":2}`, "Shop.ValidationError: no name of 4711", nil)
		report(`{"n":3}`, "timeout", amqp.Table{wire.HeaderPark: "no such customer", "tenant": "trial"})
		for _, p := range s.WaitParked(t, 3) {
			switch {
			case p.Rule == "bad data" && p.ParkedFor == `rule "bad data" of policy "p" decided`:
			case p.Rule == "" && p.ParkedFor == "its consumer parked it: no such customer":
			default:
				t.Errorf("parked as %+v", p)
			}
		}
		// The rule says when it is retried first; then it matches no more.
		began := time.Now()
		report(`{"n":4}`, "read time out", nil)
		d := c.Next()
		if waited := time.Since(began); waited < 300*time.Millisecond {
			t.Errorf("it waited %s", waited)
		}
		reject(t, d)
		d = c.Next()
		expect.Equal(t, d.Headers[wire.HeaderAttempt], any(int64(2)), "the second attempt's header")
		reject(t, d)
		brokertest.Eventually(t, "the policy parks it after its own 3 attempts", func() bool { return s.kept(t, "orders").Parked == 4 })
		// What is discarded and forwarded by rules; bodies are decoded.
		report(`{"n":5}`, "boom", amqp.Table{"tenant": "trial"})
		report(`{"n":6,"kind":"bulk"}`, "boom", nil)
		if d := v.ConsumeMany("slow").Next(); string(d.Body) != `{"n":6,"kind":"bulk"}` {
			t.Errorf("forwarded: %s", d.Body)
		}
		brokertest.Eventually(t, "one is discarded", func() bool { return s.metric(t, `redrive_discarded_total{queue="orders"}`) == "1" })
		if n := s.metric(t, `redrive_rule_matches_total{policy="p",rule="bad data"}`); n != "2" {
			t.Errorf("the rule decided about %s", n)
		}
		all, err := s.Client.Policies(t.Context())
		must(t, err)
		if p := all.Policies[0]; p.Failures != 8 || p.NoError != 2 || p.Rules[0].Matches != 2 || p.Rules[3].Matches != 1 {
			t.Errorf("counted: %+v", p)
		}
		// What other rules would do with what is parked now; and one is made from a group.
		file := filepath.Join(t.TempDir(), "new.yaml")
		must(t, os.WriteFile(file, []byte("policies: [{name: new, queues: [orders], rules: [{when: reason:reported, notify: urgent}, {when: exception:ValidationError, then: discard}, {when: 'body.n:4', then: park}, {when: 'error:none', then: park}], retention: 365d}]"), 0o600))
		var out, errs bytes.Buffer
		if code := cli.Run(t.Context(), []string{"rules", "try", "--config", file, "--address", s.Client.Addr, "-o", "json"}, &out, &errs, cli.Build{}); code != 0 {
			t.Fatalf("rules try exits with %d: %s", code, errs.String())
		}
		var tried struct {
			Messages int
			Rules    []struct {
				Rule     string
				Messages int
				Example  string
			}
		}
		must(t, json.Unmarshal(out.Bytes(), &tried))
		for i, want := range []int{3, 1, 1, 0, 2, 0, 0} {
			if r := tried.Rules[i]; r.Messages != want || (r.Example == "") != (want == 0) {
				t.Errorf("rule %d is %+v, want %d messages", i, r, want)
			}
		}
		groups, err := s.Client.Groups(t.Context(), "error:name")
		must(t, err)
		if want := `  - when: 'exception:"Shop.ValidationError" error:"no name of"'`; len(groups.Groups) != 1 || !strings.Contains(groups.Groups[0].Rule, want) {
			t.Errorf("the groups' rules: %+v", groups)
		}
	})
}

func TestReasonsAreFilteredByPolicy(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies:
  - {name: loose, queues: [loose], backoff: {fixed: 50ms}, reasons: [expired], no_consumer: retry}
  - {name: rest, queues: ["*"], backoff: {fixed: 50ms}, jitter: none}`).ready(t)
		deadLettered(v, "plain", "classic")
		deadLettered(v, "loose", "classic")
		v.Publish("", "plain", amqp.Publishing{Expiration: "1"})
		p := s.WaitParked(t, 1)[0]
		if p.Queue != "plain" || p.Reason != "expired" || !strings.Contains(p.ParkedFor, "does not retry") {
			t.Errorf("parked as %+v", p)
		}
		v.Publish("", "loose", amqp.Publishing{Expiration: "1", Body: []byte("x")})
		brokertest.Eventually(t, "an expired message comes back without its expiration", func() bool { return v.Depth("loose") == 1 })

		v.Queue("limited", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive", "x-delivery-limit": int64(1)})
		c := v.ConsumeMany("limited")
		v.Publish("", "limited", amqp.Publishing{})
		for range 2 {
			must(t, c.Next().Reject(true))
		}
		if d := c.Next(); d.Headers[wire.HeaderReason] != "delivery_limit" || d.Headers[wire.HeaderAttempt] != int64(1) {
			t.Errorf("after the delivery limit: %v", d.Headers)
		}
	})
}

// A handler publishes what it derives from a message with the headers of its delivery, as frameworks
// do. Each of those fails for the first time, with an id of its own, wherever it was published.
func TestADerivedMessageIsAnother(t *testing.T) {
	for _, wait := range []string{"", ", wait: dynamic"} { // in the store, and in RabbitMQ
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
			start(t, v, `policies: [{name: p, queues: [orders, other], attempts: 2, backoff: {fixed: 200ms}, jitter: none, no_consumer: retry`+wait+`}]`).ready(t)
			work := map[string]*brokertest.Consumer{}
			for _, q := range []string{"orders", "other"} {
				deadLettered(v, q, "quorum")
				work[q] = v.ConsumeMany(q)
			}
			v.Exchange("redrive.retry.orders", "fanout", "orders")
			v.Publish("", "orders", amqp.Publishing{Body: []byte("order")})
			reject(t, work["orders"].Next())
			order := work["orders"].Ack()
			ids := map[any]bool{order.Headers[wire.HeaderID]: true}
			for i := range 10 {
				for _, to := range [][2]string{{"", "orders"}, {"", "other"}, {"redrive.retry.orders", "orders"}} {
					v.Publish(to[0], to[1], amqp.Publishing{Body: fmt.Appendf(nil, "derived %s %s %d", to[0], to[1], i), Headers: order.Headers})
					d := work[to[1]].Next()
					if i%2 == 0 {
						must(t, d.Reject(false))
					} else {
						v.Publish(wire.ExchangeFailures, to[1], amqp.Publishing{Body: d.Body, Headers: d.Headers}) // as a client does that leaves them in
						must(t, d.Ack(false))
					}
					again := work[to[1]].Take(string(d.Body))
					if id := again.Headers[wire.HeaderID]; ids[id] || again.Headers[wire.HeaderAttempt] != int64(1) || again.Headers[wire.HeaderQueue] != to[1] {
						t.Errorf("%s came back with headers %v", d.Body, again.Headers)
					} else {
						ids[id] = true
					}
				}
			}
		})
	}
}

func TestAfterTheLastAttemptThePolicyDecides(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies:
  - {name: a, queues: [discarded], attempts: 1, exhausted: discard}
  - {name: b, queues: [forwarded], attempts: 1, exhausted: {forward: {queue: graveyard}}}
  - {name: c, queues: [astray], attempts: 1, exhausted: {forward: {exchange: nowhere, routing_key: k}}}`).ready(t)
		v.Queue("graveyard", nil)
		for _, q := range []string{"discarded", "forwarded", "astray", "other"} {
			deadLettered(v, q, "classic")
			v.Publish("", q, amqp.Publishing{Body: []byte(q)})
			reject(t, v.ConsumeMany(q).Next())
		}
		if d := v.ConsumeMany("graveyard").Next(); string(d.Body) != "forwarded" || d.Headers[wire.HeaderAttempt] != int64(1) || d.Headers["x-death"] != nil {
			t.Errorf("forwarded as %+v", d)
		}
		for _, p := range s.WaitParked(t, 2) {
			want := map[string]string{"astray": `cannot be forwarded to exchange "nowhere"`, "other": `no policy allows the queue "other"`}[p.Queue]
			if want == "" || !strings.Contains(p.ParkedFor, want) {
				t.Errorf("parked as %+v", p)
			}
		}
		brokertest.Eventually(t, "nothing waits", func() bool {
			return s.kept(t, "discarded").Waiting+s.kept(t, "forwarded").Waiting+s.kept(t, "astray").Waiting == 0
		})
	})
}

const byPattern = `policies: [{name: p, queues: ["orders.*"], attempts: 3, backoff: {fixed: 50ms}, jitter: none, no_consumer: retry}]`

// reported publishes a failure of a queue's as a consumer does.
func reported(t *testing.T, v *brokertest.VHost, queue string) {
	t.Helper()
	v.Publish(wire.ExchangeFailures, queue, amqp.Publishing{Body: []byte(queue), Headers: amqp.Table{wire.HeaderError: "no stock"}})
}

// A queue whose effective dead-letter exchange is redrive, by its argument or a policy of
// RabbitMQ's, consents: its first report is retried. One that has another is left alone.
func TestAReportIsRetriedWhereTheQueueDeadLettersToRedrive(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := run(t, servertest.Config(t, v, byPattern)).ready(t)
		v.Policy("theirs", `^orders\.policy`, 0, map[string]any{"dead-letter-exchange": "redrive"})
		v.Policy("other", `^orders\.other`, 0, map[string]any{"dead-letter-exchange": "elsewhere"})
		consents := []string{"orders.argument.classic", "orders.argument.quorum", "orders.policy.classic", "orders.policy.quorum"}
		for _, q := range append(consents, "orders.other.classic", "orders.none.quorum") {
			args := amqp.Table{"x-queue-type": q[strings.LastIndex(q, ".")+1:]}
			if strings.Contains(q, "argument") {
				args["x-dead-letter-exchange"] = "redrive"
			}
			v.Queue(q, args)
			reported(t, v, q)
		}
		for _, q := range consents {
			if d := v.ConsumeMany(q).Next(); string(d.Body) != q || d.Headers[wire.HeaderAttempt] != int64(1) {
				t.Errorf("%q came back to %s with attempt %v", d.Body, q, d.Headers[wire.HeaderAttempt])
			}
		}
		reported(t, v, "orders.invented")
		for _, p := range s.WaitParked(t, 3) {
			if slices.Contains(consents, p.Queue) || !strings.Contains(p.ParkedFor, "is not enrolled") {
				t.Errorf("%q is parked because %s", p.Queue, p.ParkedFor)
			}
		}
		// Its owner thinks better of it: a replay sees that.
		v.Policy("late", `^orders\.none`, 0, map[string]any{"dead-letter-exchange": "redrive"})
		expect.Equal(t, s.Replay(t, "queue:orders.none.quorum"), 1, "were replayed")
		v.ConsumeMany("orders.none.quorum").Next()
	})
}

// While the management API cannot be asked a report waits, its attempt intact; it is shown
// everywhere, with the remedy, and goes on by itself.
func TestAReportWaitsWhileConsentIsUnknown(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		c := configured(t, v, byPattern, t.TempDir())
		asService := func() string {
			u, err := url.Parse(v.Management)
			must(t, err)
			u.User = url.UserPassword(v.ServiceUser(), brokertest.ServicePassword)
			return u.String()
		}
		tag := func(tags string) {
			v.Must(http.MethodPut, "users/"+v.ServiceUser(), map[string]any{"password": brokertest.ServicePassword, "tags": tags})
		}
		for i, way := range []struct {
			management, says string
			end              func(*config.Config)
		}{
			{asService(), "rabbitmqctl set_user_tags '" + v.ServiceUser() + "' management", nil},
			{"http://u:s3cretnot@127.0.0.1:1", "broker.management", func(c *config.Config) { c.Broker.Management = v.Management }},
			{"", "set broker.management", func(c *config.Config) { c.Broker.Management = v.Management }},
		} {
			queue := fmt.Sprint("orders.", i)
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
			c.Broker.Management = way.management
			s := run(t, c).ready(t)
			reported(t, v, queue)
			brokertest.Eventually(t, "the service says that the report waits", func() bool {
				all := strings.Join(s.Problems(), "\n")
				return strings.Contains(all, "queue "+queue+": ") && strings.Contains(all, "reports of failures wait") && strings.Contains(all, way.says)
			})
			if q := s.kept(t, queue); q.Waiting != 1 || q.Parked != 0 || !strings.Contains(q.Unreachable, way.says) {
				t.Errorf("the queue is %+v", q)
			}
			if code, _ := s.get(t, "/readyz"); code != http.StatusOK {
				t.Errorf("%d for reports of one queue, which anybody may publish who may report", code)
			}
			if way.end == nil {
				tag("management")
			} else { // it is durable, too
				must(t, s.Stop())
				way.end(c)
				s = run(t, c)
			}
			expect.Equal(t, v.ConsumeMany(queue).Next().Headers[wire.HeaderAttempt], any(int64(1)), "came back with attempt")
			s.ready(t)
			must(t, s.Stop())
			tag("")
		}
	})
}

// However many names reports invent, the management API is not asked for each.
func TestInventedNamesAreNotLookedUpEach(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		const names = 200
		api, err := url.Parse(v.Management)
		must(t, err)
		var asked atomic.Int64
		counting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			httputil.NewSingleHostReverseProxy(&url.URL{Scheme: api.Scheme, Host: api.Host}).ServeHTTP(w, r)
		}))
		defer counting.Close()
		c := servertest.Config(t, v, byPattern)
		through := *api
		through.Scheme, through.Host = "http", strings.TrimPrefix(counting.URL, "http://")
		c.Broker.Management = through.String()
		s := run(t, c).ready(t)
		for i := range names {
			v.Publish(wire.ExchangeFailures, fmt.Sprint("orders.invented.", i), amqp.Publishing{})
		}
		s.WaitParked(t, names)
		if n := asked.Load(); n == 0 || n > names/2 {
			t.Errorf("%d questions for %d names", n, names)
		}
	})
}

// What somebody deletes of Redrive's own is declared again within seconds, with its
// bindings, and counted; what fails afterwards comes back.
func TestDeletedExchangesAndQueuesAreDeclaredAgain(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, soon).ready(t)
		deadLettered(v, "work", "quorum")
		work := v.ConsumeMany("work")
		comesBack := func() {
			t.Helper()
			v.Publish("", "work", amqp.Publishing{})
			reject(t, work.Next())
			expect.Equal(t, work.Ack().Headers[wire.HeaderAttempt], any(int64(1)), "came back with attempt")
		}
		comesBack()
		for _, deleted := range []string{"exchange " + wire.ExchangeDeadLetters, "exchange " + wire.ExchangeFailures, "exchange " + wire.ExchangeQuarantine,
			"queue " + wire.QueueQuarantine, "queue " + wire.QueueIntake, "exchange " + wire.ExchangeParked, "queue " + wire.QueueParked} {
			what, name, _ := strings.Cut(deleted, " ")
			path := what + "s/" + v.Name + "/" + name
			v.Must(http.MethodDelete, path, nil)
			var uncounted time.Time // since when it is there again
			brokertest.Eventually(t, deleted+" is declared again, and counted", func() bool {
				switch there := v.API().Call(t.Context(), http.MethodGet, path, nil, nil) == nil; {
				case s.metric(t, `redrive_declared_again_total{name="`+deleted+`"}`) != "0":
					return true
				case !there:
					uncounted = time.Time{}
				case uncounted.IsZero():
					uncounted = time.Now()
				case time.Since(uncounted) > 10*time.Second:
					// It was deleted between the service's look for it and the declaration that follows, which counts nothing.
					_ = v.API().Call(t.Context(), http.MethodDelete, path, nil, nil)
				}
				return false
			})
		}
		s.ready(t)
		comesBack()
		bindings := "bindings/" + v.Name + "/e/" + wire.ExchangeDeadLetters + "/q/" + wire.QueueIntake
		v.Must(http.MethodDelete, bindings+"/~", nil)
		brokertest.Eventually(t, "the binding is there again", func() bool {
			var all []management.Binding
			return v.API().Call(context.Background(), http.MethodGet, bindings, nil, &all) == nil && len(all) == 1
		})
		comesBack()
	})
}

// A policy or operator policy for every queue can beat the intake's own delivery limit:
// the one in force is judged. So is what they do to our other queues and exchanges.
func TestPoliciesOfOthersAreProblems(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		// An older version made this one, without an alternate exchange of its own.
		v.Exchange(wire.RetryExchange("old"), "fanout")
		v.Must(http.MethodPut, "policies/"+v.Name+"/alternate", management.Policy{Pattern: ".*", ApplyTo: "exchanges", Definition: map[string]any{"alternate-exchange": "theirs"}})
		brokertest.Eventually(t, "the policy applies", func() bool {
			x, err := v.API().Exchange(t.Context(), wire.RetryExchange("old"))
			return err == nil && x.Policy == "alternate"
		})
		s := run(t, servertest.Config(t, v, soon))
		has := func(problem string) func() bool {
			return func() bool { return strings.Contains(strings.Join(s.Problems(), "\n"), problem) }
		}
		told := func(limit string) func() bool { return has("delivery limit: of redrive.intake is " + limit) }
		brokertest.Eventually(t, "the alternate exchange is told", has("policies of others: a RabbitMQ policy (alternate) puts alternate-exchange: theirs on our exchange redrive.retry.old (redrive doctor"))
		brokertest.Eventually(t, "it is ready, and says so", func() bool {
			code, text := s.get(t, "/readyz")
			return code == http.StatusOK && strings.Contains(text, "redrive.retry.old")
		})
		v.Must(http.MethodDelete, "policies/"+v.Name+"/alternate", nil)
		v.Policy("everything", ".*", 0, map[string]any{"delivery-limit": 7})
		brokertest.Eventually(t, "the policy's limit is told", told("7, by the policies everything"))
		v.Must(http.MethodPut, "operator-policies/"+v.Name+"/operators", map[string]any{"pattern": ".*", "apply-to": "queues", "definition": map[string]any{"delivery-limit": 3}})
		brokertest.Eventually(t, "the operator policy's limit is told", told("3, by the policies everything, operators"))
		v.Must(http.MethodDelete, "operator-policies/"+v.Name+"/operators", nil)
		v.Must(http.MethodDelete, "policies/"+v.Name+"/everything", nil)
		s.ready(t)
	})
}

// Two services with stores of their own on one virtual host take a part each: both say so,
// and no longer once one has ended.
func TestTwoServicesOnOneVirtualHostAreReported(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		one, other := start(t, v, soon), start(t, v, soon)
		for _, s := range []*service{one, other} {
			brokertest.Eventually(t, "it says that there is another", func() bool {
				return strings.Contains(strings.Join(s.Problems(), "\n"), "another service: redrive.intake has 2 consumers")
			})
		}
		must(t, other.Stop())
		one.ready(t)
	})
}
