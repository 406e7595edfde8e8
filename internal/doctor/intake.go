package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

const startIt = "The service makes it when it starts; --fix makes it now:"

// missing is a finding about what the service itself declares.
func (s *Scene) missing(what string) []Finding {
	return []Finding{{Status: Wrong, What: what, Remedy: startIt, Commands: []string{s.redrive("doctor --fix")}, Fixable: true, fix: fix{topology: true}}}
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
	return append(all, s.smallLimits()...)
}

// smallLimits are of the delivery limits in force, whatever our queues were declared with.
func (s *Scene) smallLimits() (all []Finding) {
	for name, becomes := range map[string]string{
		wire.QueueIntake:     "after that many lost connections RabbitMQ moves good messages to redrive.quarantine",
		wire.QueueQuarantine: "after that many lost connections RabbitMQ drops a message",
	} {
		q := s.queue(name)
		if q == nil {
			continue
		}
		if limit, limited := q.LimitInForce(s.Version); limited && limit < broker.DeliveryLimit {
			names, commands := s.leavingOut(q.Policy, q.OperatorPolicy)
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("the delivery limit in force of our queue %s is %d, by a RabbitMQ policy (%s): %s", name, limit, strings.Join(names, ", "), becomes),
				Remedy: leaveOut, Commands: commands})
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

// foreign finds what policies of others change of what is ours.
func foreign(s *Scene) (all []Finding) {
	for _, f := range management.FindForeign(s.Exchanges, s.Queues, s.Policies) {
		finding := Finding{Status: Wrong, What: f.String(), Remedy: leaveOut}
		if _, finding.Commands = s.leavingOut(f.Policy, f.OperatorPolicy); f.Cluster != "" {
			finding.Remedy = "Let the pattern of the policy there leave out the names redrive and redrive.*, as " + oursLeftOut + ".* does. Do not delete its binding or queue here: they are that cluster's, and the queue may hold messages."
		}
		all = append(all, finding)
	}
	return all
}

const (
	leaveOut = "Let the policy's pattern leave out the names redrive and redrive.*:"
	// oursLeftOut begins a pattern that matches no name of ours.
	oursLeftOut = `^(?!redrive(\.|$))`
)

// leavingOut are policies, and commands after which they match nothing of ours.
func (s *Scene) leavingOut(policy, operatorPolicy string) (names, commands []string) {
	for _, from := range []struct {
		command, name string
		all           []management.Policy
	}{{"set_policy", policy, s.Policies}, {"set_operator_policy", operatorPolicy, s.OperatorPolicies}} {
		if from.name == "" {
			continue
		}
		names = append(names, from.name)
		if p := management.PolicyNamed(from.all, from.name); p != nil {
			definition, _ := json.Marshal(p.Definition) // it came as JSON
			commands = append(commands, s.rabbitmqctl(from.command, p.Name, oursLeftOut+`.*?(?:`+p.Pattern+`)`, string(definition), "--priority", strconv.Itoa(p.Priority), "--apply-to", p.ApplyTo))
		}
	}
	return names, commands
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
		return []Finding{{Status: Warning, What: fmt.Sprintf("messages in redrive.quarantine: %d", n), Remedy: "The service parks them. Where they stay while it runs, RabbitMQ cannot deliver the first; this shows it and removes it:",
			Commands: []string{broker.RemoveQuarantined(s.VHost)}}}
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
