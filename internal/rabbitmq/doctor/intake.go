package doctor

import (
	"context"
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

func deadLetterExchange(_ context.Context, s *Scene) (all []Finding) {
	x := s.exchange(wire.ExchangeDeadLetters)
	if x == nil {
		return s.missing("the exchange redrive does not exist")
	}
	if not := differs(x, "fanout", true); not != "" {
		all = append(all, Finding{Status: Wrong, What: "the exchange redrive is " + not, Remedy: "Delete it and start the service, which declares it as it must be; bring queues' dead letters to rest meanwhile, since they are lost while it is missing.",
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

func deadLetterExchangeByAMQP(_ context.Context, s *Scene) []Finding {
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

// intakeArguments are those that the service declares.
var intakeArguments = map[string]any{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeQuarantine}

// deleteEmpty is for one of our queues that was declared with other arguments.
const deleteEmpty = "Stop the consumers whose messages fail, have the version of the service that declared it empty it, and delete it when it shows 0 messages; the service then declares it as it must be:"

func (s *Scene) deleteWhenEmpty(queue string) []string {
	return []string{s.rabbitmqctl("list_queues", "name", "messages"), s.rabbitmqctl("delete_queue", queue), s.redrive("doctor --fix")}
}

// losingKeys are settings that lose messages, or refuse them.
var losingKeys = []string{"message-ttl", "expires", "max-length", "max-length-bytes", "overflow"}

func intake(_ context.Context, s *Scene) (all []Finding) {
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
	for key, want := range intakeArguments {
		if got := q.Arguments[key]; got != want && key != "x-queue-type" {
			not = append(not, fmt.Sprintf("declared with %s %v, not %v", key, got, want))
		}
	}
	if len(not) > 0 {
		all = append(all, Finding{Status: Wrong, What: "redrive.intake is " + strings.Join(not, ", "), Remedy: deleteEmpty,
			Commands: s.deleteWhenEmpty(wire.QueueIntake)})
	}
	// All our queues: what a policy of "everything" does to one it does to the others.
	for i := range s.Queues {
		own := &s.Queues[i]
		if !wire.OwnQueue(own.Name) {
			continue
		}
		var keys []string
		for _, key := range losingKeys {
			if v, ok := own.Effective[key]; ok {
				keys = append(keys, fmt.Sprintf("%s: %v", key, management.Text(v)))
			}
		}
		if len(keys) > 0 {
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
		if limit, limited := s.limitOf(q); limited && limit < broker.DeliveryLimit {
			names, commands := s.leavingOut(q)
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("the delivery limit in force of our queue %s is %d, by a RabbitMQ policy (%s): %s", name, limit, strings.Join(names, ", "), becomes),
				Remedy: "Let the policy's pattern leave out names that begin with redrive.", Commands: commands})
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return strings.Compare(a.What, b.What) })
	return all
}

// others finds services with a store of their own beside this config's. Where one store
// has several, they know how many they are, and say so themselves.
func others(_ context.Context, s *Scene) []Finding {
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
		command, name string
		all           []management.Policy
	}{{"set_policy", own.Policy, s.Policies}, {"set_operator_policy", own.OperatorPolicy, s.OperatorPolicies}} {
		if from.name == "" {
			continue
		}
		names = append(names, from.name)
		if i := slices.IndexFunc(from.all, func(p management.Policy) bool { return p.Name == from.name }); i >= 0 {
			p := from.all[i]
			definition, _ := json.Marshal(p.Definition) // it came as JSON
			commands = append(commands, s.rabbitmqctl(from.command, p.Name, `^(?!redrive\.).*?(?:`+p.Pattern+`)`, string(definition), "--priority", strconv.Itoa(p.Priority), "--apply-to", p.ApplyTo))
		}
	}
	return names, commands
}

func intakeByAMQP(_ context.Context, s *Scene) []Finding {
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

func quarantine(_ context.Context, s *Scene) []Finding {
	if n := s.Probed.Quarantine.Ready; n > 0 {
		return []Finding{{Status: Warning, What: fmt.Sprintf("messages in redrive.quarantine: %d", n), Remedy: "Look at them, and have them retried or export them:",
			Commands: []string{s.redrive("quarantine list"), s.redrive("quarantine replay"), s.redrive("quarantine export", "quarantine.jsonl")}}}
	}
	return nil
}

func parked(_ context.Context, s *Scene) []Finding {
	p := s.Probed.Parked
	if p.Exists && p.Ready > 0 && p.Consumers == 0 {
		return []Finding{{Status: Warning, What: fmt.Sprintf("messages in redrive.parked: %d, and no service collects them", p.Ready), Remedy: "Run the service, which collects, shows and replays them:", Commands: []string{s.redrive("serve")}}}
	}
	return nil
}
