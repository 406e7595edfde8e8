package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

const startIt = "The service makes it when it starts; --fix makes it now:"

// missing is a finding about what the service itself declares. One that is connected looks every 3 s,
// and is not ready when it cannot declare it.
func (s *Scene) missing(what string) []Finding {
	if s.Service.declares() {
		return []Finding{{Status: OK, InProgress: true, What: "in progress: " + what + "; the service that runs declares it within seconds"}}
	}
	return []Finding{{Status: Wrong, What: what, Remedy: startIt, Commands: []string{s.redrive("doctor --fix")}, Fixable: true, fixes: []fix{{topology: true}}}}
}

func deadLetterExchange(s *Scene) (all []Finding) {
	x := s.exchange(wire.ExchangeDeadLetters)
	if x == nil {
		return s.missing("the exchange redrive does not exist")
	}
	if not := differs(x, "fanout", true); not != "" {
		all = append(all, Finding{Status: Wrong, What: "the exchange redrive is " + not, Remedy: "Delete it and start the service, which declares it as it must be. Stop the consumers whose messages fail meanwhile: dead letters are lost while it is missing.",
			Commands: []string{s.deleteCommand(s.Manage.URL("exchanges", wire.ExchangeDeadLetters)), s.redrive("doctor --fix")}})
	}
	bound := false
	for _, b := range s.Bindings {
		switch {
		case b.Source != wire.ExchangeDeadLetters:
		case b.DestinationType == "queue" && b.Destination == wire.QueueIntake:
			bound = true
		default:
			all = append(all, Finding{Status: Warning, What: fmt.Sprintf("the exchange redrive also leads to the %s %s, which gets a copy of every dead letter", b.DestinationType, b.Destination), Remedy: "Take the binding away, unless you want it.",
				Commands: []string{s.deleteCommand(s.Manage.BindingURL(b))}})
		}
	}
	if !bound {
		all = append(all, s.missing("the exchange redrive is not bound to redrive.intake")...)
	}
	return all
}

// differs says what an exchange is that it should not be.
func differs(x *management.Exchange, kind string, internal bool) string {
	var not []string
	if x.Internal != internal {
		not = append(not, map[bool]string{true: "not internal", false: "internal"}[internal])
	}
	if !x.Durable {
		not = append(not, "not durable")
	}
	if x.AutoDelete {
		not = append(not, "auto-delete")
	}
	if x.Type != kind {
		not = append(not, "of type "+x.Type+", not "+kind)
	}
	return strings.Join(not, ", ")
}

func deadLetterExchangeByAMQP(s *Scene) []Finding {
	switch err := s.Probed.Exchange; {
	case errors.Is(err, wire.ErrUnroutable):
		return s.missing("the exchange redrive does not exist")
	case errors.Is(err, wire.ErrDiffers):
		return []Finding{{Status: Wrong, What: fmt.Sprintf("the exchange redrive is not as it must be: %v", err), Remedy: "Delete it on RabbitMQ's management page, and start the service."}}
	case err != nil && !errors.Is(err, wire.ErrForbidden):
		return []Finding{{Status: Unknown, What: fmt.Sprintf("the exchange redrive: %v", err)}}
	}
	return nil
}

// deleteEmpty is for one of our queues that was declared with other arguments.
const deleteEmpty = "Stop the consumers whose messages fail, have the version of the service that declared it empty it, and delete it when it shows 0 messages; the service then declares it as it must be:"

func (s *Scene) deleteWhenEmpty(queue string) []string {
	return []string{s.rabbitmqctl("list_queues", "name", "messages"), s.rabbitmqctl("delete_queue", queue), s.redrive("doctor --fix")}
}

// losingKeys are settings with which a queue loses messages, or refuses them.
var losingKeys = []string{"message-ttl", "expires", "max-length", "max-length-bytes", "overflow"}

func intake(s *Scene) (all []Finding) {
	q := s.queue(wire.QueueIntake)
	if q == nil {
		return s.missing("the queue redrive.intake does not exist")
	}
	var not []string
	if q.Type != "quorum" {
		not = append(not, q.Type+", not quorum")
	}
	if !q.Durable {
		not = append(not, "not durable")
	}
	if to := q.Arguments["x-dead-letter-exchange"]; to != wire.ExchangeQuarantine {
		not = append(not, fmt.Sprintf("declared with x-dead-letter-exchange %v, not %s", to, wire.ExchangeQuarantine))
	}
	if len(not) > 0 {
		all = append(all, Finding{Status: Wrong, What: "redrive.intake is " + strings.Join(not, ", "), Remedy: deleteEmpty,
			Commands: s.deleteWhenEmpty(wire.QueueIntake)})
	}
	// All our queues: a RabbitMQ policy on every queue is on all of them.
	for i := range s.Queues {
		own := &s.Queues[i]
		if !wire.OwnQueue(own.Name) {
			continue
		}
		if keys := settings(own.Effective, losingKeys); len(keys) > 0 {
			names, commands := s.leavingOut(own)
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("a RabbitMQ policy (%s) puts %s on our queue %s", strings.Join(names, ", "), strings.Join(keys, ", "), own.Name),
				Remedy: "Let the policy's pattern leave out names that begin with redrive.", Commands: commands})
		}
	}
	return append(all, s.smallLimits()...)
}

// smallLimits are of the delivery limits in force, whatever our queues were declared with.
func (s *Scene) smallLimits() (all []Finding) {
	for name, becomes := range map[string]string{
		wire.QueueIntake:     "after that many lost connections RabbitMQ moves good messages to redrive.quarantine",
		wire.QueueQuarantine: "RabbitMQ drops a message that was listed that often",
	} {
		q := s.queue(name)
		if q == nil {
			continue
		}
		if limit, limited := q.LimitInForce(s.Version); limited && limit < broker.DeliveryLimit {
			names, commands := s.leavingOut(q)
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("the delivery limit in force of our queue %s is %d, by a RabbitMQ policy (%s): %s", name, limit, strings.Join(names, ", "), becomes),
				Remedy: "Let the policy's pattern leave out names that begin with redrive.", Commands: commands})
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return strings.Compare(a.What, b.What) })
	return all
}

// others finds services with a store of their own beside this config's. Replicas that share a store
// know each other, so nothing is said of them here.
func others(s *Scene) []Finding {
	if n := s.Probed.Consumers; n > 1 && s.Config.Store.OnDisk() {
		return []Finding{{Status: Wrong, What: fmt.Sprintf("redrive.intake has %d consumers, and a service with its store on disk is one: each takes a part of the failed messages", n),
			Remedy: "Stop the other services of this virtual host, or give all of them one store (store.redis). To list the consumers:", Commands: []string{s.rabbitmqctl("list_consumers", "queue_name", "channel_pid")}}}
	}
	return nil
}

// leavingOut are the policies of one of our queues, and commands after which they
// match none of ours.
func (s *Scene) leavingOut(own *management.QueueState) (names, commands []string) {
	for _, from := range []struct {
		kind, name string
		all        []management.Policy
	}{{"policy", own.Policy, s.Policies}, {"operator_policy", own.OperatorPolicy, s.OperatorPolicies}} {
		if from.name == "" {
			continue
		}
		names = append(names, from.name)
		if p := management.PolicyNamed(from.all, from.name); p != nil {
			commands = append(commands, s.leftOut(from.kind, *p, `redrive\.`))
		}
	}
	return names, commands
}

// leftOut sets a policy again, with a pattern that leaves out names that begin with ours.
func (s *Scene) leftOut(kind string, p management.Policy, ours string) string {
	p.Pattern = `^(?!` + ours + `).*?(?:` + p.Pattern + `)`
	return s.setPolicy(kind, p)
}

func intakeByAMQP(s *Scene) []Finding {
	switch err := s.Probed.Intake; {
	case errors.Is(err, wire.ErrQueueGone):
		return s.missing("the queue redrive.intake does not exist")
	case errors.Is(err, wire.ErrDiffers):
		return []Finding{{Status: Wrong, What: fmt.Sprintf("redrive.intake is not as it must be: %v", err), Remedy: deleteEmpty, Commands: s.deleteWhenEmpty(wire.QueueIntake)}}
	case err != nil && !errors.Is(err, wire.ErrForbidden):
		return []Finding{{Status: Unknown, What: fmt.Sprintf("redrive.intake: %v", err)}}
	}
	return nil
}

func quarantine(s *Scene) []Finding {
	if n := s.Probed.Quarantine.Ready; n > 0 {
		return []Finding{{Status: Warning, What: fmt.Sprintf("messages in redrive.quarantine: %d", n), Remedy: "Look at them, and have them retried or export them:",
			Commands: []string{s.redrive("quarantine list"), s.redrive("quarantine replay"), s.redrive("quarantine export", "quarantine.jsonl")}}}
	}
	return nil
}

func parked(s *Scene) []Finding {
	p := s.Probed.Parked
	if p.Exists && p.Ready > 0 && p.Consumers == 0 {
		return []Finding{{Status: Warning, What: fmt.Sprintf("messages in redrive.parked: %d, and no service collects them", p.Ready), Remedy: "Run the service, which collects, shows and replays them:", Commands: []string{s.redrive("serve")}}}
	}
	return nil
}
