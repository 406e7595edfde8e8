package webtest

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// trouble is a kind of failure of the shop.
type trouble struct {
	queue, reason, err, kind, key string
	share                         int
}

var troubles = []trouble{
	{"orders.capture", "rejected", "payment gateway: timeout after 5s (POST https://pay.example/v2/capture)", "shop.v1.Order", "orders.capture.eu", 30},
	{"orders.capture", "rejected", "insufficient stock for SKU 88213: 2 wanted, 0 left", "shop.v1.Order", "orders.capture.us", 12},
	{"invoices.render", "rejected", "template: invoice.html:41: <.Customer.VAT>: nil pointer evaluating *Customer.VAT", "invoice.created", "invoices.render", 14},
	{"mail.send", "rejected", "smtp: 421 4.7.0 Too many connections from your IP", "mail", "mail.send.newsletter", 20},
	{"stock.sync", "delivery_limit", "", "stock.changed", "warehouse.berlin.stock", 8},
	{"webhooks", "rejected", "HTTP 503 from https://hooks.acme.example/redrive", "", "webhooks.acme", 10},
	{"search.index", "expired", "", "product.changed", "product.changed", 6},
}

// New is the shop on a bad day.
func New(now time.Time) *Shop {
	r := rand.New(rand.NewPCG(4, 2026))
	s := &Shop{Now: now, Raw: map[string][]byte{}, Plans: map[string]operations.Plan{}}
	for i := range 180 {
		s.add(r, i, pick(r))
	}
	s.Replicas = []inspect.Replica{
		{ID: "redrive-0-5f1c9a3e", Address: "redrive-0:8250", Version: "1.4.0", Since: s.Now.Add(-51 * time.Hour), Beat: s.Now, Leads: true, Self: true, Ready: true},
		{ID: "redrive-1-07d2b6c4", Address: "redrive-1:8250", Version: "1.4.0", Since: s.Now.Add(-51 * time.Hour), Beat: s.Now.Add(-time.Second), Problems: []string{"retries: not connected"}},
	}
	s.Problems = []string{`retries of queue "webhooks" are blocked: RabbitMQ has no such queue (since 12 min)`}
	s.Notices = []string{"RabbitMQ's clock is 4s behind this machine's"}
	s.queues()
	s.reasons()
	s.groups(r)
	s.flow(r)
	s.policies()
	s.log()
	s.operations()
	return s
}

func pick(r *rand.Rand) int {
	n := r.IntN(100)
	for i, t := range troubles {
		if n -= t.share; n < 0 {
			return i
		}
	}
	return 0
}

var steps = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, 64 * time.Second}

// add makes a message, each older than the one before.
func (s *Shop) add(r *rand.Rand, i, kind int) {
	t := troubles[kind]
	failed := s.Now.Add(-time.Duration(i*i/3+i*7+3) * time.Second)
	m := inspect.Detail{Message: inspect.Message{ID: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, "message ", i)).String(), Key: fmt.Sprintf("%016x", 90000-i), Queue: t.queue, Reason: t.reason, Error: t.err,
		Group: fmt.Sprintf("%016x", 0xa11ce+kind*7919), Policy: "orders", Failed: failed, Exchange: "shop", RoutingKey: t.key, Type: t.kind, ContentType: "application/json"}}
	m.Error = strings.ReplaceAll(m.Error, "88213", fmt.Sprint(10000+r.IntN(90000)))
	if kind > 1 {
		m.Policy = strings.Split(t.queue, ".")[0]
	}
	due, restorable := s.Now.Add(time.Duration(r.IntN(3600))*time.Second), s.Now.Add(6*24*time.Hour)
	switch n := r.IntN(20); {
	case n < 9:
		m.State, m.ParkedAt, m.ParkedFor, m.Attempt = inspect.Parked, &failed, "its attempts are used up (8 of 8)", 8
		if kind == 5 {
			m.ParkedFor, m.Attempt = "its queue is gone", 3
		}
	case n < 16:
		m.State, m.Due, m.Attempt = inspect.Waiting, &due, 1+r.IntN(6)
		m.Paused = t.queue == "mail.send"
	case n < 19:
		m.State, m.RetriedAt, m.Attempt, m.Key = inspect.Retried, &failed, 1+r.IntN(4), ""
	default:
		m.State, m.Restorable, m.Attempt = inspect.Discarded, &restorable, 8
	}
	at := failed
	for a := m.Attempt; a > 0; a-- {
		st := inspect.Step{Attempt: a, Failed: at, Reason: t.reason, Error: m.Error, Policy: m.Policy}
		if a < m.Attempt || m.State == inspect.Waiting {
			d := steps[min(a-1, len(steps)-1)]
			st.Delay, st.Why = d.String(), fmt.Sprintf("failure %d of policy %s: exponential from 1s, ×2, with jitter ±20%%", a, m.Policy)
			if a < m.Attempt {
				end := at
				st.Ended, st.Ending = &end, "retried"
			}
		} else if m.State == inspect.Parked {
			st.Why = "parked: " + m.ParkedFor
		}
		m.Timeline = append([]inspect.Step{st}, m.Timeline...)
		at = at.Add(-steps[min(a-1, len(steps)-1)])
	}
	m.FirstFailed = at
	s.body(&m, r, i, kind)
	m.Properties = []inspect.Property{{Name: "content_type", Value: m.ContentType}, {Name: "delivery_mode", Value: "2 (persistent)"}, {Name: "message_id", Value: fmt.Sprintf("ord-%06d", 480000+i)}, {Name: "timestamp", Value: m.FirstFailed.Add(-2 * time.Second).UTC().Format(time.RFC3339)}, {Name: "app_id", Value: "checkout"}}
	m.Headers = []inspect.Header{{Name: "tenant", Type: "string", Value: "acme", From: "publisher"}, {Name: "traceparent", Type: "string", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", From: "publisher"}, {Name: "priority", Type: "int32", Value: "5", From: "publisher"},
		{Name: "x-death", Type: "array", Value: `[{"count":1,"exchange":"shop","queue":"` + t.queue + `","reason":"` + t.reason + `","routing-keys":["` + t.key + `"]}]`, From: "broker"},
		{Name: "x-redrive-attempt", Type: "int64", Value: fmt.Sprint(m.Attempt), From: "redrive"}, {Name: "x-redrive-id", Type: "string", Value: m.ID, From: "redrive"}}
	s.Messages = append(s.Messages, m)
}

func (s *Shop) body(m *inspect.Detail, r *rand.Rand, i, kind int) {
	order := fmt.Sprintf(`{
  "orderId": "%d",
  "tenant": "ACME",
  "placedAt": "%s",
  "customer": {
    "name": "Zoë Křížová",
    "email": "zoe@example.com",
    "vip": %v
  },
  "lines": [
    {
      "sku": "88213",
      "quantity": 2,
      "price": 64950
    }
  ],
  "total": 129900,
  "note": null
}`, 9007199254740993+i, m.FirstFailed.UTC().Format(time.RFC3339), r.IntN(2) == 0)
	switch {
	case kind < 2: // Protobuf in base64, as the shop has it
		raw := []byte(base64.StdEncoding.EncodeToString([]byte("\x09\x01\x00\x00\x00\x00\x00\x20\x00\x12\x04ACME\x1a\x1f\x0a\x0eZo\xc3\xab K\xc5\x99\xc3\xad\xc5\xbeov\xc3\xa1\x12\x0fzoe@example.com\x20\xec\xf6\x07")))
		m.Body = Read("protobuf", order, raw, decode.Step{Decoder: "base64", Found: "standard alphabet, padded", Size: 51}, decode.Step{Decoder: "protobuf", Found: "shop.v1.Order, 7 fields, none unknown", Size: len(order)})
		m.Body.Schema, m.ContentType = "shop.v1.Order, by the property type", "application/x-protobuf"
		s.Raw[m.ID] = raw
	case kind == 4:
		raw := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x19, 0, 0, 0xff, 0xfe, 0x00, 0x9c}
		m.Body = Read("binary", "", raw, decode.Step{Decoder: "zstd", Found: "stopped: the frame ends early", Size: 0}, decode.Step{Decoder: "hex", Found: "no decoder takes it", Size: 13})
		m.ContentType = "application/octet-stream"
		s.Raw[m.ID] = raw
	default:
		s.Raw[m.ID] = []byte(order)
		m.Body = Read("json", order, s.Raw[m.ID], decode.Step{Decoder: "json", Found: "an object with 7 fields", Size: len(order)})
	}
	m.Size = len(s.Raw[m.ID])
	if m.State == inspect.Retried {
		m.Body = nil
	}
}

func (s *Shop) queues() {
	at, unacked := map[string]*inspect.Queue{}, 40
	for i := range troubles {
		q := troubles[i].queue
		if at[q] == nil {
			at[q] = &inspect.Queue{Name: q, Policy: strings.Split(q, ".")[0], Enrolled: true, Way: "disk", Broker: &inspect.AtBroker{Exists: true, Kind: "quorum", Consumers: 4, Ready: 12 * i, Unacked: &unacked,
				ConsumerList: []inspect.Consumer{{Tag: "ctag-worker-1", Connection: "10.2.4.31:51022 -> 10.2.0.5:5672", User: "shop"}}}}
		}
	}
	for i := range s.Messages {
		m := &s.Messages[i].Message
		q := at[m.Queue]
		switch m.State {
		case inspect.Waiting:
			q.Waiting++
			if q.NextDue == nil || m.Due.Before(*q.NextDue) {
				q.NextDue, q.Oldest = m.Due, &m.FirstFailed
			}
		case inspect.Parked:
			q.Parked++
		case inspect.Discarded:
			q.Discarded++
		}
		if s.Now.Sub(m.Failed) < time.Minute {
			q.Failed++
		}
	}
	at["orders.capture"].Failed, at["orders.capture"].Retried, at["orders.capture"].ParkedIn = 412, 388, 9
	at["mail.send"].Failed, at["mail.send"].Pause = 61, &inspect.QueuePause{By: "dana", Since: s.Now.Add(-22 * time.Minute), Reason: "provider blocks us until noon"}
	at["invoices.render"].Failed, at["invoices.render"].Retried = 18, 22
	until, since := s.Now.Add(40*time.Second), s.Now.Add(-3*time.Minute)
	at["invoices.render"].Throttle = &inspect.ThrottleView{State: "open", Why: "38 of 40 retries failed again within 1m", Since: &since, Until: &until, FailedShare: 0.95, Finished: 40, InFlight: 3, MaxInFlight: 50}
	at["search.index"].Throttle = &inspect.ThrottleView{State: "closed", NoConsumer: &since}
	at["webhooks"].Broker, at["webhooks"].Unreachable = &inspect.AtBroker{}, "RabbitMQ has no such queue"
	at["search.index"].Broker.Consumers = 0
	at["stock.sync"].Broker = nil
	for i := range troubles {
		if q := at[troubles[i].queue]; q != nil {
			s.QueueList = append(s.QueueList, *q)
			at[troubles[i].queue] = nil
		}
	}
	idle := inspect.AtBroker{Exists: true, Kind: "quorum", Consumers: 2, Unacked: new(int)}
	s.QueueList = append(s.QueueList, inspect.Queue{Name: "loyalty.points", Enrolled: true, Policy: "orders", Way: "disk", Broker: &idle})
}

// reasons are what the queues' states say, and what the doctor found.
func (s *Shop) reasons() {
	parked, since := int64(0), s.Now.Add(-3*time.Minute)
	for _, q := range s.QueueList {
		parked += q.Parked
		r := inspect.HealthReason{Queue: q.Name, Since: &since}
		switch {
		case q.Pause != nil:
			r.State, r.Kind, r.Text, r.Since = inspect.Attention, "pause", "retries paused by "+q.Pause.By+": "+q.Pause.Reason, &q.Pause.Since
		case q.Unreachable != "":
			r.State, r.Kind, r.Text = inspect.Wrong, "unreachable", "retries stopped: "+q.Unreachable
		case q.Throttle.KeepsBack():
			r.State, r.Kind, r.Text = inspect.Wrong, "breaker", q.Throttle.Text()
		default:
			continue
		}
		s.Reasons = append(s.Reasons, r)
	}
	s.Reasons = append(s.Reasons, inspect.HealthReason{State: inspect.Attention, Kind: "parked", Text: fmt.Sprintf("%d messages are parked until a person replays or discards them", parked)})
	ended := s.Now.Add(-2 * time.Hour)
	s.Examined = inspect.Examination{At: &ended, By: "dana", Findings: []inspect.Finding{
		{Check: "connection", Status: "ok", What: "RabbitMQ takes connections by AMQP"},
		{Check: "alarms", Status: "ok", What: "alarms of RabbitMQ's nodes"},
		{Check: "permissions", Status: "unknown", What: "not looked at: the rights of the service's user", Why: "the user of broker.management needs the tag administrator in RabbitMQ"},
		{Check: "at-least-once", Status: "warning", Queue: "mail.send", What: "dead-letters at most once", Why: "At-most-once dead-lettering drops what fails while redrive.intake has no leader, as just after a restart of RabbitMQ.",
			Remedy: "Set dead-letter-strategy: at-least-once and overflow: reject-publish.", Commands: []string{"rabbitmqctl set_policy redrive '^mail.send$' '{\"dead-letter-exchange\":\"redrive\",\"dead-letter-strategy\":\"at-least-once\",\"overflow\":\"reject-publish\"}' --apply-to queues"}},
		{Check: "consumers", Status: "wrong", Queue: "search.index", What: "it has no consumers", Why: "Retried messages stay in the queue unnoticed; RabbitMQ raises no alarm for that.", Remedy: "Start its consumers."},
	}}
	s.Reasons = append(s.Reasons, inspect.HealthReason{State: inspect.Wrong, Kind: "doctor", Text: "the doctor found 1 thing wrong", Since: &ended}, inspect.HealthReason{State: inspect.Attention, Kind: "doctor", Text: "the doctor found 1 thing to look at", Since: &ended})
}

func (s *Shop) groups(r *rand.Rand) {
	patterns := strings.NewReplacer("5s", "#", "88213", "#", ": 2 wanted, 0 left", ": # wanted, # left", ":41:", ":#:", "421 4.7.0", "#", "503", "#")
	for i, t := range troubles {
		g := inspect.Group{ID: fmt.Sprintf("%016x", 0xa11ce+i*7919), Queue: t.queue, Reason: t.reason, Error: patterns.Replace(t.err)}
		if g.Error == "" {
			g.Type = t.kind
		}
		for _, m := range s.Messages {
			if m.Group != g.ID {
				continue
			}
			switch m.State {
			case inspect.Waiting:
				g.Waiting++
			case inspect.Parked:
				g.Parked++
			}
			if g.First = m.FirstFailed; g.Last.IsZero() {
				g.Last = m.Failed
			}
		}
		for h := range 24 {
			g.Hours = append(g.Hours, max(0, int64(r.IntN(40)*max(0, h-4*i))/9))
		}
		s.GroupList = append(s.GroupList, g)
	}
	s.Elsewhere = map[string]int{s.GroupList[0].ID: 11, s.GroupList[3].ID: 1}
	s.GroupList[0].Note = "gateway incident INC-2231, Pavel is on it"
}

func (s *Shop) flow(r *rand.Rand) {
	for i := range 60 {
		f := inspect.Flow{Failed: int64(20 + r.IntN(14)), Retried: int64(18 + r.IntN(12)), Parked: int64(r.IntN(3))}
		if i > 22 && i < 41 {
			f.Failed += int64(380 - 12*abs(i-31) + r.IntN(40))
			f.Parked += int64(r.IntN(14))
		}
		if i > 27 && i < 52 {
			f.Retried += int64(330 - 11*abs(i-38) + r.IntN(40))
		}
		s.Hour = append(s.Hour, f)
	}
	const length = 10 * time.Second
	from := s.Now
	s.Calendar = []inspect.Slot{{From: s.Now.Add(-4 * time.Minute), To: s.Now, Count: 37, Overdue: true}}
	for i := range 12 {
		to := from.Truncate(length).Add(length)
		s.Calendar = append(s.Calendar, inspect.Slot{From: from, To: to, Count: max(0, int64(240>>i)-3), AtLeast: i == 0})
		from = to
	}
	s.Calendar = append(s.Calendar, inspect.Slot{From: from, To: from.Add(24 * time.Hour), Count: 41, Later: true})
}

func abs(n int) int { return max(n, -n) }

func (s *Shop) policies() {
	priority := uint8(1)
	p := inspect.PolicyInForce{Name: "orders", Queues: []string{"orders.*", "payments"}, Attempts: 8, MaxAge: "2d", Retention: "30d", RetryPriority: &priority,
		Redirects: []inspect.Redirect{{From: "orders.capture.v1", To: "orders.capture"}},
		Rules: []inspect.RuleInForce{
			{Name: "invalid", When: "error:/invalid IBAN|validation/", Then: "park, severity info", Why: "the data is wrong, ask the shop"},
			{Name: "slow-bank", When: "error:*timeout* header.bank:slow*", Then: "retry, exponential from 5m, ×2, at most 6h, 20 attempts"},
			{Name: "large", When: "body.order.total:>10000", Then: "as the policy says, severity critical"},
		},
		Backoff: "exponential from 1s, ×2, at most 10m", Jitter: "±20%", Reasons: []string{"rejected", "delivery_limit"}, Exhausted: "park", Way: "disk", Limits: "200/s, breaker",
		Words:   "Its 3 rules decide first, where one applies. A failed message is retried up to 7 times, after 1s, 2s, 4s, 8s, … and at last 1m 4s (jitter ±20%). When attempt 8 fails, or the next would be later than 2d after the first failure, it is parked. This is for messages with the reason rejected or delivery_limit, and for reports; others are parked at once. Each queue gets at most 200/s. Retries have the priority 1. What is parked is discarded after 30d. What fails in queue \"orders.capture.v1\" is retried to \"orders.capture\".",
		Breaker: "It opens when 50 % of at least 20 retries within 1m fail again. After 10s, later up to 2m, it probes with 3, and once these do not fail it retries more and more for 1m.",
		YAML:    "name: orders\nqueues: [\"orders.*\", payments]\nattempts: 8\nbackoff: {exponential: {initial: 1s, factor: 2, max: 10m}}\nrate: 200/s\nbreaker: on\nmax_age: 2d\nretention: 30d\nretry_priority: 1\nrules:\n  - {name: invalid, when: 'error:/invalid IBAN|validation/', then: park, why: \"the data is wrong, ask the shop\", severity: info}\n  - {name: slow-bank, when: 'error:*timeout* header.bank:slow*', attempts: 20, backoff: {exponential: {initial: 5m, max: 6h}}}\n  - {name: large, when: 'body.order.total:>10000', severity: critical}\n",
		Matches: &inspect.Matches{Count: 2, Queues: []string{"loyalty.points", "orders.capture"}}}
	for i, d := range steps {
		p.Waits = append(p.Waits, inspect.Wait{Attempt: i + 1, Least: (d * 8 / 10).String(), Most: (d * 12 / 10).String()})
	}
	mail := inspect.PolicyInForce{Name: "mail", Queues: []string{"mail.*"}, Attempts: 5, Backoff: "linear from 30s by 30s, at most 5m", Jitter: "none", Reasons: []string{"rejected"}, Exhausted: "forward to queue mail.dead", Way: "levels", Matches: &inspect.Matches{Count: 1, Queues: []string{"mail.send"}},
		Words: "A failed message is retried up to 4 times, after 30s, 1m, 1m 30s and 2m. When attempt 5 fails, it is forwarded to queue \"mail.dead\"."}
	for i, d := range []string{"30s", "1m", "1m 30s", "2m"} {
		mail.Waits = append(mail.Waits, inspect.Wait{Attempt: i + 1, Least: d, Most: d})
	}
	s.PolicyList = []inspect.PolicyInForce{p, mail, {Name: "never", Queues: []string{"search.*"}, Attempts: 1, Backoff: "none", Jitter: "none", Reasons: []string{"rejected"}, Exhausted: "park", Way: "disk", Matches: &inspect.Matches{}, Words: "A message is parked at its first failure."}}
}

func (s *Shop) log() {
	for i, e := range []audit.Entry{
		{Who: "dana", How: "rabbitmq", Did: "pause", On: "mail.send", Why: "provider blocks us until noon", Outcome: "done"},
		{Who: "dana", How: "rabbitmq", Did: "operation.start", On: `state:parked queue:invoices.* error:"VAT"`, Count: 2130, Why: "template fixed in 2.18.1", Outcome: "begun"},
		{Who: "ci", How: "token", Interface: "api", Did: "replay", On: "1f0c1e0a-8a55-5a3c-9d3e-0f5f0cfe2b11", Count: 1, Outcome: "done"},
		{Who: "erik", How: "rabbitmq", Did: "discard", On: "state:parked queue:webhooks", Count: 40, Outcome: "refused: erik is viewer, and this needs operator"},
	} {
		e.N, e.At, e.From, e.Hash = int64(4812-i), s.Now.Add(-time.Duration(i*i*19+3)*time.Minute), "10.2.4.17", fmt.Sprintf("%064x", i+77)
		if e.Interface == "" {
			e.Interface = "page"
		}
		s.Log = append(s.Log, e)
	}
}

func (s *Shop) operations() {
	oldest, newest, ended := s.Now.Add(-9*time.Hour), s.Now.Add(-14*time.Minute), s.Now.Add(-3*time.Hour)
	op := func(id, q string, count, done, skipped, failed int64, state string) operations.Operation {
		return operations.Operation{Plan: operations.Plan{ID: id, Verb: actions.Replay, Query: q, Count: count, By: "dana", Made: s.Now.Add(-6 * time.Minute), Oldest: &oldest, Newest: &newest, Reason: "gateway is back (INC-2231)"},
			State: state, Done: done, SkippedN: skipped, Failed: failed, Rate: 200, Started: s.Now.Add(-4 * time.Minute), StartedBy: "dana"}
	}
	running := op("op4", `state:parked queue:orders.* error:"timeout"`, 84210, 41873, 12, 0, operations.Running)
	running.PerSecond, running.Left = 198.4, "3m 33s"
	canary := op("op3", `state:parked queue:invoices.*`, 2130, 20, 0, 0, operations.Watching)
	canary.CanarySize = 20
	stopped := op("op2", `state:parked queue:webhooks`, 40, 3, 0, 1, operations.Stopped)
	stopped.Why, stopped.Ended = `the queue "webhooks" is gone`, &ended
	again := op("op0", `state:parked queue:stock.sync`, 1204, 1190, 14, 0, operations.Finished)
	again.Again, again.Ended = 386, &ended
	finished := op("op1", `state:discarded age:<1d`, 311, 311, 0, 0, operations.Finished)
	finished.Verb, finished.Ended = actions.Restore, &ended
	s.Ops = []operations.Operation{running, canary, stopped, again, finished}
}

// WaitingQueue is a queue whose due message waits for a reason.
func WaitingQueue(why throttle.WaitReason, now time.Time) inspect.Queue {
	q := inspect.Queue{Name: "orders", Waiting: 1, NextDue: &now}
	switch why {
	case throttle.WhyPerson:
		q.Pause = &inspect.QueuePause{By: "dana", Since: now}
	case throttle.WhyUnreachable:
		q.Unreachable = "the queue is full"
	case throttle.WhyBreaker:
		q.Throttle = &inspect.ThrottleView{State: string(throttle.Open), Why: "9 of 10 failed"}
	case throttle.WhyNoConsumer:
		q.Throttle = &inspect.ThrottleView{State: string(throttle.Closed), NoConsumer: &now}
	case throttle.WhyRate, throttle.WhyInFlight:
		q.Throttle = &inspect.ThrottleView{State: string(throttle.Closed), LimitedBy: why}
	}
	return q
}
