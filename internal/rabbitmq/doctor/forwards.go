package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// forwards looks at the targets to which policies forward. The permission to publish there is looked
// at with the other permissions of the service's user.
func forwards(s *Scene) (all []Finding) {
	var done []policy.Destination
	for i := range s.Config.Policies {
		p := &s.Config.Policies[i]
		to := p.Exhausted.Destination
		if p.Exhausted.Action != policy.Forward || slices.Contains(done, to) {
			continue
		}
		done = append(done, to)
		f := Finding{Status: Warning, What: fmt.Sprintf("policy %q forwards to the %s, ", p.Name, to)}
		x := s.exchange(to.Exchange)
		switch {
		case to.Exchange == "" && s.queue(to.RoutingKey) == nil:
			f.What += "which does not exist"
			f.Remedy, f.Commands = "Declare it, or change the policy:", []string{s.declareQueue(to.RoutingKey, nil)}
		case to.Exchange == "":
			continue
		case x == nil:
			f.What += "which does not exist"
			f.Remedy = "Declare it and bind a queue to it, or change the policy; for example:"
			f.Commands = append([]string{s.curl("PUT", s.Manage.URL("exchanges", to.Exchange), map[string]any{"type": "fanout", "durable": true})}, s.boundTo(to)...)
		case x.Internal:
			f.What += "which is internal: RabbitMQ lets no client publish to it, and the messages wait"
			f.Remedy = "Forward to another exchange, which may lead to this one."
		case !s.routes(x, to.RoutingKey):
			f.What += fmt.Sprintf("which routes nothing with the routing key %q", to.RoutingKey)
			f.Remedy, f.Commands = "Bind a queue to it, or change the policy; for example:", s.boundTo(to)
		default:
			if f, ok := s.topicForward(p, x); ok {
				all = append(all, f)
			}
			continue
		}
		all = append(all, f)
	}
	return all
}

// declareQueue declares a quorum queue.
func (s *Scene) declareQueue(name string, arguments map[string]any) string {
	all := map[string]any{"x-queue-type": "quorum"}
	for key, v := range arguments {
		all[key] = v
	}
	return s.curl("PUT", s.Manage.URL("queues", name), map[string]any{"durable": true, "arguments": all})
}

// boundTo declares a queue of the exchange's name, where there is none, and binds it.
func (s *Scene) boundTo(to policy.Destination) (commands []string) {
	if s.queue(to.Exchange) == nil {
		commands = append(commands, s.declareQueue(to.Exchange, nil))
	}
	return append(commands, s.curl("POST", s.Manage.QueueBindingURL(to.Exchange, to.Exchange), map[string]any{"routing_key": to.RoutingKey}))
}

// routes tells whether an exchange has a binding for a routing key. Of types whose routing is not
// known here it is enough that something is bound.
func (s *Scene) routes(x *management.Exchange, key string) bool {
	return x.Arguments["alternate-exchange"] != nil || s.policySets(x.Policy, "alternate-exchange") != nil ||
		slices.ContainsFunc(s.Bindings, func(b management.Binding) bool {
			switch {
			case b.Source != x.Name:
				return false
			case x.Type == "direct":
				return b.RoutingKey == key
			case x.Type == "topic":
				return topicMatches(strings.Split(b.RoutingKey, "."), strings.Split(key, "."))
			}
			return true
		})
}

// topicMatches tells whether the words of a binding match those of a routing key: * is one word, #
// any number of them.
func topicMatches(binding, key []string) bool {
	switch {
	case len(binding) == 0:
		return len(key) == 0
	case binding[0] == "#":
		return topicMatches(binding[1:], key) || len(key) > 0 && topicMatches(binding, key[1:])
	}
	return len(key) > 0 && (binding[0] == "*" || binding[0] == key[0]) && topicMatches(binding[1:], key[1:])
}

// policySets is what a RabbitMQ policy sets, nil for nothing.
func (s *Scene) policySets(name, key string) any {
	if p := management.PolicyNamed(s.Policies, name); p != nil {
		return p.Definition[key]
	}
	return nil
}

// named finds queues that a policy names exactly, and that are not there.
func named(s *Scene) (all []Finding) {
	for _, name := range s.namedQueues() {
		if s.queue(name) == nil {
			all = append(all, Finding{Queue: name, Status: Warning, What: "a policy of the config names it, and it does not exist", Remedy: "Declare it, or take it out of the policy. As Redrive suits best:"}.repaired(func(queues []string) (all []string) {
				for _, q := range queues[:min(shown, len(queues))] {
					all = append(all, s.declareQueue(q, map[string]any{"x-dead-letter-exchange": wire.ExchangeDeadLetters, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}))
				}
				return all
			}))
		}
	}
	return all
}
