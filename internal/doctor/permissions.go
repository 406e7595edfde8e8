package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/wire"
)

// userPermissions checks that the service's user has what it needs at present: for its own names,
// the queues that are enrolled, and what its policies forward to.
func userPermissions(s *Scene) []Finding {
	if s.Missing[Permissions] != nil {
		return s.permissionsUnseen()
	}
	var p management.Permission // none
	var all []Finding
	for _, other := range s.Permissions {
		if other.User == s.User {
			p = other
		} else {
			all = append(all, s.publishesBack(other)...)
		}
	}
	var lacks []string
	for _, right := range []struct {
		name, pattern string
		on            []string
	}{
		{"configure", p.Configure, []string{wire.ExchangeDeadLetters, wire.QueueIntake, wire.ExchangeFailures, wire.QueueQuarantine, wire.QueueParked, wire.RetryExchange("q")}},
		{"read", p.Read, []string{wire.ExchangeDeadLetters, wire.QueueIntake, wire.ExchangeFailures, wire.QueueQuarantine, wire.QueueParked, wire.RetryExchange("q")}},
		{"write", p.Write, append([]string{wire.QueueIntake, wire.QueueQuarantine, wire.QueueParked, wire.RetryExchange("q")}, s.written()...)},
	} {
		may, err := regexp.Compile(right.pattern)
		if err != nil {
			return append(all, Finding{Status: Unknown, What: fmt.Sprintf("the pattern of %s is not one that can be judged here: %s", right.name, right.pattern)})
		}
		var on []string
		for _, name := range right.on {
			if right.pattern == "" || !may.MatchString(name) { // RabbitMQ takes "" for nothing
				on = append(on, name)
			}
		}
		if len(on) > 0 {
			lacks = append(lacks, right.name+" on "+few(on))
		}
	}
	if len(lacks) > 0 {
		all = append(all, s.grant("it lacks "+strings.Join(lacks, "; ")))
	}
	return all
}

// publishesBack names a user that may read an enrolled queue and publish to an exchange that leads there,
// and not to its retry exchange, which after a retry is the exchange of the delivery. Patterns that cannot
// be judged here match nothing.
func (s *Scene) publishesBack(p management.Permission) []Finding {
	read, _ := regexp.Compile(p.Read)
	write, _ := regexp.Compile(p.Write)
	if p.Read == "" || p.Write == "" || read == nil || write == nil {
		return nil
	}
	var queues []string
	for _, q := range s.enrolledQueues() {
		leads := func(b management.Binding) bool {
			return b.DestinationType == "queue" && b.Destination == q.Name && write.MatchString(cmp.Or(b.Source, "amq.default"))
		}
		if read.MatchString(q.Name) && slices.ContainsFunc(s.Bindings, leads) && !write.MatchString(wire.RetryExchange(q.Name)) {
			queues = append(queues, q.Name)
		}
	}
	if len(queues) == 0 {
		return nil
	}
	return []Finding{{Status: Warning, What: fmt.Sprintf("user %q consumes %s and publishes there, but may not publish to %s", p.User, few(queues), wire.RetryExchange("<queue>")),
		Remedy:   "Where a framework such as Celery publishes to the exchange of a delivery, allow that: a retry exchange leads to its queue alone (this replaces the user's rights in the virtual host):",
		Commands: []string{s.rabbitmqctl("set_permissions", p.User, p.Configure, p.Write+"|"+permissions.Consumer(queues...).Write, p.Read)}}}
}

// written are the queues that the service has to bind, and the exchanges to which its policies
// forward.
func (s *Scene) written() (all []string) {
	for _, q := range s.enrolledQueues() {
		all = append(all, q.Name)
	}
	for i := range s.Config.Policies {
		if to, ok := permissions.Forwards(&s.Config.Policies[i]); ok && !slices.Contains(all, to) {
			all = append(all, to)
		}
	}
	return all
}

// permissionsUnseen is for when the permissions cannot be read. It reports what RabbitMQ has refused;
// a service that is ready has declared, bound and consumes what is its own.
func (s *Scene) permissionsUnseen() []Finding {
	for _, err := range []error{s.Probed.Exchange, s.Probed.Intake} {
		if errors.Is(err, wire.ErrForbidden) {
			return []Finding{s.grant(err.Error())}
		}
	}
	if v := s.Service; v.Asked != "" && v.Err == nil && len(v.Problems) == 0 {
		return []Finding{{Status: OK, What: "the service is ready, so its user may do what it does now"}}
	}
	return []Finding{{Status: Unknown, What: "not looked at: the rights of the service's user", Why: s.Missing[Permissions].Error()}}
}

// grant is the finding that the service's user lacks something, with the command that grants it.
func (s *Scene) grant(lacks string) Finding {
	r := permissions.Service(s.Config.Policies)
	return Finding{Status: Wrong, What: fmt.Sprintf("user %q: %s", s.User, lacks),
		Remedy:   "Grant what the service needs for the queues of its policies (this replaces the user's rights in the virtual host):",
		Commands: []string{s.rabbitmqctl("set_permissions", s.User, r.Configure, r.Write, r.Read)}}
}

// few are the first of some names.
func few(names []string) string {
	const most = 4
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
