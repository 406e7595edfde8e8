package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// operatorKeys are keys of operator policies that change what happens to messages.
var operatorKeys = []string{"message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "delivery-limit"}

func policyInForce(s *Scene) (all []Finding) {
	for _, q := range s.workQueues() {
		ours := management.PolicyNamed(s.Policies, "redrive."+q.Name)
		enrolled := s.enrolled(q)
		if ours != nil && !enrolled && !isArgument(q, "dead-letter-exchange") {
			by := "nothing applies"
			if q.Policy != "" {
				by = fmt.Sprintf("policy %q is", q.Policy)
				if other := management.PolicyNamed(s.Policies, q.Policy); other != nil {
					by = fmt.Sprintf("policy %q of priority %d is", q.Policy, other.Priority)
				}
			}
			all = append(all, Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("its policy %q of priority %d is not in force: %s", ours.Name, ours.Priority, by),
				Remedy: "Merge both, above the other:", Commands: []string{s.redrive("enroll", q.Name)}})
		}
		if q.OperatorPolicy == "" || !enrolled {
			continue
		}
		if operator := management.PolicyNamed(s.OperatorPolicies, q.OperatorPolicy); operator != nil {
			if keys := management.Settings(operator.Definition, operatorKeys); len(keys) > 0 {
				all = append(all, Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("the operator policy %q puts %s on it, whatever its own policy says", q.OperatorPolicy, strings.Join(keys, ", ")),
					Remedy: "Ask who set it, or take it away:", Commands: []string{s.rabbitmqctl("clear_operator_policy", q.OperatorPolicy)}})
			}
		}
	}
	return all
}

func unmatched(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		if _, ok := s.Config.Policies.Match(q.Name); !ok {
			f := Finding{Queue: q.Name, Status: Warning, What: "no policy of Redrive's config matches it", Remedy: "Add it to the queues of a policy, then:"}
			if s.File != "" {
				f.Commands = []string{"redrive check " + Quote(s.File)} // not as s.Call: check accepts no --vhost
			}
			all = append(all, f)
		}
	}
	return all
}

func nativeRetry(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		kind, _ := q.Setting("delayed-retry-type").(string)
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

func deliveryLimit(s *Scene) (all []Finding) {
	for _, q := range s.enrolledQueues() {
		p, ok := s.Config.Policies.Match(q.Name)
		limit, limited := q.LimitInForce(s.Version)
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
	return append(all, s.ofTheLibrary()...)
}

// ofTheLibrary looks at the queues whose consumers use the Go library: those bound to redrive.due.
func (s *Scene) ofTheLibrary() (all []Finding) {
	for _, q := range s.workQueues() {
		ours := slices.ContainsFunc(s.Bindings, func(b management.Binding) bool { return b.Source == wire.ExchangeDue && b.Destination == q.Name })
		if !ours || s.enrolled(q) {
			continue
		}
		limit, limited := q.LimitInForce(s.Version)
		switch {
		case q.Type == "classic":
			all = append(all, Finding{Queue: q.Name, Status: Warning, What: "it is classic, and counts no deliveries: a message that ends its consumer's process is delivered again for ever",
				Remedy: "Declare it as a quorum queue: then Consumer.MaxDeliveries of the Go library parks such a message."})
		case limited && limit <= defaultMaxDeliveries && q.Setting("dead-letter-exchange") == nil:
			all = append(all, Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("its delivery limit is %d, and it has no dead-letter exchange: a message that ends its consumer's process is dropped", limit),
				Remedy: "Raise the limit above Consumer.MaxDeliveries of the Go library (10 unless it is set), or lower that. " + s.raise(q)})
		}
	}
	return all
}

// defaultMaxDeliveries is the library's: from there on it parks.
const defaultMaxDeliveries = 10

func (s *Scene) raise(q *management.QueueState) string {
	if isArgument(q, "delivery-limit") {
		return "The queue was declared with it (x-delivery-limit), which no policy can raise."
	}
	return fmt.Sprintf("It is delivery-limit in the RabbitMQ policy %q.", q.Policy)
}
