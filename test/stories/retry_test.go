package stories_test

import (
	"context"
	"encoding/json"
	"errors"
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

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

const threeAttempts = `policies: [{name: p, queues: ["*"], attempts: 3, backoff: [200ms, 400ms], jitter: none}]`

// ways are where a message waits: in the store, and in RabbitMQ in each way that these brokers have.
var ways = []struct {
	name, queue, policy string
	waits               []time.Duration // as the way rounds them
}{
	{retry.InStore, "classic", `queues: ["*"], attempts: 3, backoff: [200ms, 400ms], jitter: none`,
		[]time.Duration{200 * time.Millisecond, 400 * time.Millisecond}},
	{retry.InStore, "quorum", `queues: ["*"], attempts: 3, backoff: [200ms, 400ms], jitter: none`,
		[]time.Duration{200 * time.Millisecond, 400 * time.Millisecond}},
	{"levels", "quorum", `queues: [orders], attempts: 3, backoff: [150ms, 400ms], wait: {levels: [200ms, 500ms]}`,
		[]time.Duration{200 * time.Millisecond, 500 * time.Millisecond}},
	{"fixed", "quorum", `queues: [orders], attempts: 3, backoff: {fixed: 200ms}, wait: {fixed: 300ms}`,
		[]time.Duration{300 * time.Millisecond, 300 * time.Millisecond}},
	{"dynamic", "quorum", `queues: [orders], attempts: 3, backoff: [150ms, 400ms], jitter: none, wait: dynamic`,
		[]time.Duration{200 * time.Millisecond, 400 * time.Millisecond}},
	{"message-ttl", "quorum", `queues: [orders], attempts: 3, backoff: {fixed: 200ms}, wait: message-ttl`,
		[]time.Duration{200 * time.Millisecond, 200 * time.Millisecond}},
	{"binary", "quorum", `queues: [orders], attempts: 3, backoff: [150ms, 400ms], jitter: none, wait: {binary: 100ms}`,
		[]time.Duration{200 * time.Millisecond, 400 * time.Millisecond}},
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
					if e := s.wait(t, retry.Waiting); e.Way != way.name || e.Delay < wait || !inStore &&
						e.Delay > wait || e.Instead != "" {
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
						case !inStore && slices.Contains([]string{"x-death", "x-first-death-exchange",
							"x-first-death-queue", "x-first-death-reason",
							"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason"},
							k): // its wait is a death to RabbitMQ
						default:
							rest[k] = val
						}
					}
					expect.Equal(t, cmp.Diff(brokertest.EveryHeader(), rest), "", "headers (-published +retried):\n")
					properties := sent
					properties.Headers, properties.UserId, properties.Expiration = nil, "",
						"" // the user is in our header
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
						wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "order.eu",
						wire.HeaderFirstFailed: firstFailed,
						wire.HeaderReason:      "rejected", wire.HeaderUserID: "guest",
					}
					expect.Equal(t, cmp.Diff(want, ours), "", "our headers (-want +got):\n")
					if q := s.kept(t, "orders"); !inStore && (q.Waiting != 0 || q.Way != way.name) {
						t.Errorf("the service has %+v", q)
					}
					failed = reject(t, d)
				}
				p := s.WaitParked(t, 1)[0]
				if p.ID != id || p.Attempt != 3 || p.Queue != "orders" || p.Exchange != "shop" ||
					p.RoutingKey != "order.eu" || *p.Size != 4 {
					t.Errorf("parked as %+v", p)
				}
				c.Nothing()
				expect.Equal(t, s.Replay(t, "id:"+id), 1, "were replayed")
				if d := c.Ack(); d.Headers[wire.HeaderID] != id || d.Headers[wire.HeaderAttempt] != int64(0) ||
					d.Headers[wire.HeaderReplays] != int64(1) ||
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
		s := run(t, servertest.Config(t, v,
			`policies: [{name: p, queues: [named, "globbed.*"], attempts: 3, backoff: [100ms, 1s], jitter: none, no_consumer: retry}]`)).ready(t)
		c := v.ConsumeMany("named")
		report := func(queue string, delay any) {
			v.Publish(wire.ExchangeFailures, queue, amqp.Publishing{Expiration: "60000", Body: []byte("x"),
				Headers: amqp.Table{
					wire.HeaderError: "no \x1b[31mstock", wire.HeaderDelay: delay, wire.HeaderExchange: "shop",
					wire.HeaderRoutingKey: "k"}})
		}
		for _, w := range []struct {
			delay any
			least time.Duration
		}{{int64(600), 600 * time.Millisecond}, {int32(3_600_000), time.Second}, {600.0, 600 * time.Millisecond},
			{float32(599.5), 600 * time.Millisecond}, {"600", 600 * time.Millisecond}, {"soon", 100 * time.Millisecond},
			{int64(-5), 100 * time.Millisecond}} {
			began := time.Now()
			report("named", w.delay)
			d := c.Next()
			if waited := time.Since(began); waited < w.least {
				t.Errorf("with a wish of %v it waited %s, want at least %s", w.delay, waited, w.least)
			}
			if d.Headers[wire.HeaderError] != "no \x1b[31mstock" || d.Headers[wire.HeaderReason] != "reported" ||
				d.RoutingKey != "k" ||
				d.Headers[wire.HeaderDelay] != nil || d.Expiration != "" || d.Headers[wire.HeaderExchange] != "shop" {
				t.Errorf("retried as %+v", d)
			}
			must(t, d.Ack(false))
		}
		if n, warned := s.metric(t, `redrive_ignored_headers_total{header="x-redrive-delay",queue="named"}`),
			strings.Count(s.Log.String(), "is no number"); n != "2" || warned != 1 {
			t.Errorf("%s ignored headers are counted, and %d are in the log", n, warned)
		}
		report("globbed.queue", nil) // matched by a pattern only, and never dead-lettered
		report("unknown", nil)
		report("redrive.intake", nil)
		for _, p := range s.WaitParked(t, 3) {
			want := map[string]string{"globbed.queue": "is not enrolled", "unknown": "no policy allows",
				"redrive.intake": "one of Redrive's own"}[p.Queue]
			if want == "" || !strings.Contains(p.ParkedFor, want) {
				t.Errorf("%q is parked because %s", p.Queue, p.ParkedFor)
			}
		}
		s.says(t, "setup of queue globbed.queue: messages were parked, and not because they failed: it is not enrolled")
		s.says(t, "setup of queue unknown: messages were parked, and not because they failed: no policy names it")
		expect.Equal(t, v.Depth("globbed.queue"), 0, "a report put … messages into a queue that is not enrolled")
	})
}

// The first rule that matches a failure decides, after what the consumer says itself; what no rule matches is
// the policy's.
func TestRulesDecideByTheError(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
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
			v.Publish(wire.ExchangeFailures, "orders", amqp.Publishing{Body: []byte(body),
				ContentType: "application/json", Headers: headers})
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
		brokertest.Eventually(t, "the policy parks it after its own 3 attempts", func() bool {
			return s.kept(t, "orders").Parked == 4
		})
		// What is discarded and forwarded by rules; bodies are decoded.
		report(`{"n":5}`, "boom", amqp.Table{"tenant": "trial"})
		report(`{"n":6,"kind":"bulk"}`, "boom", nil)
		if d := v.ConsumeMany("slow").Next(); string(d.Body) != `{"n":6,"kind":"bulk"}` {
			t.Errorf("forwarded: %s", d.Body)
		}
		brokertest.Eventually(t, "one is discarded", func() bool {
			return s.metric(t, `redrive_discarded_total{queue="orders"}`) == "1"
		})
		expect.Equal(t, s.metric(t, `redrive_rule_matches_total{policy="p",rule="bad data"}`), "2",
			"the rule decided about")
		all, err := s.Client.Policies(t.Context())
		must(t, err)
		if p := all.Policies[0]; p.Failures != 8 || p.NoError != 2 || p.Rules[0].Matches != 2 ||
			p.Rules[3].Matches != 1 {
			t.Errorf("counted: %+v", p)
		}
		// What other rules would do with what is parked now; and one is made from a group.
		file := filepath.Join(t.TempDir(), "new.yaml")
		must(t, os.WriteFile(file, []byte("policies: [{name: new, queues: [orders], rules: [{when: reason:reported, notify: urgent}, {when: exception:ValidationError, then: discard}, {when: 'body.n:4', then: park}, {when: 'error:none', then: park}], retention: 365d}]"), 0o600))
		out, code := s.redrive(t, "rules", "try", "--config", file, "-o", "json")
		expect.Equal(t, code, 0, "rules try says %s, and exits with", out)
		var tried struct {
			Messages int
			Rules    []struct {
				Rule     string
				Messages int
				Example  string
			}
		}
		must(t, json.Unmarshal([]byte(out), &tried))
		for i, want := range []int{3, 1, 1, 0, 2, 0, 0} {
			if r := tried.Rules[i]; r.Messages != want || (r.Example == "") != (want == 0) {
				t.Errorf("rule %d is %+v, want %d messages", i, r, want)
			}
		}
		groups, err := s.Client.Groups(t.Context(), "error:name", "")
		must(t, err)
		if want := `  - when: 'exception:"Shop.ValidationError" error:"no name of"'`; len(groups.Groups) != 1 ||
			!strings.Contains(groups.Groups[0].Rule, want) {
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
		brokertest.Eventually(t, "an expired message comes back without its expiration", func() bool {
			return v.Depth("loose") == 1
		})

		v.Queue("limited", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive",
			"x-delivery-limit": int64(1)})
		c := v.ConsumeMany("limited")
		v.Publish("", "limited", amqp.Publishing{})
		for range 2 {
			must(t, c.Next().Reject(true))
		}
		if d := c.Next(); d.Headers[wire.HeaderReason] != "delivery_limit" ||
			d.Headers[wire.HeaderAttempt] != int64(1) {
			t.Errorf("after the delivery limit: %v", d.Headers)
		}
	})
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
		if d := v.ConsumeMany("graveyard").Next(); string(d.Body) != "forwarded" ||
			d.Headers[wire.HeaderAttempt] != int64(1) || d.Headers["x-death"] != nil {
			t.Errorf("forwarded as %+v", d)
		}
		for _, p := range s.WaitParked(t, 2) {
			want := map[string]string{"astray": `cannot be forwarded to exchange "nowhere"`,
				"other": `no policy allows the queue "other"`}[p.Queue]
			if want == "" || !strings.Contains(p.ParkedFor, want) {
				t.Errorf("parked as %+v", p)
			}
		}
		s.says(t, "setup of queue astray: messages were parked, and not because they failed: the target of its forwards")
		s.says(t, "setup of queue other: messages were parked, and not because they failed: no policy names it")
		brokertest.Eventually(t, "nothing waits", func() bool {
			return s.kept(t, "discarded").Waiting+s.kept(t, "forwarded").Waiting+s.kept(t, "astray").Waiting == 0
		})
	})
}

const byPattern = `policies: [{name: p, queues: ["orders.*"], attempts: 3, backoff: {fixed: 50ms}, jitter: none, no_consumer: retry}]`

// reported publishes a failure of a queue's as a consumer does.
func reported(t *testing.T, v *brokertest.VHost, queue string) {
	t.Helper()
	v.Publish(wire.ExchangeFailures, queue, amqp.Publishing{Body: []byte(queue),
		Headers: amqp.Table{wire.HeaderError: "no stock"}})
}

// A queue whose effective dead-letter exchange is redrive, by its argument or a policy of
// RabbitMQ's, consents: its first report is retried. One that has another is left alone.
func TestAReportIsRetriedWhereTheQueueDeadLettersToRedrive(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		s := run(t, servertest.Config(t, v, byPattern)).ready(t)
		v.Policy("theirs", `^orders\.policy`, 0, map[string]any{"dead-letter-exchange": "redrive"})
		v.Policy("other", `^orders\.other`, 0, map[string]any{"dead-letter-exchange": "elsewhere"})
		consents := []string{"orders.argument.classic", "orders.argument.quorum", "orders.policy.classic",
			"orders.policy.quorum"}
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
			v.Must(http.MethodPut, "users/"+v.ServiceUser(), map[string]any{"password": brokertest.ServicePassword,
				"tags": tags})
		}
		for i, way := range []struct {
			management, says string
			end              func(*config.Config)
		}{
			{asService(), "rabbitmqctl set_user_tags '" + v.ServiceUser() + "' management", nil},
			{"http://u:s3cretnot@127.0.0.1:1", "broker.management", func(c *config.Config) {
				c.Broker.Management = v.Management
			}},
			{"", "set broker.management", func(c *config.Config) { c.Broker.Management = v.Management }},
		} {
			queue := fmt.Sprint("orders.", i)
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
			c.Broker.Management = way.management
			s := run(t, c).ready(t)
			reported(t, v, queue)
			s.says(t, "queue "+queue+": ", "reports of failures wait", way.says)
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
			expect.Equal(t, v.ConsumeMany(queue).Next().Headers[wire.HeaderAttempt], any(int64(1)),
				"came back with attempt")
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
		for _, deleted := range []string{"exchange " + wire.ExchangeDeadLetters, "exchange " + wire.ExchangeFailures,
			"exchange " + wire.ExchangeQuarantine,
			"queue " + wire.QueueQuarantine, "queue " + wire.QueueIntake, "exchange " + wire.ExchangeParked,
			"queue " + wire.QueueParked} {
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
		v.Must(http.MethodPut, "policies/"+v.Name+"/alternate", management.Policy{Pattern: ".*", ApplyTo: "exchanges",
			Definition: map[string]any{"alternate-exchange": "theirs"}})
		brokertest.Eventually(t, "the policy applies", func() bool {
			x, err := v.API().Exchange(t.Context(), wire.RetryExchange("old"))
			return err == nil && x.Policy == "alternate"
		})
		s := run(t, servertest.Config(t, v, soon))
		s.says(t, "policies of others: a RabbitMQ policy (alternate) puts alternate-exchange: theirs on our exchange "+
			"redrive.retry.old (redrive doctor")
		brokertest.Eventually(t, "it is ready, and says so", func() bool {
			code, text := s.get(t, "/readyz")
			return code == http.StatusOK && strings.Contains(text, "redrive.retry.old")
		})
		v.Must(http.MethodDelete, "policies/"+v.Name+"/alternate", nil)
		v.Policy("everything", ".*", 0, map[string]any{"delivery-limit": 7})
		s.says(t, "delivery limit: of redrive.intake is 7, by the policies everything")
		v.Must(http.MethodPut, "operator-policies/"+v.Name+"/operators", map[string]any{"pattern": ".*",
			"apply-to": "queues", "definition": map[string]any{"delivery-limit": 3}})
		s.says(t, "delivery limit: of redrive.intake is 3, by the policies everything, operators")
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
			s.says(t, "another service: redrive.intake has 2 consumers")
		}
		must(t, other.Stop())
		one.ready(t)
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
		{"declared otherwise", levels, func(v *brokertest.VHost) {
			v.Exchange(wire.ExchangeDue, "fanout")
		}, wire.ErrDiffers.Error()},
		{"nacked", levels, func(v *brokertest.VHost) {
			v.Must("PUT", "policies/"+v.Name+"/full", map[string]any{"pattern": "^redrive[.]delay[.]",
				"apply-to": "queues", "definition": map[string]any{"max-length": 0}})
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
				// Its connection may be down for a moment, since RabbitMQ ends that of a wrong declaration.
				brokertest.Eventually(t, "it is ready", func() bool { return len(s.Problems()) == 0 })
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
		s := run(t, servertest.Config(t, v,
			`policies: [{name: p, queues: ["*"], attempts: 9, backoff: {fixed: 100ms}, wait: {levels: [100ms]}}]`)).ready(t)
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

		refused := func(what string, err error) {
			t.Helper()
			var e *amqp.Error
			if !errors.As(err, &e) || e.Code != amqp.AccessRefused {
				t.Errorf("%s: %v; want it refused", what, err)
			}
		}
		for _, exchange := range []string{wire.ExchangeDue, wire.DelayPrefix + "100ms"} {
			ch := v.As(user, "pw").Channel()
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			must(t, ch.Publish(exchange, "secret", false, false, amqp.Publishing{Body: []byte("straight")}))
			refused("publishing to "+exchange, <-closed)
			_, err := v.As(user, "pw").Channel().QueueDeclare("mine.ttl", true, false, false, false,
				amqp.Table{"x-message-ttl": int64(0),
					"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "secret"})
			refused("a queue that dead-letters to "+exchange, err)
		}

		mallory := v.As(user, "pw")
		death := func(queue string) amqp.Table {
			return amqp.Table{"queue": queue, "reason": "rejected", "exchange": wire.ExchangeDue, "count": int64(1),
				"routing-keys": []any{"secret"}, "time": time.Unix(1_700_000_000, 0)}
		}
		for name, forged := range map[string]amqp.Table{
			"a death elsewhere": {"x-death": []any{death("secret")}},
			"a death here":      {"x-death": []any{death("mine")}},
			"our headers": {wire.HeaderQueue: "secret", wire.HeaderExchange: wire.ExchangeDue,
				wire.HeaderRoutingKey: "secret",
				wire.HeaderReason:     "rejected", wire.HeaderParkReason: "x"},
			"copies": {"CC": []any{"mine", "mine"}, "BCC": []any{"mine"}},
			"delay":  {"x-delay": int32(1), wire.HeaderDelay: int64(1)},
		} {
			mallory.Publish("", "mine", amqp.Publishing{Headers: forged, Body: []byte(name)})
			for d := mine.Next(); ; d = mine.Next() {
				if d.Headers[wire.HeaderAttempt] == nil { // the first, and what CC made of it
					reject(t, d)
					continue
				}
				if string(d.Body) != name || d.Exchange != wire.ExchangeDue || d.RoutingKey != "mine" ||
					d.Headers[wire.HeaderQueue] != "mine" {
					t.Errorf("%s: %q came back through %q with %q, headers %v", name, d.Body, d.Exchange, d.RoutingKey,
						d.Headers)
				}
				must(t, d.Ack(false))
				break
			}
		}
		// A report enrols nothing: no binding, no message.
		mallory.Publish(wire.ExchangeFailures, "other", amqp.Publishing{Body: []byte("report")})
		p := s.WaitParked(t, 1)[0]
		if p.Queue != "other" || !strings.Contains(p.ParkedFor, "not enrolled") {
			t.Errorf("parked as %+v", p)
		}
		// Nor does one with that right reach more than what is behind redrive.due.
		v.Grant(user, "^mine.*$", `^(mine.*|amq\.default|redrive\.failures|redrive\.delay\..*)$`, "^mine.*$")
		v.As(user, "pw").Publish(wire.DelayPrefix+"100ms", "other", amqp.Publishing{Body: []byte("past"),
			Headers: amqp.Table{wire.HeaderQueue: "secret"}})
		brokertest.Eventually(t, "it is parked", func() bool { return len(s.Parked(t)) == 2 })
		expect.Equal(t, s.Replay(t, "queue:other"), 2, "were replayed")
		brokertest.Eventually(t, "both are parked again", func() bool {
			all := s.Parked(t)
			return len(all) == 2 && strings.Contains(all[0].ParkedFor, "not enrolled") &&
				strings.Contains(all[1].ParkedFor, "not enrolled")
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
			return strings.HasPrefix(problem(), "forwards of queue orders to queue dead: ") &&
				s.kept(t, "orders").Waiting == stuck
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
		brokertest.Eventually(t, "no problem is left", func() bool {
			return problem() == "" && s.kept(t, "orders").Waiting == 0 && s.metric(t, blocked) == ""
		})
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
		brokertest.Eventually(t, "only what is for the target waits", func() bool {
			return s.kept(t, "orders").Waiting == stuck
		})
		const blocked, paused = `redrive_forward_blocked{queue="orders",target="queue dead"}`,
			`redrive_queue_paused{queue="hangs",why="unreachable"}`
		named := func() (lanes int) {
			for _, p := range s.Problems() {
				if strings.HasPrefix(p, "queue hangs: ") ||
					strings.HasPrefix(p, "forwards of queue orders to queue dead: ") {
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
			return s.kept(t, "orders").Waiting+s.kept(t, "hangs").Waiting == 0 && named() == 0 &&
				s.metric(t, blocked) == "" && s.metric(t, paused) == ""
		})
	})
}

// expire dead-letters n messages of a queue that no one consumes yet.
func expire(t *testing.T, v *brokertest.VHost, queue string, n int) {
	t.Helper()
	v.Queue(queue, amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "redrive"})
	v.PublishMany(queue, n, func(i int) amqp.Publishing {
		return amqp.Publishing{Expiration: "0", Body: fmt.Append(nil, i)}
	})
}

const expiring = `attempts: 9, backoff: {fixed: 100ms}, jitter: none, reasons: [expired, rejected]`

// Messages are retried no faster than the policy says, in due order. (In fake time, both ways:
// TestTheRateIsExactOverAMinute.)
func TestRetriesKeepTheirRate(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		const rate, first, rest = 50, 60, 500
		start(t, v, fmt.Sprintf(`policies: [{name: slow, queues: [slow], no_consumer: retry, %s, rate: %d/s}]`,
			expiring, rate)).ready(t)
		began := time.Now()
		expire(t, v, "slow", first+rest)
		slow := v.ConsumeMany("slow")
		for i := range first + rest {
			d := slow.Next()
			if string(d.Body) != fmt.Sprint(i) {
				t.Fatalf("%s is number %d", d.Body, i)
			}
			must(t, d.Ack(false))
		}
		if took, least := time.Since(began), time.Second*rest/rate; took < least {
			t.Errorf("%d messages took %s at %d a second, the first %d of them at once", first+rest, took, rate, first)
		}
	})
}

// A queue without consumers gets one message back, for which an autoscaler starts a consumer, and
// says that the others wait, over a restart of the service too. It goes on by itself when there is a
// consumer, and a poller gets one message after the other.
func TestAQueueWithoutConsumersGetsAProbe(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		const policies = `policies: [{name: p, queues: ["*"], ` + expiring + `}]`
		s := start(t, v, policies).ready(t)
		expire(t, v, "orders", 20)
		s.wait(t, retry.Retried)
		if e := s.wait(t, retry.NoConsumer, retry.Retried); e.Kind != retry.NoConsumer || e.Queue != "orders" {
			t.Fatalf("%+v", e)
		}
		brokertest.Eventually(t, "it says so", func() bool {
			return strings.Contains(fmt.Sprint(s.Problems()), "consumers of queue orders: none; its retries wait") &&
				s.metric(t, `redrive_queue_paused{queue="orders",why="no_consumer"}`) == "1" &&
				s.metric(t, `redrive_queue_consumers{queue="orders"}`) == "0"
		})
		must(t, s.Stop())
		s = startAt(t, v, policies, s.Data)
		if e := s.wait(t, retry.NoConsumer, retry.Retried); e.Kind != retry.NoConsumer {
			t.Fatalf("after a restart: %+v", e)
		}
		expect.Equal(t, v.Depth("orders"), 1, "are in the queue")
		for range 3 {
			brokertest.Eventually(t, "there is a message for a poller", func() bool {
				_, ok, err := v.Channel().Get("orders", true)
				must(t, err)
				return ok
			})
		}
		c := v.ConsumeMany("orders")
		c.Next()
		bodies(c, 16)
		expect.Equal(t, s.wait(t, retry.ConsumerBack).Queue, "orders", "a consumer is back of")
		s.ready(t)
	})
}

// A breaker opens while the consumer rejects all, lets nothing through but probes,
// and closes when it takes them.
func TestABreakerOpensAndCloses(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: ["*"], `+strings.Replace(expiring, "9", "90", 1)+`, in_flight: 40, settle: 1s,
			breaker: {least: 10, window: 10s, wait: 1s, max_wait: 2s, probes: 2, ramp: 2s}}]`).ready(t)
		const n = 200
		expire(t, v, "orders", n)
		c := v.ConsumeMany("orders")
		var opened, probes int
		for opened < 3 { // it opens on what fails, then on its probes
			select {
			case d := <-c.In:
				if opened > 0 {
					probes++
				}
				reject(t, d)
			case e := <-s.Events:
				if e.Kind == retry.Opened {
					opened++
				}
			case <-time.After(brokertest.Patience):
				t.Fatalf("opened %d times", opened)
			}
		}
		if probes < 2 || probes > 60 { // besides what was under way at first
			t.Errorf("%d came while it was open", probes)
		}
		if got := s.metric(t, `redrive_breaker_opened_total{queue="orders"}`); got < "3" {
			t.Errorf("opened %s times by the metric", got)
		}
		took, last := map[string]bool{}, ""
		for closed := false; !closed || len(took) < n; {
			select {
			case d := <-c.In:
				if took[string(d.Body)] {
					t.Errorf("%s came again after its acknowledgement", d.Body)
				}
				took[string(d.Body)] = true
				last, _ = d.Headers[wire.HeaderID].(string)
				must(t, d.Ack(false))
			case e := <-s.Events:
				closed = closed || e.Kind == retry.Closed
			case <-time.After(brokertest.Patience):
				t.Fatalf("%d of %d came, closed: %t", len(took), n, closed)
			}
		}
		brokertest.Eventually(t, "one that was retried late says why", func() bool {
			m, err := s.Client.Message(t.Context(), last)
			must(t, err)
			return slices.ContainsFunc(m.Timeline, func(f inspect.Step) bool {
				return len(f.LateBy) > 0 && strings.HasPrefix(f.LateBy[len(f.LateBy)-1].Why, "breaker open: ")
			})
		})
		brokertest.Eventually(t, "it is closed", func() bool {
			return s.metric(t, `redrive_breaker_state{queue="orders",state="closed"}`) == "1"
		})
		brokertest.Eventually(t, "nothing is left in the service", func() bool {
			q := s.kept(t, "orders")
			return q.Waiting == 0 && q.Parked == 0
		})
		expect.Equal(t, s.metric(t, `redrive_ledger_imbalance{queue="orders"}`), "0", "the ledger is off by")
	})
}
