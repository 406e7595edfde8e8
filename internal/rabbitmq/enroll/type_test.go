package enroll_test

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

var otherType = map[string]string{"classic": "quorum", "quorum": "classic"}

// settings are all that a queue may be declared with, but for what only streams have.
var settings = amqp.Table{"x-message-ttl": int64(60000), "x-expires": int64(600000), "x-max-length": int64(1000), "x-max-length-bytes": int64(100000),
	"x-overflow": "reject-publish", "x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "key", "x-dead-letter-strategy": "at-least-once",
	"x-max-priority": int64(5), "x-queue-mode": "lazy", "x-queue-version": int64(2), "x-queue-master-locator": "client-local", "x-queue-leader-locator": "client-local",
	"x-single-active-consumer": true, "x-delivery-limit": int64(5), "x-quorum-initial-group-size": int64(1), "x-quorum-target-group-size": int64(1),
	"x-max-in-memory-length": int64(10), "x-max-in-memory-bytes": int64(1000), "x-consumer-timeout": int64(600000), "x-unknown": "1",
	"x-delayed-retry-type": "all", "x-delayed-retry-min": int64(1000), "x-delayed-retry-max": int64(2000)}

// Whatever a queue has, by its arguments or a policy, one of the other type is declared with what
// Look leaves of it, and its policy is in force.
func TestTheNewTypeTakesWhatTheOldOneHas(t *testing.T) {
	t.Parallel()
	for kind, other := range otherType {
		t.Run(kind, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				typed := amqp.Table{"x-queue-type": kind}
				args, def := maps.Clone(typed), management.Definition{}
				v.Policy("any", "^try-", 0, map[string]any{"max-length": 1_000_000})
				for key, value := range settings {
					with := maps.Clone(typed)
					with[key] = value
					ch := v.Channel()
					if _, err := ch.QueueDeclare("try", true, false, false, false, with); err == nil {
						args[key] = value
						must(t, errOf(ch.QueueDelete("try", false, false, false)))
					}
					key = strings.TrimPrefix(key, "x-")
					if strings.HasPrefix(key, "dead-letter-") {
						continue
					}
					p := management.Policy{Name: key, Pattern: "^try-" + key + "$", ApplyTo: "queues", Priority: 1, Definition: map[string]any{key: value}}
					if v.API().PutPolicy(t.Context(), p) == nil {
						v.Queue("try-"+key, typed)
					}
				}
				for key, value := range settings {
					key = strings.TrimPrefix(key, "x-")
					if _, there := v.State("try-" + key); !there {
						continue
					}
					brokertest.Eventually(t, "RabbitMQ says what is in force", func() bool {
						q, _ := v.State("try-" + key)
						if q.Effective[key] != nil {
							def[key] = value
						}
						return len(q.Effective) > 0
					})
				}
				for where, c := range map[string]struct {
					args amqp.Table
					def  management.Definition
				}{"arguments": {args, nil}, "policy": {typed, def}} {
					old := "old-" + where
					if c.def != nil {
						v.Policy(old, "^"+old+"$", 2, c.def)
					}
					v.Queue(old, c.args)
					m := mover(t, v, v.URL())
					m.From, m.To, m.Type, m.Quiet = old, "new-"+where, other, 0
					expect.Err(t, m.Run(t.Context()), nil, "of %v, %v", c.args, c.def)
				}
			})
		})
	}
}

// What the new type would read otherwise so that messages were lost is refused before anything
// is changed, whether it is an argument or a policy's; the rest is said.
func TestWhatTheNewTypeReadsOtherwise(t *testing.T) {
	t.Parallel()
	full := map[string]any{"overflow": "reject-publish-dlx", "max-length": int64(50)}
	for name, c := range map[string]struct {
		kind         string
		args, policy map[string]any
		refused      string
		says         string
	}{
		"argument":   {"classic", map[string]any{"x-overflow": "reject-publish-dlx", "x-max-length": int64(50)}, nil, "reads it as drop-head", ""},
		"policy":     {"classic", nil, full, "reads it as drop-head", ""},
		"overridden": {"classic", map[string]any{"x-overflow": "reject-publish"}, full, "", "a message that failed 20 times"},
		"priority":   {"classic", map[string]any{"x-max-priority": int64(3)}, nil, "", "no longer delivered by priority"},
		"to classic": {"quorum", nil, map[string]any{"delivery-limit": int64(3)}, "", "a message may be requeued without end"},
		"same type":  {"", nil, full, "", "moves to"},
	} {
		t.Run(name, func(t *testing.T) {
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				if c.policy != nil {
					v.Policy("theirs", "^old$", 1, c.policy)
				}
				m := mover(t, v, v.URL())
				args := amqp.Table{"x-queue-type": "classic"}
				if c.kind != "" {
					args["x-queue-type"], m.Type = c.kind, otherType[c.kind]
				}
				maps.Copy(args, c.args)
				v.Queue("old", args)
				var out bytes.Buffer
				s, err := m.Look(t.Context())
				if err == nil {
					m.Write(&out, s)
				} else {
					err = m.Run(t.Context())
				}
				if c.refused == "" {
					if err != nil || !strings.Contains(out.String(), c.says) {
						t.Errorf("%v\n%s", err, out.String())
					}
					return
				}
				if !errors.Is(err, enroll.ErrRefused) || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%v", err)
				}
				if _, there := v.State("new"); there {
					t.Error("the new queue is there")
				}
				expect.Err(t, errOf(v.API().Policy(t.Context(), "redrive.new")), management.ErrNotFound, "its policy")
			})
		})
	}
}

func TestATransientQueueDoesNotBecomeAQuorumQueue(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		_, err := v.Channel().QueueDeclare("old", false, false, false, false, amqp.Table{"x-queue-type": "classic"})
		must(t, err)
		m := mover(t, v, v.URL())
		m.Type = "quorum"
		if _, err := m.Look(t.Context()); !errors.Is(err, enroll.ErrRefused) {
			t.Errorf("%v", err)
		}
	})
}
