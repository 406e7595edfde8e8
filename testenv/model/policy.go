package model

import (
	"fmt"
	"regexp"
	"slices"
)

// Policy is a user's policy for queues.
type Policy struct {
	Name, Pattern string
	ApplyTo       string // queues, or from 3.12 classic_queues or quorum_queues
	Priority      int
	Definition    map[string]any // without the "x-" of arguments
}

var (
	policyTexts   = []string{"dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy", "overflow"}
	policyNumbers = []string{"message-ttl", "expires", "max-length", "delivery-limit"}
	onlyQuorum    = []string{"dead-letter-strategy", "delivery-limit"}
)

// SetPolicy makes or replaces one, and applies it at once.
func (b *Broker) SetPolicy(p Policy) error {
	if err := b.checkPolicy(p); err != nil {
		return fmt.Errorf("the model of RabbitMQ has no policy %q: %w", p.Name, err)
	}
	definition := map[string]any{}
	for key, value := range p.Definition {
		if definition[key] = value; slices.Contains(policyNumbers, key) {
			definition[key], _ = number(value)
		}
	}
	p.Definition = definition
	b.mu.Lock()
	defer b.mu.Unlock()
	former := b.policies[p.Name]
	b.policies[p.Name] = &p
	for _, name := range sorted(b.queues) {
		if _, several := b.queues[name].matching(); several {
			if b.policies[p.Name] = former; former == nil {
				delete(b.policies, p.Name)
			}
			return fmt.Errorf("the model of RabbitMQ has no second policy of priority %d for queue %q", p.Priority, name)
		}
	}
	b.applyPolicies()
	return nil
}

// DeletePolicy deletes one, if it exists.
func (b *Broker) DeletePolicy(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.policies, name)
	b.applyPolicies()
}

func (b *Broker) checkPolicy(p Policy) error {
	if _, err := regexp.Compile(p.Pattern); err != nil {
		return err
	}
	typed := p.ApplyTo == "classic_queues" || p.ApplyTo == "quorum_queues"
	if p.ApplyTo != "queues" && !(typed && b.since4()) {
		return fmt.Errorf("apply-to %q", p.ApplyTo)
	}
	for _, key := range sorted(p.Definition) {
		value := p.Definition[key]
		text, isText := value.(string)
		n, isNumber := number(value)
		switch {
		case slices.Contains(policyNumbers, key) && isNumber && (n >= 0 || key == "delivery-limit" && b.since4()):
		case slices.Contains(policyTexts, key) && isText && (key != "overflow" || text == "drop-head" || text == "reject-publish"):
		default:
			return fmt.Errorf("%s = %v", key, value)
		}
	}
	return nil
}

// number reads a number of a policy, which comes from JSON or from Go.
func number(value any) (int64, bool) {
	switch v := value.(type) {
	case int:
		return int64(v), true
	case float64:
		return int64(v), v == float64(int64(v))
	}
	return whole(value)
}

// applyPolicies lets each queue follow what has changed.
func (b *Broker) applyPolicies() {
	for _, name := range sorted(b.queues) {
		if q := b.queues[name]; q != nil { // not deleted meanwhile
			q.applySettings()
			q.dropHead()
			q.run()
			q.watchUse()
		}
	}
}

// matching is the policy of a queue: that of the highest priority; of two it is not known
// which. One that has a key that this type of queue does not have does not apply at all.
func (q *queue) matching() (best *Policy, several bool) {
	for _, name := range sorted(q.b.policies) {
		p := q.b.policies[name]
		fits := regexp.MustCompile(p.Pattern).MatchString(q.name) &&
			(p.ApplyTo == "queues" || (p.ApplyTo == "quorum_queues") == q.quorum) &&
			(q.quorum || !slices.ContainsFunc(onlyQuorum, func(key string) bool { return p.Definition[key] != nil }))
		switch {
		case fits && (best == nil || p.Priority > best.Priority):
			best, several = p, false
		case fits && p.Priority == best.Priority:
			several = true
		}
	}
	return best, several
}

// values are what the policy and the argument of a queue say; nil without.
func (q *queue) values(name string) (policy, argument any) {
	if q.policy != nil {
		policy = q.policy.Definition[name]
	}
	argument, _ = q.arguments.get("x-" + name)
	return policy, argument
}

// text is the argument's or the policy's value.
func (q *queue) text(name string) (text string, is bool) {
	policy, argument := q.values(name)
	if argument == nil || q.quorum && name == "overflow" && policy != nil {
		argument = policy
	}
	text, is = argument.(string)
	return text, is
}

// least is the lower one of both values; -1 without.
func (q *queue) least(name string) int64 {
	policy, argument := q.values(name)
	p, hasPolicy := whole(policy)
	a, hasArgument := whole(argument)
	switch {
	case !hasPolicy && !hasArgument:
		return -1
	case !hasArgument, hasPolicy && q.quorum && !q.b.since4() && name == "expires":
		return p
	case !hasPolicy:
		return a
	}
	return min(p, a)
}

// limitOf is the delivery limit of a quorum queue.
func (q *queue) limitOf() (limit int64, limited bool) {
	policy, argument := q.values("delivery-limit")
	p, hasPolicy := whole(policy)
	a, hasArgument := whole(argument)
	switch {
	case !q.quorum:
		return 0, false
	case !hasPolicy && !hasArgument:
		return defaultDeliveryLimit, q.b.since4()
	case !hasArgument:
		limit = p
	case !hasPolicy:
		limit = a
	case q.b.since4() && (p < 0 || a < 0): // a limit goes before none
		limit = max(p, a)
	default:
		limit = min(p, a)
	}
	return limit, limit >= 0 || !q.b.since4()
}
