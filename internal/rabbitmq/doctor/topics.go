package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// permits tells whether a pattern of RabbitMQ's permits a name; ok is false for one that cannot be
// judged here. In those of topic permissions {username} and {vhost} stand for these.
func (s *Scene) permits(pattern, user, name string) (yes, ok bool) {
	pattern = strings.NewReplacer("{username}", regexp.QuoteMeta(user), "{vhost}", regexp.QuoteMeta(s.VHost)).Replace(pattern)
	re, err := regexp.Compile(pattern)
	if err != nil {
		return false, false
	}
	return pattern != "" && re.MatchString(name), true // RabbitMQ takes "" for nothing
}

// topicPermissions looks at the topic permissions on redrive.failures: a user with none may report for
// every queue.
func topicPermissions(s *Scene) (all []Finding) {
	for _, t := range s.Topics {
		if t.Exchange != wire.ExchangeFailures {
			continue
		}
		if t.User == s.User {
			if yes, ok := s.permits(t.Read, t.User, "#"); ok && !yes {
				all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("a topic permission of user %q (read %q) keeps the service from binding redrive.intake to redrive.failures", t.User, t.Read),
					Remedy: "Take it away: the service publishes nothing there.", Commands: []string{s.rabbitmqctl("clear_topic_permissions", t.User, t.Exchange)}})
			}
			continue
		}
		if f, ok := s.reporter(t); ok {
			all = append(all, f)
		}
	}
	return all
}

// reporter is about a user with a topic permission that permits no report of the queues that it
// consumes, or of none at all.
func (s *Scene) reporter(t management.TopicPermission) (f Finding, found bool) {
	if !slices.ContainsFunc(s.Granted, func(p management.Permission) bool {
		yes, ok := s.permits(p.Write, p.User, wire.ExchangeFailures)
		return p.User == t.User && (yes || !ok)
	}) {
		return f, false // it does not report
	}
	var consumed, may, shutOut []string
	for _, c := range s.Consumers {
		if _, ok := s.Config.Policies.Match(c.Queue.Name); ok && c.Channel.User == t.User && !wire.OwnQueue(c.Queue.Name) && !slices.Contains(consumed, c.Queue.Name) {
			consumed = append(consumed, c.Queue.Name)
		}
	}
	judge := consumed
	if len(consumed) == 0 {
		for _, q := range s.workQueues() {
			if _, ok := s.Config.Policies.Match(q.Name); ok {
				judge = append(judge, q.Name)
			}
		}
	}
	for _, q := range judge {
		switch yes, ok := s.permits(t.Write, t.User, q); {
		case !ok:
			return f, false
		case yes:
			may = append(may, q)
		default:
			shutOut = append(shutOut, q)
		}
	}
	f = Finding{Status: Warning, Remedy: "Let it report these too:"}
	switch {
	case len(shutOut) == 0 || len(consumed) == 0 && len(may) > 0:
		return f, false
	case len(consumed) > 0:
		f.What = fmt.Sprintf("user %q consumes %s, and its topic permission (write %q) permits it no report of what fails there", t.User, few(shutOut), t.Write)
		f.Commands = []string{s.rabbitmqctl("set_topic_permissions", t.User, t.Exchange, widened(t.Write, shutOut), t.Read)}
	default:
		f.What = fmt.Sprintf("user %q may publish to redrive.failures, and its topic permission (write %q) permits it no report of any queue that a policy matches", t.User, t.Write)
		f.Remedy = "Let it report what `redrive permissions` has for a reporter, or for its queues alone:"
		f.Commands = []string{s.rabbitmqctl("set_topic_permissions", t.User, t.Exchange, permissions.Reporter(patternsOf(s.Config.Policies)...).Topics[0].Write, t.Read)}
	}
	return f, true
}

// patternsOf are the names and patterns of all policies.
func patternsOf(policies policy.Set) (all []string) {
	for i := range policies {
		all = append(all, policies[i].Queues...)
	}
	return all
}

// widened is a pattern that permits names besides.
func widened(pattern string, names []string) string {
	if more := permissionOf(names); pattern == "" || pattern == "^$" {
		return more
	} else {
		return "(?:" + pattern + ")|" + more
	}
}

func permissionOf(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(n)
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}

// topicForward is about a topic permission that keeps the service from forwarding.
func (s *Scene) topicForward(p *policy.Policy, x *management.Exchange) (f Finding, found bool) {
	i := slices.IndexFunc(s.Topics, func(t management.TopicPermission) bool { return t.User == s.User && t.Exchange == x.Name })
	if x.Type != "topic" || i < 0 {
		return f, false
	}
	t, key := s.Topics[i], p.Exhausted.Destination.RoutingKey
	if yes, ok := s.permits(t.Write, t.User, key); yes || !ok {
		return f, false
	}
	return Finding{Status: Wrong, What: fmt.Sprintf("policy %q forwards to the exchange %q with the routing key %q, and a topic permission of user %q (write %q) does not permit that: the messages wait", p.Name, x.Name, key, t.User, t.Write),
		Remedy: "Permit it:", Commands: []string{s.rabbitmqctl("set_topic_permissions", t.User, x.Name, widened(t.Write, []string{key}), t.Read)}}, true
}
