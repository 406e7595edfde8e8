package doctor

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

func scene(change func(*Scene)) *Scene {
	c := config.Default()
	c.Broker.Management = "http://guest:guest@127.0.0.1:15672"
	m, _ := management.New(c.Broker.Management, "/")
	s := &Scene{Config: c, User: "redrive", VHost: "/", Version: "4.3.6", FrameMax: usualFrame, StoreFree: 1 << 40, Manage: m, Missing: map[Part]error{}}
	change(s)
	return s
}

// consumes has a user besides the service's, and an enrolled queue that two exchanges lead to.
func consumes(write, read string) func(*Scene) {
	return func(s *Scene) {
		s.Queues = []management.QueueState{{Queue: management.Queue{Name: "orders", Type: "quorum", Arguments: map[string]any{"x-dead-letter-exchange": "redrive"}, Durable: true}}}
		s.Bindings = []management.Binding{{Destination: "orders", DestinationType: "queue"}, {Source: "shop", Destination: "orders", DestinationType: "queue"},
			{Source: "redrive.retry.orders", Destination: "orders", DestinationType: "queue"}, {Source: "mail", Destination: "mail", DestinationType: "queue"}}
		s.Permissions = []management.Permission{{User: "redrive", Configure: ".*", Write: ".*", Read: ".*"}, {User: "worker", Configure: "^$", Write: write, Read: read}}
	}
}

// deadLetters is a durable quorum queue with a dead-letter exchange.
func deadLetters(queue, to string) management.QueueState {
	return management.QueueState{Queue: management.Queue{Name: queue, Type: "quorum", Durable: true,
		Arguments: map[string]any{"x-dead-letter-exchange": to}}}
}

// asks has the queues orders and mail.eu, a policy for others, and the patterns of --queue.
func asks(named []string, only ...string) func(*Scene) {
	return func(s *Scene) {
		s.Queues = []management.QueueState{deadLetters("orders", "redrive"), deadLetters("mail.eu", "redrive")}
		s.Config.Policies[0].Queues, s.Only = named, only
	}
}

// withArgument has an enrolled queue with a limit and an argument.
func withArgument(key, value string) func(*Scene) {
	return func(s *Scene) {
		q := deadLetters("orders", "redrive")
		q.Arguments["x-"+key], q.Arguments["x-max-length"] = value, 9.0
		s.Queues = []management.QueueState{q}
	}
}

// cannotEnroll has a queue that a policy names exactly.
func cannotEnroll(kind string, exclusive bool) func(*Scene) {
	return func(s *Scene) {
		s.Queues = []management.QueueState{{Queue: management.Queue{Name: "orders", Type: kind, Exclusive: exclusive}}}
		s.Config.Policies[0].Queues = []string{"orders"}
	}
}

// watches has the queue orders, and watches others.
func watches(queues ...string) func(*Scene) {
	return func(s *Scene) {
		s.Queues, s.Config.Watch = []management.QueueState{deadLetters("orders", "redrive")}, config.Watches{{Queues: queues}}
	}
}

// forwardsTo has a policy that forwards there, by a rule and in the end; the exchange shop and the queue orders exist.
func forwardsTo(exchange, key string) func(*Scene) {
	return func(s *Scene) {
		s.Queues = []management.QueueState{deadLetters("orders", "redrive")}
		s.Exchanges = []management.Exchange{{Name: "shop"}}
		to := policy.Destination{Exchange: exchange, RoutingKey: key}
		s.Config.Policies[0].Rules = []policy.Rule{{Then: policy.RuleOutcome{Action: policy.Forward, Destination: to}}}
		s.Config.Policies[0].Exhausted = policy.Exhausted{Action: policy.Forward, Destination: to}
	}
}

// expires has a queue that no policy matches, with a time to live by argument or operator policy.
func expires(to string, argument, operator any) func(*Scene) {
	return func(s *Scene) {
		q := deadLetters("orders", to)
		if argument != nil {
			q.Arguments["x-message-ttl"] = argument
		}
		if operator != nil {
			q.OperatorPolicy, q.Effective = "op", map[string]any{"message-ttl": operator}
			s.OperatorPolicies = []management.Policy{{Name: "op", Definition: q.Effective}}
		}
		s.Queues, s.Config.Policies[0].Queues = []management.QueueState{q}, []string{"mail"}
	}
}

func nodes(names ...string) (all []management.Node) {
	for _, n := range names {
		all = append(all, management.Node{Name: n, Running: true})
	}
	return all
}

// intakeOn is redrive.intake with replicas there.
func intakeOn(nodes ...string) []management.QueueState {
	return []management.QueueState{{Queue: management.Queue{Name: "redrive.intake", Type: "quorum"}, Members: nodes}}
}

// theirs sets a policy of theirs on an exchange or queue with arguments.
func theirs(policy, name, kind string, definition, arguments map[string]any) func(*Scene) {
	return func(s *Scene) {
		s.Policies = []management.Policy{{Name: policy, Pattern: ".*", ApplyTo: "all", Definition: definition}}
		if kind == "queue" {
			s.Queues = []management.QueueState{{Queue: management.Queue{Name: name, Policy: policy, Effective: definition, Arguments: arguments}}}
			return
		}
		s.Exchanges = []management.Exchange{{Name: name, Policy: policy, Internal: name == "redrive", Arguments: arguments}}
	}
}

// federated has another cluster federate a retry exchange. [as RabbitMQ 3.10.8 and 4.3.6 show it]
func federated(s *Scene) {
	const link = "federation: redrive.retry.q -> rabbit@b:/b:redrive.retry.q B"
	s.Queues = []management.QueueState{{Queue: management.Queue{Name: "q"}}}
	s.Exchanges = []management.Exchange{{Name: "redrive.retry.q", Type: "fanout", Durable: true},
		{Name: link, Type: "x-federation-upstream", Arguments: map[string]any{"x-downstream-name": "rabbit@b", "x-downstream-vhost": "/b"}}}
	s.Bindings = []management.Binding{{Source: "redrive.retry.q", Destination: "q", DestinationType: "queue"}, {Source: "redrive.retry.q", Destination: link, DestinationType: "exchange"}}
}

// standsIn is a queue that dead-letters to redrive, with dead letters that stand still and
// replicas there, of which the first leads.
func standsIn(queue string, nodes ...string) func(*Scene) {
	return func(s *Scene) {
		s.Queues = []management.QueueState{{Queue: management.Queue{Name: queue, Type: "quorum", Arguments: map[string]any{"x-dead-letter-exchange": "redrive"}}, Leader: nodes[0], Online: nodes}}
		s.Exchanges, s.Bindings = []management.Exchange{{Name: "redrive"}}, []management.Binding{{Source: "redrive"}}
		s.Standing = map[string]int{queue: 3}
	}
}

// redelivers has a queue whose deliveries of the last minute were so many, of them again so many that
// were redelivered, and now so many of these a second.
func redelivers(again, all, now float64) func(*Scene) {
	return func(s *Scene) {
		s.Queues = []management.QueueState{{Queue: management.Queue{Name: "orders", Type: "classic"},
			Stats: management.Stats{Redelivered: management.Rate{Now: now, Average: again / 60}, Delivered: management.Rate{Average: all / 60}}}}
	}
}

// hangs has a queue whose single active consumer hangs.
func hangs(s *Scene) {
	s.Queues = []management.QueueState{{Queue: management.Queue{Name: "orders", Ready: 10, Unacked: 5, Consumers: 2,
		Arguments: map[string]any{"x-single-active-consumer": true, "x-dead-letter-exchange": "redrive"}}}}
}

// laneOfOrders is the lane queue of orders, with due messages that orders does not accept.
func laneOfOrders(args map[string]any, messages int, leader string) func(*Scene) {
	return func(s *Scene) {
		standsIn("redrive.lane.orders", "a@h")(s)
		s.Queues[0].Arguments = map[string]any{"x-dead-letter-exchange": "redrive", "x-dead-letter-routing-key": "orders"}
		orders := management.QueueState{Queue: management.Queue{Name: "orders", Type: "quorum", Arguments: args, Messages: messages}, Members: []string{"a@h"}, Leader: leader}
		if leader != "" {
			orders.Online = orders.Members
		}
		s.Queues = append(s.Queues, orders)
	}
}

// well is how a Redis should be that has no replicas.
var well = redisstore.Server{Addr: "h:6379", Version: "7.0.15", Eviction: "noeviction", Max: 1 << 30, Used: 1 << 20, AppendOnly: true, Fsync: "always"}

func with(change func(*redisstore.Server)) redisstore.Server {
	r := well
	change(&r)
	return r
}

func inRedis(durability string, r redisstore.Server) func(*Scene) {
	return func(s *Scene) {
		s.Config.Store.Redis = config.Redis{URL: "redis://h:6379", Durability: durability}
		s.Redis = []redisstore.Server{r}
	}
}

// named is a queue without settings, and a policy for a pattern.
func named(queue string, ready int, pattern string) func(*Scene) {
	return func(s *Scene) {
		s.Queues = []management.QueueState{{Queue: management.Queue{Name: queue, Type: "classic", Ready: ready}}}
		s.Config.Policies = policy.Set{{Name: "p", Queues: []string{pattern}}}
	}
}

func changed(make func(*Scene), change func(*management.QueueState)) func(*Scene) {
	return func(s *Scene) {
		make(s)
		change(&s.Queues[0])
	}
}

// What two brokers on one machine cannot show.
func TestChecksOnScenes(t *testing.T) {
	type row struct {
		check  string
		change func(*Scene)
		want   string // "" is ok
	}
	rows := []row{
		{"rabbitmq-version", func(s *Scene) { s.Version = "3.9.1" }, "wrong: RabbitMQ 3.9.1 is too old"},
		{"rabbitmq-version", func(s *Scene) { s.Version = "3.13.7" }, "warning: RabbitMQ 3.13.7 fails over a malformed x-death"},
		{"rabbitmq-version", func(s *Scene) { s.Version = "x" }, "unknown: "},
		{"clock", func(s *Scene) { s.Ahead, s.Within = 3*time.Second, time.Second }, ""},
		{"clock", func(s *Scene) { s.Ahead = 90 * time.Second }, "warning: RabbitMQ's clock is 1m30s ahead of this one"},
		{"clock", func(s *Scene) { s.Ahead = -5 * time.Second }, "5s behind this one"},
		{"clock", func(s *Scene) { s.Missing[Clock] = errors.New("no date") }, "unknown: not looked at"},
		{"store-room", func(s *Scene) { s.StoreFree = 400 << 20 }, "warning: the store's disk has 400 MiB free, and store.reserve is 256 MiB"},
		{"store-room", func(s *Scene) { s.StoreFree = 100 << 20 }, "wrong: "},
		{"redis", func(s *Scene) {}, ""},
		{"redis", inRedis("", well), ""},
		{"redis", inRedis("", with(func(r *redisstore.Server) { r.Eviction = "allkeys-lru" })), "wrong: Redis at h:6379 deletes messages when its memory is full: maxmemory-policy is allkeys-lru $ redis-cli -h h -p 6379 CONFIG SET maxmemory-policy noeviction"},
		{"redis", inRedis("", with(func(r *redisstore.Server) { r.Max = 0 })), "warning: Redis at h:6379 has no maxmemory"},
		{"redis", inRedis("", with(func(r *redisstore.Server) { r.AppendOnly = false })), "CONFIG SET appendonly yes $ redis-cli -h h -p 6379 CONFIG SET appendfsync always"},
		{"redis", inRedis("", with(func(r *redisstore.Server) { r.Fsync = "everysec" })), "wrong: Redis at h:6379 does not confirm that a write is on its disk: appendfsync is everysec"},
		{"redis", inRedis("", with(func(r *redisstore.Server) { r.Fsync, r.Version = "everysec", "7.4.0" })), "warning: Redis at h:6379 syncs once a second"},
		{"redis", inRedis("cached", with(func(r *redisstore.Server) { r.AppendOnly = false })), ""},
		{"redis", inRedis("replicated", well), "wrong: Redis at h:6379 has 0 replicas, and a write counts when 1 have it"},
		{"redis", inRedis("replicated", with(func(r *redisstore.Server) { r.Replicas = 1 })), ""},
		{"redis", func(s *Scene) { inRedis("", well)(s); s.Failover = true }, "warning: a server that is replaced by its replica loses"},
		{"redis", func(s *Scene) { inRedis("", well)(s); s.Missing[Store] = errors.New("no answer") }, "unknown: not looked at"},
		{"redis", func(s *Scene) { s.Missing[Store] = errors.New("its folder is elsewhere") }, ""},
		{"store-room", inRedis("", well), ""},
		{"store-room", inRedis("", with(func(r *redisstore.Server) { r.Used = 900 << 20 })), "warning: Redis has 124 MiB of its maxmemory free, and 102 MiB of that are kept in reserve"},
		{"store-room", inRedis("", with(func(r *redisstore.Server) { r.Used = 1000 << 20 })), "wrong: "},
		{"alarms", func(s *Scene) { s.Nodes = []management.Node{{Name: "rabbit@b"}} }, "wrong: node rabbit@b is down $ rabbitmqctl -n rabbit@b status"},
		{"connection", func(s *Scene) { s.Unreached = []error{errors.New("no route to h2")} }, "warning: one of several addresses does not answer: no route to h2"},
		{"replicas", func(s *Scene) { s.Nodes, s.Queues = nodes("a"), intakeOn("a") }, ""},
		{"replicas", func(s *Scene) { s.Nodes, s.Queues = nodes("a", "b", "c", "d"), intakeOn("a", "c", "d") }, ""},
		{"replicas", func(s *Scene) { s.Nodes, s.Queues = nodes("a", "b", "c", "d"), intakeOn("b") },
			"warning: the cluster has 4 nodes, and of our quorum queues some have fewer than 3 replicas: redrive.intake has 1" +
				" $ rabbitmq-queues grow a all --vhost-pattern '^/$' --queue-pattern '^redrive\\.intake$'" +
				" $ rabbitmq-queues grow c all --vhost-pattern '^/$' --queue-pattern '^redrive\\.intake$'"},
		{"replicas", func(s *Scene) {
			s.Nodes, s.Queues = nodes("a", "b"), intakeOn("a")
			s.Nodes[1].Running = false
		}, "redrive.intake has 1"},
		{"dead-lettering", named("orders_error", 4, "*"),
			"warning orders_error: it looks like a dead-letter queue: its name is that of a dead-letter queue; messages: 4 $ redrive adopt orders_error"},
		{"dead-lettering", named("orders_error", 0, "*"), ""},
		{"dead-lettering", named("orders_error", 4, "orders_error"),
			"wrong orders_error: it has no dead-letter exchange: what consumers reject is gone $ redrive enroll orders_error"},
		{"dead-lettering", named("orders", 4, "*"),
			"warning orders: it has no dead-letter exchange: what consumers reject is gone $ redrive enroll orders"},
		{"forgotten", named("old.reports", 8, "x"), "warning: messages, and no consumer: old.reports (8) $ "},
		{"forgotten", named("old.reports", 0, "x"), ""},
		{"forgotten", named("orders_error", 8, "x"), ""},
		{"forgotten", changed(named("old", 8, "x"), func(q *management.QueueState) { q.Consumers = 1 }), ""},
		{"forgotten", changed(named("old", 8, "x"), func(q *management.QueueState) { q.Type = "stream" }), ""},
		{"forgotten", changed(named("old", 8, "x"),
			func(q *management.QueueState) { q.Arguments = map[string]any{"x-dead-letter-exchange": "redrive"} }), ""},
		{"forgotten", changed(named("old", 8, "x"), func(q *management.QueueState) {
			q.Arguments = map[string]any{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-message-ttl": 5.0}
		}), ""},
		{"standing", standsIn("orders", "a@h", "b@h"), "wrong orders: 3 of its dead letters stand still in it, and their target is there $ rabbitmqctl eval "},
		{"standing", standsIn("orders", "a@h"), "wrong orders: 3 of its dead letters stand still in it, and their target is there $ "},
		{"standing", func(s *Scene) { standsIn("orders", "a@h")(s); s.Standing = nil }, ""},
		{"standing", laneOfOrders(map[string]any{"x-max-length": 5.0, "x-overflow": "reject-publish"}, 5, "a@h"), "wrong orders: 3 of its retries are due and stay in redrive.lane.orders, since it is full (max-length: 5) and its overflow is reject-publish $ "},
		{"standing", laneOfOrders(nil, 5, ""), "wrong orders: 3 of its retries are due and stay in redrive.lane.orders, since 0 of its 1 replicas run, so it has no leader $ "},
		{"standing", laneOfOrders(map[string]any{"x-max-length": 5.0, "x-overflow": "drop-head"}, 5, "a@h"), "since it does not accept them $ "},
		{"standing", func(s *Scene) { s.Missing[DeadLetters] = errors.New("no answer") }, "unknown: not looked at"},
		{"standing", func(s *Scene) {
			standsIn("orders", "a@h")(s)
			s.Queues[0].Arguments = map[string]any{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "gone"}
		}, "they go to the queue gone, which does not exist $ "},
		{"sizes", func(s *Scene) { s.FrameMax = 8192 }, "warning: frames are limited to 8192 bytes"},
		{"sizes", func(s *Scene) { s.FrameMax = 0 }, ""},
		{"sizes", func(s *Scene) {
			s.Queues = []management.QueueState{{Queue: management.Queue{Name: "q", Messages: 2}, Bytes: 80 << 20}}
		}, "warning q: its messages have 40 MiB on average, and RabbitMQ 4.3.6 takes 16 MiB unless"},
		{"transport", func(s *Scene) { s.Config.Broker.URL = "amqp://u:p@mq.example/" }, "warning: broker.url speaks to mq.example without TLS"},
		{"transport", func(s *Scene) { s.Config.Broker.URL = "amqps://u:p@mq.example/?verify=verify_none" }, "which Redrive ignores"},
		{"transport", func(s *Scene) { s.Config.Broker.URL = "amqps://u:p@mq.example/" }, ""},
		{"transport", func(s *Scene) { s.Config.Broker.URL = "amqp://u:p@[::1]:5672/" }, ""},
		{"transport", func(s *Scene) { s.Config.Broker.Management = "http://u:p@10.1.2.3:15672" }, "broker.management speaks to 10.1.2.3 without TLS"},
		{"transport", func(s *Scene) { s.Config.Broker.URL = "amqp://u:p@127.0.0.1/,amqp://u:p@mq2.example/" }, "broker.url speaks to mq2.example without TLS"},
		{"transport", func(s *Scene) { s.Insecure = true }, "warning: REDRIVE_INSECURE=1"},
		{"guest", func(s *Scene) { s.Guest = true }, "wrong: RabbitMQ lets guest in from other machines, with the password guest $ rabbitmqctl delete_user guest"},
		{"guest", func(s *Scene) { s.User, s.Config.Broker.URL = "guest", "amqp://guest:x@mq.example/" }, "warning: the service connects as guest to mq.example $ redrive permissions"},
		{"foreign-policies", theirs("all", "redrive", "exchange", map[string]any{"federation-upstream-set": "all"}, nil), ""}, // it is internal
		{"foreign-policies", theirs("all", "redrive.retry.q", "exchange", map[string]any{"federation-upstream-set": "all"}, map[string]any{"alternate-exchange": "redrive.retry.q"}),
			"wrong: a RabbitMQ policy (all) puts federation-upstream-set: all on our exchange redrive.retry.q $ rabbitmqctl set_policy -p / all '^(?!redrive(\\.|$)).*?(?:.*)'"},
		{"foreign-policies", theirs("all", "redrive.retry.q", "exchange", map[string]any{"alternate-exchange": "x"}, nil), "puts alternate-exchange: x on our exchange redrive.retry.q"},
		{"foreign-policies", theirs("all", "redrive.retry.q", "exchange", map[string]any{"alternate-exchange": "x"}, map[string]any{"alternate-exchange": "redrive.retry.q"}), ""},
		{"foreign-policies", theirs("all", "orders", "exchange", map[string]any{"alternate-exchange": "x"}, nil), ""},
		{"foreign-policies", theirs("all", "redrive.delay.1m", "queue", map[string]any{"dead-letter-routing-key": "dead"}, nil), "puts dead-letter-routing-key: dead on our queue redrive.delay.1m"},
		{"foreign-policies", theirs("all", "redrive.delay.1m", "queue", map[string]any{"message-ttl": 59999.0}, map[string]any{"x-message-ttl": 60000.0}), "puts message-ttl: 59999 on our queue"},
		{"foreign-policies", theirs("all", "redrive.delay.1m", "queue", map[string]any{"message-ttl": 60000.0}, map[string]any{"x-message-ttl": 60000.0}), ""},
		{"foreign-policies", theirs("all", "redrive.intake", "queue", map[string]any{"federation-upstream": "x"}, nil), "puts federation-upstream: x on our queue redrive.intake"},
		{"foreign-policies", federated, "wrong: the virtual host /b of rabbit@b gets a copy of each message of our exchange redrive.retry.q, by federation"},
		{"retry-exchange", federated, ""}, // to remove the binding would be no remedy
		{"service", func(s *Scene) { s.Service = Service{Asked: "http://x", Err: errors.New("refused")} }, ""},
		{"service", func(s *Scene) {
			s.File, s.Service = "my redrive.yaml", Service{Asked: "http://x", Named: true, Err: errors.New("refused")}
		}, "warning: no service answers at http://x: refused $ redrive serve --config 'my redrive.yaml'"},
		{"service", func(s *Scene) {
			s.Service = Service{Asked: "http://x", Problems: []string{"intake: not connected"}, Notices: []string{"look"}}
		}, "wrong: not ready: intake: not connected"},
		{"permissions", func(s *Scene) { s.Missing[Permissions] = errors.New("no tag") }, "unknown: "},
		{"permissions", func(s *Scene) {
			s.Missing[Permissions], s.Service = errors.New("no tag"), Service{Asked: "http://x"}
		}, ""},
		{"permissions", func(s *Scene) {
			s.Permissions = []management.Permission{{User: "redrive", Configure: "(?<!x)", Write: ".*", Read: ".*"}}
		}, "unknown: "},
		{"permissions", func(s *Scene) {
			s.Permissions = []management.Permission{{User: "redrive", Configure: `^redrive.*`, Write: `^redrive\..*`, Read: `^redrive.*`}}
			s.Config.Policies[0].Exhausted = policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{Exchange: "graveyard"}}
		}, `wrong: user "redrive": it lacks write on graveyard $ rabbitmqctl set_permissions`},
		{"permissions", func(s *Scene) {
			s.Permissions = []management.Permission{{User: "redrive", Configure: `^redrive.*`, Write: `^redrive\..*`,
				Read: `^redrive.*`}}
			s.Config.Adopt = []config.Followed{{Name: "mail_error", Queue: "mail", Then: config.ThenRetry}}
		}, `wrong: user "redrive": it lacks read on mail_error; write on mail $ rabbitmqctl set_permissions`},
		{"permissions", consumes("^(shop|mail)$", ".*"), `warning: user "worker" consumes orders and publishes there, but may not publish to redrive.retry.<queue> $ rabbitmqctl set_permissions -p / worker '^$' '^(shop|mail)$|^redrive\.retry\.orders$' '.*'`},
		{"permissions", consumes("amq.default", "^orders$"), `warning: user "worker"`},
		{"permissions", consumes("^mail$", ".*"), ""},     // publishes elsewhere
		{"permissions", consumes("^shop$", "^mail$"), ""}, // consumes elsewhere
		{"permissions", consumes(".*", ".*"), ""},         // may
		{"permissions", consumes("(?<!x)", ".*"), ""},     // cannot be judged
		{"connection", func(s *Scene) { s.Missing[AMQP] = errors.New("refused") }, "wrong: refused"},
		{"existence", asks([]string{"orders", "mail?*"}), ""},
		{"existence", asks([]string{"orders", "ordres"}),
			`warning ordres: a policy names it, and it does not exist (did you mean "orders"?)`},
		{"existence", asks(nil, "ord*", "mail.eu"), ""},
		{"existence", asks(nil, "invoices.*"), "warning invoices.*: no queue of this virtual host matches it $ "},
		{"existence", asks([]string{"ordres"}, "mali.eu"), // one finding: --queue leaves out the policy's
			`warning mali.eu: no queue of this virtual host matches it (did you mean "mail.eu"?) $ `},
		{"at-least-once", withArgument("overflow", "drop-head"), "warning orders: its dead-lettering is at-most-once $ "},
		{"at-least-once", withArgument("dead-letter-strategy", "at-most-once"), "is at-most-once $ "},
		{"at-least-once", withArgument("overflow", "reject-publish"), "is at-most-once $ redrive enroll --at-least-once orders"},
		{"overflow", withArgument("dead-letter-strategy", "at-most-once"), "(overflow drop-head) $ rabbitmqctl set_policy"},
		{"dead-lettering", cannotEnroll("stream", false), ""},
		{"dead-lettering", cannotEnroll("classic", true), ""},
		{"dead-lettering", cannotEnroll("classic", false), "wrong orders: it has no dead-letter exchange"},
		{"existence", watches("orders", "mail.*", "?"), ""},
		{"existence", watches("ordres"), `warning ordres: watch names it, and it does not exist (did you mean "orders"?) $ `},
		{"existence", func(s *Scene) { watches("ordres")(s); s.Config.Notify.VHost = "shop" }, ""},
		{"forwards", forwardsTo("dead", ""),
			`wrong: policy "default" forwards to the exchange dead, which does not exist`},
		{"forwards", forwardsTo("shop", "dead"), ""},
		{"forwards", forwardsTo("", "orders"), ""},
		{"forwards", forwardsTo("", "dead"),
			`wrong: policy "default" forwards to the queue dead, which does not exist $ curl -u guest -X PUT -d '{"durable":true,"arguments":{"x-queue-type":"quorum"}}' http://127.0.0.1:15672/api/queues/%2F/dead`},
		{"lifetime", expires("redrive", 90_000.0, nil),
			"warning orders: a message that no consumer takes within 1m 30s expires"},
		{"lifetime", expires("redrive", nil, nil), ""},
		{"lifetime", expires("dead", 90_000.0, nil), ""},    // not enrolled
		{"lifetime", expires("redrive", nil, 90_000.0), ""}, // policy-in-force tells
		{"policy-in-force", expires("redrive", nil, 90_000.0), "puts message-ttl: 90000 on it"},
		{"dead-lettering", expires("dead", nil, nil),
			"warning orders: it dead-letters to the exchange dead, which does not exist: its dead letters are dropped"},
		{"dead-lettering", func(s *Scene) {
			expires("dead", nil, nil)(s)
			s.Exchanges = []management.Exchange{{Name: "dead"}}
		}, ""},
		{"requeue", redelivers(5, 8, 0), ""}, // consumers were stopped
		{"requeue", redelivers(6, 8, 0), "warning orders: 6 of 8 deliveries in the last minute were of messages that were delivered before"},
		{"requeue", redelivers(60, 600, 12), ""}, // just now
		{"requeue", redelivers(60, 600, 1.6), "warning orders: 60 of 600 deliveries"},
		{"deliveries", func(s *Scene) { hangs(s); s.Queues[0].Stats.Delivered.Average = 1. / 60 }, ""},
		{"deliveries", func(s *Scene) { hangs(s); s.Queues[0].Consumers = 0 }, ""}, // or statistics are switched off
		{"deliveries", hangs, "warning orders: messages ready: 10, unacknowledged: 5, consumers: 2; and none was delivered in the last minute. It has a single active consumer: the others wait until that one ends $ rabbitmqctl list_consumers -p / queue_name"},
		{"quarantine", func(s *Scene) { s.Missing[AMQP] = errors.New("refused") }, "unknown: "},
	}
	for i, r := range rows {
		got := ills(scene(r.change), r.check)
		if r.want == "" && got != "" || !strings.Contains(got, r.want) ||
			strings.HasSuffix(r.want, " $ ") && !strings.HasSuffix(got, r.want) { // no command
			t.Errorf("%d %s says %q, want %q", i, r.check, got, r.want)
		}
	}
}

// The printed command grants all that was lacking, also on queues that no policy names or that --queue leaves out.
func TestThePrintedRightsSuffice(t *testing.T) {
	s := scene(func(s *Scene) {
		for _, name := range []string{"orders", "zoo", "zoo.eu"} {
			s.Queues = append(s.Queues, deadLetters(name, "redrive"))
		}
		s.Config.Policies[0].Queues, s.Only = []string{"orders"}, []string{"zoo"}
		s.Config.Policies[0].Exhausted = policy.Exhausted{Action: policy.Forward,
			Destination: policy.Destination{Exchange: "graveyard"}}
		s.Config.Adopt = []config.Followed{{Name: "mail_error", Queue: "mail", Then: config.ThenRetry}}
	})
	_, command, _ := strings.Cut(ills(s, "permissions"), "set_permissions -p / redrive ")
	rights := strings.Split(strings.Trim(command, "'"), "' '")
	if len(rights) != 3 {
		t.Fatalf("the command ends in %q", command)
	}
	s.Permissions = []management.Permission{{User: "redrive", Configure: rights[0], Write: rights[1], Read: rights[2]}}
	expect.Equal(t, ills(s, "permissions"), "", "after %s it says", command)
}

// What no command changes is said once, with all queues that --queue leaves.
func TestClassicQueuesAreOneFinding(t *testing.T) {
	s := scene(func(s *Scene) {
		s.Only = []string{"c*"}
		for _, name := range []string{"a", "c1", "c2", "c3", "c4", "c5"} {
			q := deadLetters(name, "redrive")
			q.Type = "classic"
			s.Queues = append(s.Queues, q)
		}
	})
	const want = "warning: dead-lettering is at-most-once for all but quorum queues: c1, c2, c3, c4 and 1 more $ "
	expect.Equal(t, ills(s, "at-least-once"), want, "it says")
	for _, f := range Examine(s).Findings {
		if f.Check == "at-least-once" && !slices.Equal(f.Queues, []string{"c1", "c2", "c3", "c4", "c5"}) {
			t.Errorf("its queues are %q", f.Queues)
		}
	}
}

func TestTheServicesOwnProblemsAreFindings(t *testing.T) {
	for _, c := range []struct {
		code       int
		text, want string
	}{
		{200, "ready\n", ""},
		{200, "ready\nlook at this\n", "warning: look at this"},
		{503, "intake: not connected\n", "wrong: not ready: intake: not connected"},
		{503, "intake: not connected\nqueue orders: it does not exist\n", "warning: queue orders: it does not exist"},
		{503, "consumers of queue orders: none; its retries wait\ndelivery limit: 3\n",
			"warning: consumers of queue orders: none; its retries wait"},
		{200, "ready\nqueue orders: it does not exist\n", "warning: queue orders: it does not exist"},
		{200, "ready\nclock: this machine's clock was set back by 1h0m0s\n", "warning: clock: this machine's clock was set back"},
		{200, "<html>a shop</html>", "warning: no service answers at"},
		{404, "", "warning: no service answers at"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/readyz" {
				t.Errorf("it asked for %s", r.URL)
			}
			w.WriteHeader(c.code)
			fmt.Fprint(w, c.text)
		}))
		s := scene(func(s *Scene) { s.service(context.Background(), Options{Service: server.URL + "/", Named: true}) })
		server.Close()
		if got := ills(s, "service"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%d %q: it says %q", c.code, c.text, got)
		}
	}
}

// A report of a part that is missing says why and is not ok; --queue leaves others
// out; what --fix does is said once.
func TestReports(t *testing.T) {
	s := scene(func(s *Scene) {
		for _, p := range []Part{AMQP, Queues, DeadLetters, Exchanges, Bindings, Policies, Operator, Nodes, Permissions, Clock, Store} {
			s.Missing[p] = errors.New("no " + string(p))
		}
	})
	r := Examine(s)
	if r.Status != Wrong || r.Queues != nil { // no connection
		t.Errorf("a report of nothing is %s", r.Status)
	}
	for _, c := range Checks {
		i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Check == c.Name })
		if i < 0 {
			t.Errorf("%s says nothing", c.Name)
		} else if f := r.Findings[i]; f.Status == OK && len(c.Needs) > 0 {
			t.Errorf("%s is ok without having looked: %+v", c.Name, f)
		}
	}
	s = scene(func(s *Scene) {
		s.Only = []string{"a*"}
		for _, name := range []string{"alpha", "beta"} {
			s.Queues = append(s.Queues, management.QueueState{Queue: management.Queue{Name: name, Type: "classic", Arguments: map[string]any{"x-dead-letter-exchange": "redrive"}, Durable: true}})
		}
	})
	r = Examine(s)
	if *r.Enrolled != 1 || slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Queue == "beta" }) || !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Queue == "alpha" }) {
		t.Errorf("with --queue a*: %+v", r)
	}
	if steps := r.Plan().Steps(); len(steps) != 1 || !strings.Contains(steps[0], "redrive.intake") {
		t.Errorf("the plan is %q", steps)
	}
}

var update = flag.Bool("update", false, "write docs/reference/doctor.md")

// The page has what each check looks at, from its row, and keeps what helps.
func TestTheReference(t *testing.T) {
	const file, begin = "../../docs/reference/doctor.md", "\n|---|---|---|\n"
	text, err := os.ReadFile(file)
	must(t, err)
	head, table, _ := strings.Cut(string(text), begin)
	remedies := map[string]string{}
	for row := range strings.Lines(table) {
		cells := strings.SplitN(strings.TrimSuffix(row, " |\n"), " | ", 3)
		remedies[strings.Trim(cells[0], "|` ")] = cells[len(cells)-1]
	}
	want := head + begin
	for _, c := range Checks {
		remedy := cmp.Or(remedies[c.Name], "TODO")
		if remedy == "TODO" {
			t.Errorf("write in %s how to repair what the check %s finds", file, c.Name)
		}
		want += fmt.Sprintf("| `%s` | %s | %s |\n", c.Name, strings.ReplaceAll(c.Title, "|", `\|`), remedy)
	}
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatalf("%s differs from the checks; go test ./internal/doctor -run TestTheReference -update writes it", file)
	}
	must(t, os.WriteFile(file, []byte(want), 0o644))
}

// What is quoted is one word, the same, to a shell.
func TestQuoting(t *testing.T) {
	for text, want := range map[string]string{"": "''", "orders.eu": "orders.eu", "a b": "'a b'", "it's": `'it'\''s'`, "~x": "'~x'", "a\nb'\\": `$'a\x0ab\'\\'`, "é": "'é'", "$(reboot)": "'$(reboot)'", "*": "'*'"} {
		expect.Equal(t, Quote(text), want, "%q is quoted as", text)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		if got := unquote(Quote(text)); got != text {
			t.Fatalf("%q is quoted as %s, which is %q", text, Quote(text), got)
		}
	})
}

// unquote reads what Quote writes as bash would.
func unquote(s string) string {
	switch {
	case strings.HasPrefix(s, "$'"):
		var out []byte
		for i := 2; i < len(s)-1; i++ {
			switch {
			case s[i] != '\\':
				out = append(out, s[i])
			case s[i+1] == 'x':
				var c byte
				fmt.Sscanf(s[i+2:i+4], "%02x", &c)
				out, i = append(out, c), i+3
			default:
				out, i = append(out, s[i+1]), i+1
			}
		}
		return string(out)
	case strings.HasPrefix(s, "'"):
		return strings.ReplaceAll(s[1:len(s)-1], `'\''`, "'")
	}
	return s
}

// A flag in front of --config would take that for its value.
func TestAPrintedCommandKeepsItsFlags(t *testing.T) {
	s := &Scene{File: "redrive.yaml"}
	const want = "redrive doctor --fix --queue='it'\\''s' --config redrive.yaml"
	if got := s.bind("it's", "").Commands; len(got) != 1 || got[0] != want {
		t.Errorf("the command is %q, want %q", got, want)
	}
}

// The address of a virtual host's service has its name, and redrive check is about all of them.
func TestCommandsThatNeedNoVirtualHostNameNone(t *testing.T) {
	s := scene(standsIn("orders", "a@h"))
	s.Call, s.File = "redrive --vhost shop", "redrive.yaml"
	s.Service = Service{Asked: "http://h:8080/v/shop", Problems: []string{"intake: not connected"}, Notices: []string{"look at this"}}
	s.Config.Policies = nil
	var commands []string
	for _, f := range append(running(s), unmatched(s)...) {
		commands = append(commands, f.Commands...)
	}
	const status = "redrive status --address http://h:8080/v/shop"
	if !slices.Equal(commands, []string{status, status, "redrive check redrive.yaml"}) {
		t.Errorf("the commands are %q", commands)
	}
}

// The work queue that accepts no retries is named, with why; not the queue of ours in
// which they stay.
func theQueueThatBlocksItsRetriesIsNamed(t *testing.T, v *brokertest.VHost, _ *rabbitnode.Node) {
	c := configFor(t, v, everyQueue)
	mendAll(t, c)
	client, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{v.URL()}, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer client.Close()
	for _, queue := range []string{"orders", "mail"} {
		v.Queue(queue, amqp.Table{"x-queue-type": "classic", "x-max-length": int32(1), "x-overflow": "reject-publish"})
		for _, way := range []redrive.Way{redrive.Levels(100 * time.Millisecond), redrive.MessageTTL()} {
			_, err := client.NewSettler(t.Context(), redrive.Consumer{Queue: queue, Wait: way,
				Policy: policy.Policy{Attempts: 2, Backoff: policy.Fixed(100 * time.Millisecond)}})
			must(t, err)
		}
	}
	v.Publish("", "orders", amqp.Publishing{})
	v.Publish("", "mail", amqp.Publishing{})
	for range 40 {
		v.Publish(wire.DelayPrefix+"100ms", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent})
	}
	v.Publish(wire.DelayPrefix+"message-ttl.quorum.mail", "mail", amqp.Publishing{DeliveryMode: amqp.Persistent, Expiration: "1"})
	const full = ", since it is full (max-length: 1) and its overflow is reject-publish"
	finds(t, c, "standing", "wrong orders: 40 of its retries are due and stay in redrive.lane.orders"+full,
		"wrong mail: 1 of its retries are due and stay in redrive.delay.message-ttl.quorum.mail"+full)
	for _, queue := range []string{"orders", "mail"} {
		must(t, errOf(v.Channel().QueueDelete(queue, false, false, false)))
	}
	brokertest.Eventually(t, "all are parked", func() bool { return v.Depth(wire.QueueParked) == 41 })
	finds(t, c, "standing")
}

func TestTheServicesRights(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		c := configFor(t, v, `policies: [{name: p, queues: [orders]}]`)
		mendAll(t, c)
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		c.Broker.URL = v.ServiceURL(c.Policies)
		finds(t, c, "permissions")
		v.Grant(v.ServiceUser(), `^redrive\..*`, "^redrive.*", "")
		command := `rabbitmqctl set_permissions -p ` + v.Name + " " + v.ServiceUser() + ` '^redrive(\..*)?$' '^(redrive\..*|orders)$' '^redrive(\..*)?$'`
		finds(t, c, "permissions", "it lacks configure on redrive; read on redrive, redrive.intake", "write on orders $ "+command)
		v.Must(http.MethodDelete, "permissions/"+v.Name+"/"+v.ServiceUser(), nil)
		finds(t, c, "connection", "wrong: ", "rabbitmqctl list_user_permissions "+v.ServiceUser())
		finds(t, c, "permissions", "it lacks configure on redrive")
	})
}

// With less than an administrator's eyes less is seen, and nothing is called ok
// that was not seen.
func TestWithFewerRights(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configFor(t, v, `policies: [{name: p, queues: [orders, gone]}]`)
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		user := "asks-" + uuid.NewString()
		v.User(user, "s3cret")
		v.Grant(user, ".*", ".*", ".*")
		tagged := func(tag string) {
			v.Must(http.MethodPut, "users/"+user, map[string]any{"password": "s3cret", "tags": tag})
		}
		as, err := url.Parse(v.Management)
		must(t, err)
		as.User = url.UserPassword(user, "s3cret")
		c.Broker.Management = as.String()
		unknown := func() (all []string) {
			for _, f := range Examine(gather(t, c)).Findings {
				if f.Status == Unknown {
					all = append(all, f.Check)
					if strings.Contains(f.Why, "s3cret") || f.Why == "" {
						t.Errorf("%s is unknown because of %q", f.Check, f.Why)
					}
				}
			}
			return all
		}
		most := "alarms disk-room clock sizes permissions dead-letter-exchange intake foreign-policies replicas " +
			"existence dead-lettering at-least-once standing policy-in-force retry-policy forwards reports " +
			"native-retry lifetime overflow consumers forgotten deliveries retry-exchange delivery-limit requeue"
		for tag, want := range map[string]string{"": most, "management": "alarms disk-room permissions replicas", "monitoring": "permissions", "administrator": ""} {
			tagged(tag)
			if got := strings.Join(unknown(), " "); got != want {
				t.Errorf("with the tag %q these are unknown: %s\nwant: %s", tag, got, want)
			}
		}
		// Without the API altogether.
		c.Broker.Management = "http://127.0.0.1:1"
		expect.Equal(t, strings.Join(unknown(), " "), most, "without the management API these are unknown")
		finds(t, c, "dead-letter-exchange", "wrong: the exchange redrive does not exist", "unknown: looked at only as far as AMQP shows it")
		finds(t, c, "intake", "wrong: the queue redrive.intake does not exist")
		finds(t, c, "consumers", "warning orders: it has no consumer")
		finds(t, c, "existence", "warning gone: a policy names it, and it does not exist")
		mendAll(t, c) // by AMQP
		for _, name := range []string{"dead-letter-exchange", "intake"} {
			if said := ills(gather(t, c), name); strings.Contains(said, "wrong") {
				t.Errorf("%s after it was repaired: %s", name, said)
			}
		}
		ch := v.Channel()
		must(t, ch.ExchangeDelete(wire.ExchangeDeadLetters, false, false))
		must(t, ch.ExchangeDeclare(wire.ExchangeDeadLetters, "fanout", true, false, false, false, nil))
		finds(t, c, "dead-letter-exchange", "wrong: the exchange redrive is not as it must be")
		c.Broker.URL = v.URLAs(user, "s3cret")
		v.Grant(user, "^$", ".*", ".*")
		finds(t, c, "permissions", "wrong: user ", "permission denied")
	})
}
