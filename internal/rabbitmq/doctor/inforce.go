package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// operatorKeys are keys of operator policies that change what happens to messages.
var operatorKeys = []string{"message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "delivery-limit"}

func policyInForce(_ context.Context, s *Scene) (all []Finding) {
	for _, q := range s.workQueues() {
		ours := slices.IndexFunc(s.Policies, func(p management.Policy) bool { return p.Name == "redrive."+q.Name })
		enrolled := s.enrolled(q)
		if ours >= 0 && !enrolled && !isArgument(q, "dead-letter-exchange") {
			by := "nothing applies"
			if q.Policy != "" {
				by = fmt.Sprintf("policy %q is", q.Policy)
				if i := slices.IndexFunc(s.Policies, func(p management.Policy) bool { return p.Name == q.Policy }); i >= 0 {
					by = fmt.Sprintf("policy %q of priority %d is", q.Policy, s.Policies[i].Priority)
				}
			}
			all = append(all, Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("its policy %q of priority %d is not in force: %s", s.Policies[ours].Name, s.Policies[ours].Priority, by),
				Remedy: "Merge both, above the other:", Commands: []string{s.redrive("enroll", q.Name)}})
		}
		if q.OperatorPolicy == "" || !enrolled {
			continue
		}
		if i := slices.IndexFunc(s.OperatorPolicies, func(p management.Policy) bool { return p.Name == q.OperatorPolicy }); i >= 0 {
			var keys []string
			for _, key := range operatorKeys {
				if v, ok := s.OperatorPolicies[i].Definition[key]; ok {
					keys = append(keys, fmt.Sprintf("%s: %s", key, management.Text(v)))
				}
			}
			if len(keys) > 0 {
				all = append(all, Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("the operator policy %q puts %s on it, whatever its own policy says", q.OperatorPolicy, strings.Join(keys, ", ")),
					Remedy: "Ask who set it, or take it away:", Commands: []string{s.rabbitmqctl("clear_operator_policy", q.OperatorPolicy)}})
			}
		}
	}
	return all
}

func unmatched(_ context.Context, s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		if _, ok := s.Config.Policies.Match(q.Name); !ok {
			f := Finding{Queue: q.Name, Status: Warning, What: "no policy of Redrive's config matches it", Remedy: "Add it to the queues of a policy, then:"}
			if s.File != "" {
				f.Commands = []string{"redrive check " + Quote(s.File)}
			}
			all = append(all, f)
		}
	}
	return all
}

func nativeRetry(_ context.Context, s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		kind, _ := setting(q, "delayed-retry-type").(string)
		if kind == "" || kind == "disabled" || q.Type != "quorum" {
			continue
		}
		f := Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("RabbitMQ delays what its consumers requeue (delayed-retry-type: %s), and Redrive what they reject", kind),
			Remedy: "Leave it on only if consumers requeue on purpose. " + s.unset(q, "delayed-retry-type")}
		if !s.versionAtLeast(4, 3) {
			f.What = fmt.Sprintf("it asks for RabbitMQ's delayed retry (delayed-retry-type: %s), which RabbitMQ %s ignores and 4.3 applies", kind, s.Version)
		}
		all = append(all, f)
	}
	return all
}

func deliveryLimit(_ context.Context, s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		p, ok := s.Config.Policies.Match(q.Name)
		limit, limited := s.limitOf(q)
		if !ok || !limited || limit >= p.Attempts {
			continue
		}
		f := Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("its delivery limit is %d, and policy %q has %d attempts", limit, p.Name, p.Attempts),
			Remedy: "Reject without requeue what fails, or raise the limit. " + s.raise(q)}
		if reasons := p.Reasons; len(reasons) > 0 && !slices.Contains(reasons, "delivery_limit") {
			f.Status = Wrong
			f.What += " and no reason delivery_limit: what passes the limit is parked at once"
			f.Remedy = "Add delivery_limit to the policy's reasons, or raise the limit. " + s.raise(q)
		}
		all = append(all, f)
	}
	return all
}

func (s *Scene) raise(q *management.QueueState) string {
	if isArgument(q, "delivery-limit") {
		return "The queue was declared with it (x-delivery-limit), which no policy can raise."
	}
	return fmt.Sprintf("It is delivery-limit in the RabbitMQ policy %q.", q.Policy)
}

// limitOf is the delivery limit of a quorum queue, when there is one.
func (s *Scene) limitOf(q *management.QueueState) (limit int, limited bool) {
	return q.LimitInForce(s.Version)
}
