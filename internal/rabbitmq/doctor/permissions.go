package doctor

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/wire"
)

// userPermissions checks that the service's user has what it needs at present: for its own names,
// the queues that are enrolled, and what its policies forward to.
func userPermissions(s *Scene) []Finding {
	if s.Missing[Permissions] != nil {
		return s.permissionsUnseen()
	}
	p := s.Permission
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
			return []Finding{{Status: Unknown, What: fmt.Sprintf("the pattern of %s is not one that can be judged here: %s", right.name, right.pattern)}}
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
	if len(lacks) == 0 {
		return nil
	}
	return []Finding{s.grant("it lacks " + strings.Join(lacks, "; "))}
}

// written are the queues that the service has to bind, and the exchanges to which its policies
// forward.
func (s *Scene) written() (all []string) {
	for _, q := range s.enrolledQueues() {
		if _, ok := s.Config.Policies.Match(q.Name); ok { // or nothing is retried to it
			all = append(all, q.Name)
		}
	}
	for i := range s.Config.Policies {
		for _, to := range permissions.Forwards(&s.Config.Policies[i]) {
			if !slices.Contains(all, to) {
				all = append(all, to)
			}
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
