// Package enroll makes an existing queue dead-letter to Redrive. A queue's arguments cannot be
// changed, so it sets a RabbitMQ policy. One policy applies to a queue at a time, so that has the
// keys of the one in force as well.
package enroll

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/rabbitmq/version"
	"github.com/redrive-mq/redrive/wire"
)

var (
	// ErrArgument: an argument of the queue has precedence over any policy.
	ErrArgument = errors.New("the queue was declared with x-dead-letter-exchange, which no policy can change")
	// ErrNotEnrolled: there is nothing to undo.
	ErrNotEnrolled = errors.New("nothing to undo")
)

// Target is where a queue's dead letters are to go.
type Target struct {
	Exchange string
	// RoutingKey replaces that of each dead letter; "" keeps it.
	RoutingKey string
	// PolicyPrefix leads the names of the policies, one for each kind of target.
	PolicyPrefix string
	// AtMostOnce: dead letters come back to the queue, and RabbitMQ refuses some as a cycle.
	// With at-least-once they would stay, and in the end stop the queue's dead-lettering.
	AtMostOnce bool
	// Makes is what the queue needs besides the policy, in words.
	Makes string
	// topology is that, as it is declared.
	topology delay.Topology
}

const servicePrefix = "redrive."

// serviceTarget is the target of an enrolled queue.
func serviceTarget(queue string) Target {
	return Target{Exchange: wire.ExchangeDeadLetters, PolicyPrefix: servicePrefix, Makes: fmt.Sprintf("makes exchange %q and binds the queue to it", wire.RetryExchange(queue)),
		topology: delay.Retry(queue)}
}

// policy of a queue.
func (t Target) policy(queue string) management.Policy {
	def := map[string]any{"dead-letter-exchange": t.Exchange}
	if t.RoutingKey != "" {
		def["dead-letter-routing-key"] = t.RoutingKey
	}
	return management.Policy{Name: t.PolicyPrefix + queue, Pattern: "^" + regexp.QuoteMeta(queue) + "$", ApplyTo: "queues", Definition: def}
}

// isSetIn tells whether a policy's definition dead-letters to the target already.
func (t Target) isSetIn(def map[string]any) bool {
	key, _ := def["dead-letter-routing-key"].(string)
	return def["dead-letter-exchange"] == t.Exchange && (t.RoutingKey == "" || t.RoutingKey == key)
}

// Plan is what enrolling one queue changes.
type Plan struct {
	Queue  management.Queue
	Target Target
	// Before is the policy in force; nil when there is none.
	Before *management.Policy
	// Policy is what is set; nil when the queue dead-letters to Redrive already.
	Policy *management.Policy
	// LeftOut are the keys of Before that this RabbitMQ refuses.
	LeftOut []string
	// Notes are what a person should know before it is applied.
	Notes []string
}

// ReadQueue reads a queue, with what is in force on it, and the policies.
func ReadQueue(ctx context.Context, m *management.Client, queue string) (management.Queue, []management.Policy, error) {
	q, err := m.QueueInForce(ctx, queue)
	if errors.Is(err, management.ErrNotFound) {
		return q, nil, fmt.Errorf("the queue %q does not exist: %w", queue, err)
	}
	if err != nil {
		return q, nil, err
	}
	policies, err := m.Policies(ctx)
	return q, policies, err
}

// plan finds out what enrolling a queue needs. With atLeastOnce a quorum queue also gets
// dead-letter-strategy at-least-once, and overflow reject-publish, which that needs.
func plan(q management.Queue, policies []management.Policy, target Target, atLeastOnce bool) (*Plan, error) {
	if err := canEnroll(q, atLeastOnce); err != nil {
		return nil, err
	}
	p := &Plan{Queue: q, Target: target, Before: management.PolicyNamed(policies, q.Policy)}
	if q.Policy != "" && p.Before == nil {
		return nil, fmt.Errorf("queue %q: its policy %q was deleted just now", q.Name, q.Policy)
	}
	set := target.policy(q.Name)
	if was := management.PolicyNamed(policies, set.Name); was != nil && was.Pattern != set.Pattern {
		return nil, fmt.Errorf("queue %q: there is a policy %q already, on %s, which is not Redrive's: rename it", q.Name, was.Name, management.Text(was.Pattern))
	}
	if err := target.checkArguments(q, atLeastOnce); err != nil {
		return nil, err
	}
	if _, fixed := q.Arguments["x-dead-letter-exchange"]; fixed && !atLeastOnce {
		return p, nil
	}
	p.addNotes()
	if p.Before != nil && target.isSetIn(p.Before.Definition) && !atLeastOnce {
		return p, nil
	}
	p.Policy = mergePolicy(set, p.Before, target, atLeastOnce)
	return p, nil
}

// canEnroll refuses queues that have no dead letters, or none that could be retried.
func canEnroll(q management.Queue, atLeastOnce bool) error {
	switch {
	case wire.OwnQueue(q.Name):
		return fmt.Errorf("%q is one of Redrive's own queues", q.Name)
	case q.Type == "stream":
		return fmt.Errorf("%q is a stream, which dead-letters nothing", q.Name)
	case q.Exclusive:
		return fmt.Errorf("the queue %q is exclusive: it goes with its connection", q.Name)
	case atLeastOnce && q.Type != "quorum":
		return fmt.Errorf("the queue %q is %s: at-least-once dead-lettering needs a quorum queue", q.Name, q.Type)
	}
	return nil
}

// checkArguments refuses queues whose arguments, which no policy can change, contradict
// the policy.
func (t Target) checkArguments(q management.Queue, atLeastOnce bool) error {
	x, fixed := q.Arguments["x-dead-letter-exchange"]
	if fixed && (x != t.Exchange || t.RoutingKey != "" && q.Arguments["x-dead-letter-routing-key"] != t.RoutingKey) {
		return fmt.Errorf("queue %q: %w (it is %q): `redrive move %s --to NEWNAME` makes a queue without it, and moves bindings and messages there", q.Name, ErrArgument, x, q.Name)
	}
	if fixed && !atLeastOnce {
		return nil // no policy is set
	}
	if x := q.Arguments["x-dead-letter-strategy"]; t.AtMostOnce && x == "at-least-once" {
		return fmt.Errorf("queue %q was declared with x-dead-letter-strategy %q, which no policy can change: here what is not rejected would stop its dead-lettering; declare a new queue without it, or use the library or the service", q.Name, x)
	}
	if !atLeastOnce {
		return nil
	}
	for key, needed := range map[string]string{"x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once"} {
		if x, fixed := q.Arguments[key]; fixed && x != needed {
			// RabbitMQ would fall back to at-most-once without a word.
			return fmt.Errorf("the queue %q was declared with %s %q, which no policy can change, and at-least-once dead-lettering needs %q: enroll it without, or declare a new queue", q.Name, key, x, needed)
		}
	}
	return nil
}

// mergePolicy returns the policy to set, with the keys of the one in force.
func mergePolicy(set management.Policy, before *management.Policy, target Target, atLeastOnce bool) *management.Policy {
	def := map[string]any{}
	if before != nil {
		maps.Copy(def, before.Definition)
		set.Priority = before.Priority + 1
		if before.Name == set.Name {
			set.Priority = before.Priority
		}
	}
	delete(def, "dead-letter-routing-key") // it would replace the routing key, which a retry keeps
	if target.AtMostOnce {
		delete(def, "dead-letter-strategy")
	}
	maps.Copy(def, set.Definition)
	if atLeastOnce {
		def["dead-letter-strategy"] = "at-least-once"
		def["overflow"] = "reject-publish"
	}
	set.Definition = def
	return &set
}

// leaveOut leaves out of the policy what remains of an older RabbitMQ: it is in force still, but could
// not be set.
func (p *Plan) leaveOut(rabbitMQ string) {
	if since4, _ := version.AtLeast(rabbitMQ, 4, 0); p.Policy == nil || !since4 {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(p.Policy.Definition)) {
		if strings.HasPrefix(key, "ha-") || key == "queue-master-locator" {
			delete(p.Policy.Definition, key)
			p.LeftOut = append(p.LeftOut, key)
		}
	}
	if len(p.LeftOut) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("leaves out %s, which RabbitMQ %s no longer has", strings.Join(p.LeftOut, ", "), rabbitMQ))
	}
}

// Apply carries a plan out. First it lets RabbitMQ check the policy, on no queue. The path back to the queue is made first, so that no message
// dead-letters to Redrive that could not be retried.
func (p *Plan) Apply(ctx context.Context, m *management.Client) error {
	if p.Policy == nil {
		return m.Declare(ctx, p.Target.topology)
	}
	check := *p.Policy
	check.Name, check.Pattern = check.Name+" (check)", "^$"
	err := m.PutPolicy(ctx, check)
	if err == nil {
		err = m.DeletePolicy(ctx, check.Name)
	}
	if err == nil {
		err = m.Declare(ctx, p.Target.topology)
	}
	if err != nil {
		return err
	}
	return m.PutPolicy(ctx, *p.Policy)
}
