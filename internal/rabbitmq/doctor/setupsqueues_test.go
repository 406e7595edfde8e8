package doctor_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"regexp"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/doctor"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// kind is the arguments of a queue of that type.
func kind(of string, more amqp.Table) amqp.Table {
	args := amqp.Table{"x-queue-type": of}
	for key, v := range more {
		args[key] = v
	}
	return args
}

// to are arguments with which a queue dead-letters to an exchange, at-most-once.
func to(exchange string) amqp.Table { return amqp.Table{"x-dead-letter-exchange": exchange} }

// safely are those of a queue that Redrive has nothing to say of.
func safely(more amqp.Table) amqp.Table {
	args := kind("quorum", amqp.Table{"x-dead-letter-exchange": wire.ExchangeDeadLetters, "x-dead-letter-strategy": "at-least-once"})
	if _, ok := more["x-overflow"]; !ok {
		args["x-overflow"] = "reject-publish"
	}
	for key, v := range more {
		args[key] = v
	}
	return args
}

func queue(name string, args amqp.Table) func(*site) { return func(s *site) { s.Queue(name, args) } }

// policed is a queue with a policy of its own.
func policed(name string, args amqp.Table, definition map[string]any) func(*site) {
	return func(s *site) {
		s.Queue(name, args)
		s.policy("of "+name, name, 3, "queues", definition)
	}
}

func (s *site) policy(name, of string, priority int, applyTo string, definition map[string]any) {
	s.t.Helper()
	s.must(s.API().PutPolicy(context.Background(), management.Policy{Name: name, Pattern: "^" + regexp.QuoteMeta(of) + "$", ApplyTo: applyTo, Priority: priority, Definition: definition}))
}

// deletes is what a person does about a queue that nothing can repair.
func deletes(name string) func(*site) { return func(s *site) { s.DeleteQueue(name) } }

// enrolls enrols a queue as people do.
func enrolls(name string, more ...string) func(*site) {
	return func(s *site) {
		s.t.Helper()
		s.config()
		line := "redrive enroll --config redrive.yaml"
		for _, m := range more {
			line += " " + m
		}
		if out, err := s.atTerminal(context.Background(), line+" "+doctor.Quote(name)); err != nil {
			s.t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}

func both(all ...func(*site)) func(*site) {
	return func(s *site) {
		for _, do := range all {
			do(s)
		}
	}
}

// fills publishes messages of so many bytes to a queue.
func fills(name string, n, size int) func(*site) {
	return func(s *site) {
		s.t.Helper()
		ch := s.Channel()
		s.must(ch.Confirm(false))
		var last *amqp.DeferredConfirmation
		for range n {
			c, err := ch.PublishWithDeferredConfirm("", name, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: bytes.Repeat([]byte("x"), size)})
			s.must(err)
			last = c
		}
		last.Wait()
		s.must(ch.Close())
	}
}

var redriven = map[string]any{"dead-letter-exchange": wire.ExchangeDeadLetters}

func with(definition map[string]any, more map[string]any) map[string]any {
	all := map[string]any{}
	for _, m := range []map[string]any{definition, more} {
		for key, v := range m {
			all[key] = v
		}
	}
	return all
}

var surely = with(redriven, map[string]any{"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"})

const queuesConfig = `policies:
  - {name: strict, queues: ["strict.*"], attempts: 8, reasons: [rejected], backoff: {fixed: 1m}}
  - {name: named, queues: [named], attempts: 8, backoff: {fixed: 1m}}
  - {name: rest, queues: ["*"], attempts: 8, backoff: {fixed: 1m}}`

// queueSetups are about single queues.
var queueSetups = []setup{
	{check: "dead-lettering", queue: "named", status: doctor.Wrong, says: "it has no dead-letter exchange", makes: queue("named", kind("quorum", nil))},
	{check: "dead-lettering", queue: "--odd 'name'", status: doctor.Warning, says: "it has no dead-letter exchange", makes: queue("--odd 'name'", kind("classic", nil))},
	{check: "dead-lettering", queue: "elsewhere", status: doctor.Warning, says: `it dead-letters to the exchange "amq.fanout", not to Redrive`,
		makes: policed("elsewhere", kind("quorum", nil), map[string]any{"dead-letter-exchange": "amq.fanout"})},
	{check: "dead-lettering", queue: "lost", status: doctor.Wrong, says: "which does not exist: its dead letters are dropped",
		makes: policed("lost", kind("classic", nil), map[string]any{"dead-letter-exchange": "gone"})},
	{check: "dead-lettering", queue: "fixed", status: doctor.Warning, says: `it dead-letters to the exchange "amq.direct", not to Redrive (by its argument)`, makes: queue("fixed", kind("classic", to("amq.direct")))},
	{check: "dead-lettering", queue: "rerouted", status: doctor.Warning, says: `its dead letters get the routing key "other"`,
		makes: policed("rerouted", kind("quorum", nil), with(surely, map[string]any{"dead-letter-routing-key": "other"}))},
	{check: "dead-lettering", queue: "rerouted.fixed", status: doctor.Warning, says: `its dead letters get the routing key "other"`, silent: true,
		makes: queue("rerouted.fixed", safely(amqp.Table{"x-dead-letter-routing-key": "other"})), person: deletes("rerouted.fixed")},
	{check: "at-least-once", queue: "once", status: doctor.Warning, says: "its dead-lettering is at-most-once", makes: policed("once", kind("quorum", nil), redriven)},
	{check: "at-least-once", queue: "half", status: doctor.Warning, says: "says at-least-once and is at-most-once",
		makes: policed("half", kind("quorum", nil), with(redriven, map[string]any{"dead-letter-strategy": "at-least-once"}))},
	{check: "at-least-once", queue: "classic", status: doctor.Warning, says: "it is classic", silent: true, makes: queue("classic", kind("classic", to("redrive"))), person: deletes("classic")},
	{check: "policy-in-force", queue: "shadowed", status: doctor.Wrong, says: `policy "above" of priority 9 is`,
		makes: both(queue("shadowed", kind("quorum", nil)), enrolls("shadowed"), func(s *site) { s.policy("above", "shadowed", 9, "queues", map[string]any{"max-length": 100}) })},
	{check: "policy-in-force", queue: "operated", status: doctor.Warning, says: `the operator policy "op of operated" puts message-ttl: 600000 on it`,
		makes: both(queue("operated", safely(nil)), func(s *site) {
			s.Must(http.MethodPut, "operator-policies/"+s.Name+"/op%20of%20operated", map[string]any{"pattern": "^operated$", "apply-to": "queues", "definition": map[string]any{"message-ttl": 600000}})
		})},
	{check: "native-retry", queue: "native", status: doctor.Warning, says: "RabbitMQ delays what its consumers requeue (delayed-retry-type: all)", from: [2]int{4, 3},
		makes: policed("native", kind("quorum", nil), with(surely, map[string]any{"delayed-retry-type": "all", "delayed-retry-min": 1000}))},
	{check: "native-retry", queue: "native.fixed", status: doctor.Warning, says: "delayed-retry-type: failed", silent: true,
		makes: queue("native.fixed", safely(amqp.Table{"x-delayed-retry-type": "failed", "x-delayed-retry-min": 1000})), person: deletes("native.fixed")},
	{check: "lifetime", queue: "brief", status: doctor.Wrong, says: "when it has not been used for 3600000 ms", makes: policed("brief", safely(nil), map[string]any{"expires": 3600000})},
	{check: "lifetime", queue: "brief.fixed", status: doctor.Wrong, says: "when it has not been used for 3600000 ms", silent: true,
		makes: queue("brief.fixed", safely(amqp.Table{"x-expires": 3600000})), person: deletes("brief.fixed")},
	{check: "lifetime", queue: "auto", status: doctor.Wrong, says: "it is auto-delete", silent: true, person: deletes("auto"), makes: func(s *site) {
		_, err := s.Channel().QueueDeclare("auto", true, true, false, false, to("redrive"))
		s.must(err)
	}},
	{check: "lifetime", queue: "exclusive", status: doctor.Wrong, says: "it is exclusive", silent: true, makes: func(s *site) {
		_, err := s.connects("exclusive", s.URL(), 1).QueueDeclare("exclusive", false, false, true, false, to("redrive"))
		s.must(err)
	}, person: gone("exclusive")},
	{check: "retry-exchange", queue: "unlinked", status: doctor.Wrong, says: "its retry exchange redrive.retry.unlinked does not exist",
		makes: both(queue("unlinked", kind("quorum", nil)), enrolls("unlinked", "--at-least-once"), func(s *site) { s.must(s.Channel().ExchangeDelete(wire.RetryExchange("unlinked"), false, false)) })},
	{check: "retry-exchange", queue: "unbound", status: doctor.Wrong, says: "its retry exchange redrive.retry.unbound does not lead to it",
		makes: both(queue("unbound", safely(nil)), func(s *site) { s.Exchange(wire.RetryExchange("unbound"), "fanout") })},
	{check: "retry-exchange", queue: "copied", status: doctor.Wrong, says: "its retry exchange also leads to the queue copied.to",
		makes: both(queue("copied", safely(nil)), queue("copied.to", safely(nil)), func(s *site) { s.Exchange(wire.RetryExchange("copied"), "fanout", "copied", "copied.to") })},
	{check: "retry-exchange", queue: "topical", status: doctor.Wrong, says: "its retry exchange redrive.retry.topical is of type topic, not fanout",
		makes: both(queue("topical", safely(nil)), func(s *site) { s.Exchange(wire.RetryExchange("topical"), "topic", "topical") })},
	{check: "retry-exchange", status: doctor.Warning, says: "the retry exchange redrive.retry.left/over has no queue of its name any more",
		makes: func(s *site) { s.Exchange(wire.RetryExchange("left/over"), "fanout") }},
	{check: "delivery-limit", queue: "limited", status: doctor.Warning, says: `its delivery limit is 2, and policy "rest" has 8 attempts`, makes: policed("limited", kind("quorum", nil), with(surely, map[string]any{"delivery-limit": 2}))},
	{check: "delivery-limit", queue: "strict.limited", status: doctor.Wrong, says: "and no reason delivery_limit: what passes the limit is parked at once",
		makes: policed("strict.limited", kind("quorum", nil), with(surely, map[string]any{"delivery-limit": 2}))},
	{check: "delivery-limit", queue: "limited.fixed", status: doctor.Warning, says: "its delivery limit is 2", silent: true,
		makes: queue("limited.fixed", safely(amqp.Table{"x-delivery-limit": 2})), person: deletes("limited.fixed")},
	{check: "queue-limits", queue: "expires", status: doctor.Warning, says: "its messages expire after 600000 ms (message-ttl)", makes: policed("expires", kind("quorum", nil), with(surely, map[string]any{"message-ttl": 600000}))},
	{check: "queue-limits", queue: "expires.alone", status: doctor.Warning, says: "its messages expire after 600000 ms (message-ttl)", makes: policed("expires.alone", safely(nil), map[string]any{"message-ttl": 600000})},
	{check: "queue-limits", queue: "expires.fixed", status: doctor.Warning, says: "its messages expire after 600000 ms (message-ttl)", silent: true,
		makes: queue("expires.fixed", safely(amqp.Table{"x-message-ttl": 600000})), person: deletes("expires.fixed")},
	{check: "queue-limits", queue: "drops", status: doctor.Warning, says: "when it is full (max-length: 100), each message drops the oldest", makes: policed("drops", kind("classic", nil), with(redriven, map[string]any{"max-length": 100}))},
	{check: "queue-limits", queue: "drops.bytes", status: doctor.Warning, says: "when it is full (max-length-bytes: 1000000), each message drops the oldest",
		makes: policed("drops.bytes", kind("quorum", nil), with(redriven, map[string]any{"max-length-bytes": 1000000, "overflow": "drop-head"}))},
	{check: "queue-limits", queue: "drops.length", status: doctor.Warning, says: "when it is full (max-length: 100), each message drops the oldest",
		makes: queue("drops.length", kind("classic", amqp.Table{"x-dead-letter-exchange": "redrive", "x-max-length": 100}))},
	{check: "queue-limits", queue: "drops.fixed", status: doctor.Warning, says: "when it is full (max-length: 100), each message drops the oldest", silent: true,
		makes: queue("drops.fixed", kind("classic", amqp.Table{"x-dead-letter-exchange": "redrive", "x-max-length": 100, "x-overflow": "drop-head"})), person: deletes("drops.fixed")},
	{check: "queue-limits", queue: "doubles", status: doctor.Wrong, says: "RabbitMQ dead-letters a retry that it refuses (overflow: reject-publish-dlx)",
		makes: policed("doubles", kind("classic", nil), with(redriven, map[string]any{"max-length": 100, "overflow": "reject-publish-dlx"}))},
	{check: "full-queues", queue: "full", status: doctor.Warning, says: "it is full (max-length: 3): it refuses messages, and its retries wait",
		makes: both(policed("full", kind("quorum", nil), with(surely, map[string]any{"max-length": 3})), fills("full", 5, 1))},
	{check: "full-queues", queue: "full.bytes", status: doctor.Warning, says: "it is full (max-length-bytes: 1000)",
		makes: both(policed("full.bytes", kind("classic", nil), with(redriven, map[string]any{"max-length-bytes": 1000, "overflow": "reject-publish"})), fills("full.bytes", 5, 500))},
	{check: "full-queues", queue: "full.fixed", status: doctor.Warning, says: "it is full (max-length: 3): each message more drops the oldest", silent: true,
		makes: both(queue("full.fixed", kind("classic", amqp.Table{"x-dead-letter-exchange": "redrive", "x-max-length": 3})), fills("full.fixed", 4, 1)), person: deletes("full.fixed")},
	{check: "consumer-timeout", queue: "hasty", status: doctor.Warning, says: "RabbitMQ takes its messages from a consumer that has them for 20s", from: [2]int{3, 12},
		makes: policed("hasty", kind("quorum", nil), with(surely, map[string]any{"consumer-timeout": 20000}))},
	{check: "consumer-timeout", queue: "slow", status: doctor.Warning, says: "a consumer that hangs keeps its messages for 48h0m0s", from: [2]int{3, 12},
		makes: policed("slow", kind("quorum", nil), with(surely, map[string]any{"consumer-timeout": 48 * 3600 * 1000}))},
	{check: "consumer-timeout", queue: "hasty.fixed", status: doctor.Warning, says: "RabbitMQ takes its messages from a consumer that has them for 30s", from: [2]int{3, 12}, silent: true,
		makes: queue("hasty.fixed", safely(amqp.Table{"x-consumer-timeout": 30000})), person: deletes("hasty.fixed")},
}

// deadLetterSetups are about other dead-letter queues, whose work queues no other set-up needs.
var deadLetterSetups = []setup{
	{check: "dead-letter-queues", queue: "near.dead", status: doctor.Warning, says: "8 dead letters are in it, and nothing consumes it; it is nearly full (max-length: 10)", makes: both(
		policed("near.dead", kind("classic", nil), map[string]any{"max-length": 10}),
		policed("near", kind("classic", nil), map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": "near.dead"}), fills("near.dead", 8, 1))},
	{check: "dead-letter-queues", queue: "full.dead", status: doctor.Wrong, says: "it is full (max-length: 5): each further one deletes the oldest", makes: both(
		queue("full.dead", kind("quorum", amqp.Table{"x-max-length": 5})), exchangeTo("dead", "full.dead"),
		policed("shop", kind("quorum", nil), map[string]any{"dead-letter-exchange": "dead"}), fills("full.dead", 5, 1))},
	{check: "dead-letter-queues", queue: "shut.dead", status: doctor.Wrong, says: "further dead letters are lost", silent: true, person: deletes("shut.dead"), makes: both(
		queue("shut.dead", kind("classic", amqp.Table{"x-max-length": 2, "x-overflow": "reject-publish"})),
		queue("shut", kind("classic", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "shut.dead"})), fills("shut.dead", 3, 1))},
	{check: "dead-letter-queues", queue: "many.dead", status: doctor.Warning, says: "1200 dead letters are in it, and nothing consumes it", makes: both(
		queue("many.dead", kind("classic", nil)), policed("many", kind("classic", nil), map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": "many.dead"}), fills("many.dead", 1200, 1))},
}

func exchangeTo(exchange, queue string) func(*site) {
	return func(s *site) { s.Exchange(exchange, "fanout", queue) }
}

// manySetups are findings about more queues than are named one by one.
var manySetups = []setup{
	{check: "dead-lettering", status: doctor.Warning, says: "60 queues (many.00, many.01, many.02, many.03, many.04, many.05, many.06, many.07, many.08, many.09 and 50 more), each: it has no dead-letter exchange", makes: func(s *site) {
		for i := range 60 {
			s.Queue(fmt.Sprintf("many.%02d", i), kind("classic", nil))
		}
	}},
	{check: "at-least-once", status: doctor.Warning, says: "12 queues (once.00, ", makes: func(s *site) {
		for i := range 12 {
			s.Queue(fmt.Sprintf("once.%02d", i), kind("quorum", to("redrive")))
		}
	}},
	{check: "retry-exchange", status: doctor.Wrong, says: "11 queues (linked.00, ", makes: func(s *site) {
		for i := range 11 {
			name := fmt.Sprintf("linked.%02d", i)
			s.Queue(name, safely(nil))
			s.Exchange(wire.RetryExchange(name), "fanout")
		}
	}},
}
