package enroll

import (
	"maps"
	"slices"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// Successor plans the policy of a queue that replaces old under another name and type: with what is
// in force on old, dead letters to Redrive, and a priority above all others that match the name. rabbitMQ
// is its version.
func Successor(old management.Queue, policies []management.Policy, name, kind, rabbitMQ string) *Plan {
	p := &Plan{Queue: management.Queue{Name: name, Type: kind}, Target: serviceTarget(name), Before: management.PolicyNamed(policies, old.Policy)}
	set := p.Target.policy(name)
	def := map[string]any{}
	if p.Before != nil {
		maps.Copy(def, p.Before.Definition)
	}
	delete(def, "dead-letter-routing-key")
	maps.Copy(def, set.Definition)
	if old.Arguments["x-dead-letter-strategy"] == "at-least-once" && kind == "quorum" {
		def["dead-letter-strategy"], def["overflow"] = "at-least-once", "reject-publish"
	}
	set.Definition = def
	others := slices.DeleteFunc(slices.Clone(policies), func(p management.Policy) bool { return p.Name == set.Name })
	if best, known := policyWithout(p.Queue, others, set.Name); !known {
		for _, o := range others {
			set.Priority = max(set.Priority, o.Priority+1)
		}
	} else if best != nil {
		set.Priority = best.Priority + 1
	}
	p.Policy = &set
	p.leaveOut(rabbitMQ)
	return p
}
