package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// intakeTag begins the tag of each consumer of a service on redrive.intake.
const intakeTag = "redrive intake "

// foreignConsumers finds consumers of redrive.intake that are not a service's of this user.
func foreignConsumers(s *Scene) (all []Finding) {
	for _, c := range s.Consumers {
		by := c.Channel
		if c.Queue.Name != wire.QueueIntake || by.Connection == "" {
			continue
		}
		var is string
		switch {
		case s.User != "" && by.User != s.User:
			is = fmt.Sprintf("user %q, and the service's is %q", by.User, s.User)
		case !strings.HasPrefix(c.Tag, intakeTag):
			is = fmt.Sprintf("the tag %q, which is not a service's", c.Tag)
		default:
			continue
		}
		all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("the connection %s consumes redrive.intake with %s: it gets a part of the failed messages", by.Connection, is),
			Remedy: "Stop that program. To end its connection, after which RabbitMQ delivers what it has not acknowledged to the service:", Commands: []string{s.deleteCommand(s.Manage.RootURL("connections", by.Connection))}})
	}
	return all
}

// isPathOfMessages tells whether a name is of what dead letters and retries go through.
func isPathOfMessages(name string) bool {
	return name == wire.ExchangeDeadLetters || name == wire.QueueIntake || strings.HasPrefix(name, wire.RetryExchange(""))
}

// exchangesOurs begins the names that the pattern of a policy on exchanges should leave out.
const exchangesOurs = `redrive(?:\.|$)`

// alternates finds an alternate exchange of the exchanges of dead letters and retries: what is not
// routed goes there, and counts as delivered.
func alternates(s *Scene) (all []Finding) {
	for i := range s.Exchanges {
		x := &s.Exchanges[i]
		if !isPathOfMessages(x.Name) {
			continue
		}
		becomes, status := "dead letters go there while redrive.intake is not bound", Warning
		queue := ""
		if x.Name != wire.ExchangeDeadLetters {
			becomes, status = "a retry whose queue was deleted goes there, and counts as delivered", Wrong
			if q := first(s.Queues, func(q *management.QueueState) bool { return wire.RetryExchange(q.Name) == x.Name }); q != nil {
				queue = q.Name
			}
		}
		if alternate := x.Arguments["alternate-exchange"]; alternate != nil {
			fixed := s.redrive("doctor --fix")
			if queue != "" {
				fixed = s.redrive("doctor --fix --queue=" + Quote(queue))
			}
			all = append(all, Finding{Queue: queue, Status: status, What: fmt.Sprintf("the exchange %s was declared with the alternate exchange %s: %s", x.Name, alternate, becomes), Remedy: "Delete it, and declare it again:",
				Commands: []string{s.deleteCommand(s.Manage.URL("exchanges", x.Name)), fixed}})
		}
		if alternate := s.policySets(x.Policy, "alternate-exchange"); alternate != nil {
			all = append(all, Finding{Queue: queue, Status: status, What: fmt.Sprintf("the RabbitMQ policy %s gives the exchange %s the alternate exchange %s: %s", x.Policy, x.Name, alternate, becomes), Remedy: "Let the policy's pattern leave out ours:",
				Commands: []string{s.leftOut("policy", *management.PolicyNamed(s.Policies, x.Policy), exchangesOurs)}})
		}
	}
	return all
}

// federated finds policies and shovels that move messages between our exchanges and queues and
// others.
func federated(s *Scene) (all []Finding) {
	report := map[string][]string{} // our names, by policy
	add := func(name, by string, set map[string]any) {
		for _, key := range []string{"federation-upstream", "federation-upstream-set", "federation-upstream-pattern"} {
			if set[key] != nil && isPathOfMessages(name) && !slices.Contains(report[by], name) {
				report[by] = append(report[by], name)
			}
		}
	}
	for _, x := range s.Exchanges {
		if p := management.PolicyNamed(s.Policies, x.Policy); p != nil {
			add(x.Name, p.Name, p.Definition)
		}
	}
	for _, q := range s.Queues {
		add(q.Name, q.Policy, q.Effective)
	}
	for _, p := range s.Policies {
		if names := report[p.Name]; len(names) > 0 {
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("the RabbitMQ policy %s federates %s: messages of another RabbitMQ come in, or ours go there", p.Name, few(names)), Remedy: "Let the policy's pattern leave out ours:",
				Commands: []string{s.leftOut("policy", p, exchangesOurs)}})
		}
	}
	return append(all, s.shovels()...)
}

func (s *Scene) shovels() (all []Finding) {
	for _, p := range s.Shovels {
		for key, does := range map[string]string{"src-queue": "takes messages from", "src-exchange": "copies messages of", "dest-queue": "publishes to", "dest-exchange": "publishes to"} {
			name, _ := p.Value[key].(string)
			if !isPathOfMessages(name) {
				continue
			}
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("the shovel %s %s %s (%s)", p.Name, does, name, key), Remedy: "Remove it, unless that is on another RabbitMQ:",
				Commands: []string{s.rabbitmqctl("clear_parameter", "shovel", p.Name)}})
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return strings.Compare(a.What, b.What) })
	return all
}
