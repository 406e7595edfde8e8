package doctor_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/doctor"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/wire"
)

// declared has what the service declares.
func declared(s *site) {
	s.t.Helper()
	var err error
	for range 5 { // a busy RabbitMQ 3.10 may answer 541, see Queue
		r := s.report()
		if err = r.Plan().Apply(context.Background(), s.config()); err == nil {
			return
		}
	}
	s.must(err)
}

func onChannel(do func(*site, *amqp.Channel)) func(*site) {
	return func(s *site) {
		ch := s.Channel()
		do(s, ch)
		_ = ch.Close()
	}
}

func without(exchange string) func(*site) {
	return onChannel(func(s *site, ch *amqp.Channel) { s.must(ch.ExchangeDelete(exchange, false, false)) })
}

func exchange(name, kind string, internal bool, args amqp.Table) func(*site) {
	return onChannel(func(s *site, ch *amqp.Channel) {
		s.must(ch.ExchangeDeclare(name, kind, true, false, internal, false, args))
	})
}

// topologySites are about what the service declares: each is a virtual host of its own.
var topologySites = [][]setup{
	{{check: "dead-letter-exchange", status: doctor.Wrong, says: "the exchange redrive does not exist", makes: both(declared, without("redrive"))}},
	{{check: "intake", status: doctor.Wrong, says: "the queue redrive.intake does not exist", makes: both(declared, deletes(wire.QueueIntake))},
		{check: "dead-letter-exchange", status: doctor.Wrong, says: "the exchange redrive is not bound to redrive.intake"}},
	{{check: "dead-letter-exchange", status: doctor.Wrong, says: "the exchange redrive is not internal", makes: both(declared, without("redrive"), exchange("redrive", "fanout", false, nil))}},
	{{check: "dead-letter-exchange", status: doctor.Wrong, says: "of type topic, not fanout", makes: both(declared, without("redrive"), exchange("redrive", "topic", true, nil))}},
	{{check: "dead-letter-exchange", status: doctor.Warning, says: "the exchange redrive also leads to the queue copies", makes: both(declared, queue("copies", safely(nil)), onChannel(func(s *site, ch *amqp.Channel) {
		s.must(ch.QueueBind("copies", "a/b", "redrive", false, nil))
	}))}, {check: "alternate-exchange", status: doctor.Warning, says: "the RabbitMQ policy all gives the exchange redrive the alternate exchange amq.fanout", makes: func(s *site) {
		s.must(s.API().PutPolicy(context.Background(), management.Policy{Name: "all", Pattern: ".*", ApplyTo: "exchanges", Definition: map[string]any{"alternate-exchange": "amq.fanout"}}))
	}}},
	{{check: "intake", status: doctor.Wrong, says: "redrive.intake is classic, not quorum", makes: both(declared, deletes(wire.QueueIntake), queue(wire.QueueIntake, kind("classic", nil)))}},
	{{check: "intake", status: doctor.Wrong, says: "a RabbitMQ policy (every) puts message-ttl: 60000, max-length: 1000 on our queue redrive.intake", makes: both(declared, func(s *site) {
		s.Policy("every", ".*", 1, map[string]any{"message-ttl": 60000, "max-length": 1000, "delivery-limit": 9})
	})}, {check: "intake", status: doctor.Wrong, says: "the delivery limit in force of our queue redrive.intake is 9, by a RabbitMQ policy (every)"}},
	{{check: "intake", status: doctor.Wrong, says: "a RabbitMQ policy (op) puts max-length: 1000 on our queue redrive.intake", makes: both(declared, func(s *site) {
		s.Must(http.MethodPut, "operator-policies/"+s.Name+"/op", map[string]any{"pattern": "^redrive", "apply-to": "queues", "definition": map[string]any{"max-length": 1000}})
	})}},
	{{check: "intake", status: doctor.Wrong, says: "the delivery limit in force of our queue redrive.intake is 7, by a RabbitMQ policy (low)", makes: both(declared, func(s *site) {
		s.Policy("low", "intake", 1, map[string]any{"delivery-limit": 7})
	})}},
	{{check: "quarantine", status: doctor.Warning, says: "messages in redrive.quarantine: 1", makes: both(declared, queue("orders", safely(nil)), rejects("orders", 1), rejected(wire.QueueIntake))}},
	{{check: "another-service", status: doctor.Wrong, says: "redrive.intake has 2 consumers", makes: both(declared, consumer("one", wire.QueueIntake), consumer("two", wire.QueueIntake)), person: both(gone("one"), gone("two"))}},
	{{check: "foreign-consumers", status: doctor.Wrong, says: `consumes redrive.intake with the tag "ctag`, makes: both(declared, consumer("tagged", wire.QueueIntake))}},
	{{check: "foreign-consumers", status: doctor.Wrong, says: `, and the service's is "service-`, makes: both(declared, consumer("guest", wire.QueueIntake), func(s *site) { s.url = s.ServiceURL(s.config().Policies) })}},
	{{check: "alternate-exchange", queue: "orders", status: doctor.Wrong, says: "the exchange redrive.retry.orders was declared with the alternate exchange amq.fanout",
		makes: both(declared, queue("orders", safely(nil)), exchange(wire.RetryExchange("orders"), "fanout", false, amqp.Table{"alternate-exchange": "amq.fanout"}))},
		{check: "alternate-exchange", queue: "mail", status: doctor.Wrong, says: "the RabbitMQ policy ae gives the exchange redrive.retry.mail the alternate exchange amq.fanout",
			makes: both(queue("mail", kind("quorum", nil)), enrolls("mail", "--at-least-once"), func(s *site) {
				s.policy("ae", wire.RetryExchange("mail"), 1, "exchanges", map[string]any{"alternate-exchange": "amq.fanout"})
			})}},
	{{check: "alternate-exchange", status: doctor.Warning, says: "the exchange redrive was declared with the alternate exchange amq.direct",
		makes: both(declared, without("redrive"), exchange("redrive", "fanout", true, amqp.Table{"alternate-exchange": "amq.direct"}))}},
	{{check: "federation", status: doctor.Wrong, says: "the RabbitMQ policy fed federates redrive", makes: both(declared, func(s *site) {
		s.must(s.API().Call(context.Background(), http.MethodPut, "parameters/federation-upstream/"+s.Name+"/up", map[string]any{"value": map[string]any{"uri": "amqp://127.0.0.1:1"}}, nil))
		s.must(s.API().PutPolicy(context.Background(), management.Policy{Name: "fed", Pattern: "redrive", ApplyTo: "all", Definition: map[string]any{"federation-upstream-set": "all"}}))
	})}, {check: "federation", status: doctor.Wrong, says: "the shovel away takes messages from redrive.intake (src-queue)", makes: shovel("away", "src-queue", wire.QueueIntake, "dest-queue", "x")},
		{check: "federation", status: doctor.Wrong, says: "the shovel in publishes to redrive.retry.orders (dest-exchange)", makes: shovel("in", "src-queue", "x", "dest-exchange", wire.RetryExchange("orders"))}},
	{{check: "limits", status: doctor.Warning, says: "and its limit is 12 (max-queues)", makes: both(declared, func(s *site) {
		for i := range 8 { // and three of ours
			s.Queue(fmt.Sprint("q", i), safely(nil))
		}
		s.limit("vhost-limits", s.Name, "max-queues", 12)
	})}, {check: "limits", status: doctor.Wrong, says: "and its limit is 2 (max-connections)", makes: func(s *site) {
		consumer("a", "q0")(s)
		consumer("b", "q0")(s)
		s.limit("vhost-limits", s.Name, "max-connections", 2)
	}}},
	{{check: "limits", status: doctor.Wrong, says: "has 2 connections, and its limit is 2 (max-connections)", makes: both(declared, func(s *site) {
		s.url = s.ServiceURL(s.config().Policies)
		s.connects("own", s.url, 5)
		s.connects("more", s.url, 5)
		s.limit("user-limits", s.ServiceUser(), "max-connections", 2)
		s.limit("user-limits", s.ServiceUser(), "max-channels", 11)
	})}, {check: "limits", status: doctor.Warning, says: "has 10 channels, and its limit is 11 (max-channels)"}},
}

func shovel(name string, pairs ...string) func(*site) {
	return func(s *site) {
		value := map[string]any{"src-uri": "amqp://127.0.0.1:1", "dest-uri": "amqp://127.0.0.1:1", "src-protocol": "amqp091", "dest-protocol": "amqp091"}
		for i := 0; i < len(pairs); i += 2 {
			value[pairs[i]] = pairs[i+1]
		}
		s.must(s.API().Call(context.Background(), http.MethodPut, "parameters/shovel/"+s.Name+"/"+name, map[string]any{"value": value}, nil))
	}
}

func (s *site) limit(kind, of, name string, value int) {
	s.must(s.API().Call(context.Background(), http.MethodPut, kind+"/"+of+"/"+name, map[string]any{"value": value}, nil))
}

// connects opens a connection that the site has by a name, and channels on it.
func (s *site) connects(name, url string, channels int) (last *amqp.Channel) {
	s.t.Helper()
	conn := s.DialURL(url)
	s.conns[name] = conn
	for range channels {
		ch, err := conn.Channel()
		s.must(err)
		last = ch
	}
	return last
}

// consumer consumes a queue over a connection of that name, and keeps what it gets.
func consumer(name, queue string) func(*site) {
	return consumes(name, queue, func(s *site) string { return s.URL() }, 1, false)
}

func consumes(name, queue string, url func(*site) string, prefetch int, autoAck bool) func(*site) {
	return func(s *site) {
		s.t.Helper()
		ch := s.connects(name, url(s), 1)
		s.must(ch.Qos(prefetch, 0, false))
		in, err := ch.Consume(queue, "", autoAck, false, false, false, nil)
		s.must(err)
		go func() {
			for range in {
			}
		}()
	}
}

// gone ends a connection.
func gone(name string) func(*site) {
	return func(s *site) { s.must(s.conns[name].Close()) }
}

// rightsSites are about what users may, and what policies forward.
var rightsSites = []struct {
	yaml string
	all  []setup
}{
	{`policies: [{name: p, queues: [orders], attempts: 8, backoff: {fixed: 1m}, exhausted: {forward: {exchange: grave, routing_key: k}}}]`, []setup{
		{check: "permissions", status: doctor.Wrong, says: "it lacks configure on redrive; read on redrive, redrive.intake", makes: both(declared, queue("orders", safely(nil)), queue("dead", safely(nil)), func(s *site) {
			s.Exchange("grave", "fanout", "dead")
			s.url = s.ServiceURL(s.config().Policies)
			s.Grant(s.ServiceUser(), `^redrive\..*`, "^redrive.*", "")
		})}}},
	{`policies: [{name: p, queues: [orders], attempts: 8, backoff: {fixed: 1m}, exhausted: {forward: {exchange: grave, routing_key: k}}}]`, []setup{
		{check: "permissions", status: doctor.Wrong, says: "it lacks write on grave", makes: both(declared, queue("orders", safely(nil)), queue("dead", safely(nil)), func(s *site) {
			s.Exchange("grave", "fanout", "dead")
			s.url = s.ServiceURL(s.config().Policies)
			s.Grant(s.ServiceUser(), `^redrive.*`, "^(redrive.*|orders)$", "^redrive.*")
		})}}},
	{"", []setup{{check: "connection", status: doctor.Wrong, says: "", makes: func(s *site) {
		s.url = s.ServiceURL(s.config().Policies)
		s.Must(http.MethodDelete, "permissions/"+s.Name+"/"+s.ServiceUser(), nil)
	}, person: func(s *site) { s.ServiceURL(s.config().Policies) }}}},
	{`policies:
  - {name: a, queues: ["a.*"], attempts: 8, backoff: {fixed: 1m}, exhausted: {forward: {queue: grave.a}}}
  - {name: b, queues: ["b.*"], attempts: 8, backoff: {fixed: 1m}, exhausted: {forward: {exchange: grave/b, routing_key: k}}}
  - {name: c, queues: ["c.*"], attempts: 8, backoff: {fixed: 1m}, exhausted: {forward: {exchange: grave.c, routing_key: a.b}}}
  - {name: d, queues: ["d.*"], attempts: 8, backoff: {fixed: 1m}, exhausted: {forward: {exchange: grave.d}}}
  - {name: e, queues: ["e.*"], attempts: 8, backoff: {fixed: 1m}, exhausted: {forward: {exchange: grave.e, routing_key: k}}}`, []setup{
		{check: "forwards", status: doctor.Warning, says: `policy "a" forwards to the queue "grave.a", which does not exist`, makes: declared},
		{check: "forwards", status: doctor.Warning, says: `policy "b" forwards to the exchange "grave/b", which does not exist`},
		{check: "forwards", status: doctor.Warning, says: `policy "c" forwards to the exchange "grave.c", which routes nothing with the routing key "a.b"`, makes: both(queue("other", safely(nil)), exchange("grave.c", "topic", false, nil),
			onChannel(func(s *site, ch *amqp.Channel) { s.must(ch.QueueBind("other", "a.*.c", "grave.c", false, nil)) }))},
		{check: "forwards", status: doctor.Warning, says: `policy "d" forwards to the exchange "grave.d", which is internal`, silent: true, makes: exchange("grave.d", "fanout", true, nil),
			person: both(without("grave.d"), func(s *site) { s.Exchange("grave.d", "fanout", "other") })},
		{check: "forwards", status: doctor.Wrong, says: `policy "e" forwards to the exchange "grave.e" with the routing key "k", and a topic permission of user`, makes: func(s *site) {
			s.Exchange("grave.e", "topic", "other")
			s.must(s.Channel().QueueBind("other", "#", "grave.e", false, nil))
			s.url = s.ServiceURL(s.config().Policies)
			s.topic(s.ServiceUser(), "grave.e", "^mail$", ".*")
		}}}},
	{`policies: [{name: p, queues: [orders, "mail.*"], attempts: 8, backoff: {fixed: 1m}}]`, []setup{
		{check: "named-queues", queue: "orders", status: doctor.Warning, says: "a policy of the config names it, and it does not exist", makes: declared}}},
	{`policies: [{name: p, queues: ["orders.*", mail], attempts: 8, backoff: {fixed: 1m}}]`, []setup{
		{check: "topic-permissions", status: doctor.Wrong, says: "keeps the service from binding redrive.intake to redrive.failures", makes: both(declared, queue("orders.eu", safely(nil)), queue("orders.us", safely(nil)), queue("mail", safely(nil)), func(s *site) {
			s.url = s.ServiceURL(s.config().Policies)
			s.topic(s.ServiceUser(), wire.ExchangeFailures, "", "^x$")
		})},
		{check: "topic-permissions", status: doctor.Warning, says: "consumes orders.eu, and its topic permission (write \"^orders\\\\.us$\") permits it no report", makes: func(s *site) {
			user := s.reporter(`^orders\.us$`)
			consumes("reporter", "orders.eu", func(s *site) string { return s.URLAs(user, "s3cret") }, 10, false)(s)
		}},
		{check: "topic-permissions", status: doctor.Warning, says: "permits it no report of any queue that a policy matches", makes: func(s *site) { s.reporter("^nothing$") }}}},
	{"", []setup{{check: "reports", status: doctor.Warning, says: `reports of failures for queues that only "*" matches`, makes: func(s *site) {
		user := "untagged-" + uuid.NewString()
		s.User(user, "guest")
		s.Grant(user, ".*", ".*", ".*")
		s.manage = strings.Replace(s.Management, "guest:guest", user+":guest", 1)
	}}}},
	{`policies: [{name: p, queues: [orders], attempts: 8, backoff: {fixed: 1m}}]`, []setup{
		{check: "retry-policy", queue: "zoo", status: doctor.Warning, says: "no policy of Redrive's config matches it", makes: both(declared, queue("orders", safely(nil)), queue("zoo", safely(nil))), person: func(s *site) {
			s.yaml = everyQueue
		}}}},
}

func (s *site) topic(user, exchange, write, read string) {
	s.t.Helper()
	s.Must(http.MethodPut, "topic-permissions/"+s.Name+"/"+user, map[string]any{"exchange": exchange, "write": write, "read": read})
}

// reporter is a user with write on redrive.failures, with a topic permission.
func (s *site) reporter(write string) (user string) {
	user = "reporter-" + uuid.NewString()
	s.User(user, "s3cret")
	s.Grant(user, "", "^redrive\\.failures$", ".*")
	s.topic(user, wire.ExchangeFailures, write, "")
	return user
}

// clientSetups are about consumers.
var clientSetups = []setup{
	{check: "auto-ack", queue: "careless", status: doctor.Wrong, says: "1 of its 2 consumers acknowledge automatically", makes: both(declared, queue("careless", safely(nil)), consumer("careful", "careless"),
		consumes("careless", "careless", (*site).plainURL, 0, true)), person: gone("careless")},
	{check: "prefetch", queue: "greedy", status: doctor.Warning, says: "1 of its 1 consumers have no prefetch limit", makes: both(queue("greedy", safely(nil)), consumes("greedy", "greedy", (*site).plainURL, 0, false)),
		person: both(gone("greedy"), consumer("modest", "greedy"))},
	{check: "unacknowledged", queue: "stuck", status: doctor.Warning, says: "has 1 messages that it has not acknowledged, and has done nothing since 20", makes: both(queue("stuck", safely(nil)), fills("stuck", 2, 1), consumer("stuck", "stuck"))},
	{check: "requeue", queue: "circle", status: doctor.Warning, says: "deliveries a second are of messages that were delivered before", silent: true, makes: func(s *site) {
		s.Queue("circle", safely(nil))
		s.Publish("", "circle", amqp.Publishing{DeliveryMode: amqp.Persistent})
		ch := s.connects("circle", s.URL(), 1)
		s.must(ch.Qos(1, 0, false))
		in, err := ch.Consume("circle", "", false, false, false, false, nil)
		s.must(err)
		go func() {
			for d := range in {
				_ = d.Nack(false, true)
			}
		}()
	}, person: gone("circle")},
}

func (s *site) plainURL() string { return s.URL() }

// standingSetups are about dead letters that do not leave their queue.
var standingSetups = []setup{
	{check: "standing", queue: "kept", status: doctor.Wrong, says: "2 of its dead letters stand still in it: they go to the exchange gone, which does not exist",
		makes: both(declared, policed("kept", kind("quorum", nil), with(surely, map[string]any{"dead-letter-exchange": "gone"})), rejects("kept", 2))},
	{check: "standing", queue: "orders", status: doctor.Wrong, says: "3 of its dead letters stand still in it: they go to the exchange redrive, which does not exist",
		makes: both(without("redrive"), queue("orders", safely(nil)), rejects("orders", 3))},
	{check: "standing", queue: "named", status: doctor.Wrong, says: "they go to the queue gone, which does not exist", silent: true,
		makes:  both(queue("named", safely(amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "gone"})), rejects("named", 1)),
		person: queue("gone", safely(nil))},
}

// rejected rejects a message that is in a queue or comes.
func rejected(name string) func(*site) {
	return func(s *site) {
		c := s.Consume(name)
		c.Reject()
		s.must(c.Channel.Close())
	}
}

func rejects(name string, n int) func(*site) {
	return func(s *site) {
		work := s.Consume(name)
		for range n {
			s.Publish("", name, amqp.Publishing{DeliveryMode: amqp.Persistent})
			work.Reject()
		}
		s.must(work.Channel.Close())
	}
}

// serviceSites are about a service.
var serviceSites = [][]setup{
	{{check: "service", status: doctor.Warning, says: "no service answers at http://", makes: func(s *site) { s.asked = true }}},
	{{check: "parked-in-rabbitmq", status: doctor.Warning, says: "messages in redrive.parked: 1, and no service collects them", makes: both(declared, func(s *site) {
		s.Publish("", wire.QueueParked, amqp.Publishing{DeliveryMode: amqp.Persistent})
	})}},
	{{check: "consumers", queue: "idle", status: doctor.Warning, says: "it has no consumer, and 1 messages", makes: both(served, queue("idle", safely(nil)), fills("idle", 1, 1)), person: consumer("worker", "idle")},
		{check: "consumers", queue: "--idle", status: doctor.Warning, says: "it has no consumer, and 0 messages", makes: queue("--idle", safely(nil)), person: consumer("worker2", "--idle")}},
	{{check: "service", status: doctor.Wrong, says: "not ready: intake: ", makes: func(s *site) {
		s.url = s.ServiceURL(s.config().Policies)
		s.Grant(s.ServiceUser(), "^$", ".*", ".*")
		s.asked = true
		s.config()
		s.serves("redrive serve --config " + doctor.Quote(s.file()))
	}, person: func(s *site) { s.ServiceURL(s.config().Policies) }}},
}

// served starts a service, as a person does.
func served(s *site) {
	s.asked = true
	s.config()
	s.serves("redrive serve --config " + doctor.Quote(s.file()))
	brokertest.Eventually(s.t, "the service is ready", func() bool {
		resp, err := http.Get("http://" + s.listen + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// sceneSetups change what was gathered, where the rest of the machine would have to be wrong.
var sceneSetups = []setup{
	{check: "alarms", status: doctor.Wrong, says: " is down", scene: func(s *doctor.Scene) { s.Nodes[0].Running = false }},
	{check: "guest", status: doctor.Warning, says: "the service connects as guest to mq.example", scene: func(s *doctor.Scene) {
		c := *s.Config
		c.Broker.URL = "amqp://guest:x@mq.example/"
		s.Config = &c
	}},
	{check: "transport", status: doctor.Warning, says: "REDRIVE_INSECURE=1", makes: func(s *site) { s.env = append(s.env, "REDRIVE_INSECURE=1") }, person: func(s *site) { s.env = s.env[:len(s.env)-1] }},
	{check: "clock", status: doctor.Warning, says: "RabbitMQ's clock is 1m30s ahead of this one", scene: func(s *doctor.Scene) { s.Ahead = 90 * time.Second },
		// The command would set the clock of this machine.
		makes: func(s *site) {
			s.must(os.WriteFile(filepath.Join(s.dir, "timedatectl"), []byte("#!/bin/sh\ntest \"$*\" = 'set-ntp true'\n"), 0o700))
		}},
}

// redisSetups are about Redis.
func redisSetups(r *redisnode.Server) []setup {
	set := func(name, value string) func(*site) {
		return func(s *site) {
			s.redis = r.URL()
			_, err := r.Do(context.Background(), "CONFIG", "SET", name, value)
			s.must(err)
		}
	}
	return []setup{
		{check: "redis", status: doctor.Wrong, says: "maxmemory-policy is allkeys-lru", makes: set("maxmemory-policy", "allkeys-lru")},
		{check: "redis", status: doctor.Warning, says: "has no maxmemory", makes: set("maxmemory", "0")},
		{check: "redis", status: doctor.Wrong, says: "writes nothing to its disk", makes: set("appendonly", "no")},
	}
}
