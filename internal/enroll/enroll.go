// Package enroll points the dead-lettering of an existing queue at Redrive. A
// queue's arguments cannot be changed, so it sets a RabbitMQ policy; one policy
// applies to a queue at a time, so it takes over what the one in force says.
package enroll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/redrive-mq/redrive/internal/management"
	"github.com/redrive-mq/redrive/wire"
)

var (
	// ErrArgument: the queue's own arguments decide, and a policy cannot.
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
	// AtMostOnce: it leads in a circle, where at-least-once dead-lettering would
	// keep what RabbitMQ takes for a cycle, and in the end stand still.
	AtMostOnce bool
	// Makes is what the queue needs besides the policy, in words.
	Makes string
	make  func(context.Context, *management.Client) error
}

// service is the target of an enrolled queue.
func service(queue string) Target {
	exchange := wire.ReturnExchange(queue)
	return Target{Exchange: wire.ExchangeDeadLetters, PolicyPrefix: "redrive.", Makes: fmt.Sprintf("makes exchange %q and binds the queue to it", exchange),
		make: func(ctx context.Context, m *management.Client) error {
			if err := m.DeclareFanout(ctx, exchange); err != nil {
				return err
			}
			return m.BindQueue(ctx, exchange, queue)
		}}
}

// policy of a queue.
func (t Target) policy(queue string) management.Policy {
	def := map[string]any{"dead-letter-exchange": t.Exchange}
	if t.RoutingKey != "" {
		def["dead-letter-routing-key"] = t.RoutingKey
	}
	return management.Policy{Name: t.PolicyPrefix + queue, Pattern: "^" + regexp.QuoteMeta(queue) + "$", ApplyTo: "queues", Definition: def}
}

// reached tells whether a policy's definition sends dead letters there already.
func (t Target) reached(def map[string]any) bool {
	key, _ := def["dead-letter-routing-key"].(string)
	return def["dead-letter-exchange"] == t.Exchange && (t.RoutingKey == "" || t.RoutingKey == key)
}

// Plan is what enrolling a queue changes.
type Plan struct {
	Queue  management.Queue
	Target Target
	// Before is the policy in force; nil when there is none.
	Before *management.Policy
	// Policy is what is set; nil when the queue dead-letters to Redrive already.
	Policy *management.Policy
}

// Make finds out what enrolling queue needs, and changes nothing. With
// atLeastOnce a quorum queue also gets dead-letter-strategy at-least-once, and
// overflow reject-publish, which that needs.
func Make(ctx context.Context, m *management.Client, queue string, atLeastOnce bool) (*Plan, error) {
	return makePlan(ctx, m, queue, service(queue), atLeastOnce)
}

func makePlan(ctx context.Context, m *management.Client, queue string, target Target, atLeastOnce bool) (*Plan, error) {
	if wire.OwnQueue(queue) {
		return nil, fmt.Errorf("%q is one of Redrive's own queues", queue)
	}
	q, err := m.Queue(ctx, queue)
	if errors.Is(err, management.ErrNotFound) {
		return nil, fmt.Errorf("the queue %q does not exist: %w", queue, err)
	}
	if err != nil {
		return nil, err
	}
	policies, err := m.Policies(ctx)
	if err != nil {
		return nil, err
	}
	return plan(q, policies, target, atLeastOnce)
}

func plan(q management.Queue, policies []management.Policy, target Target, atLeastOnce bool) (*Plan, error) {
	p := &Plan{Queue: q, Target: target}
	if i := slices.IndexFunc(policies, func(p management.Policy) bool { return p.Name == q.Policy && q.Policy != "" }); i >= 0 {
		p.Before = &policies[i]
	}
	if atLeastOnce && q.Type != "quorum" {
		return nil, fmt.Errorf("the queue %q is %s: at-least-once dead-lettering needs a quorum queue", q.Name, q.Type)
	}
	switch x, fixed := q.Arguments["x-dead-letter-exchange"]; {
	case fixed && (x != target.Exchange || target.RoutingKey != "" && q.Arguments["x-dead-letter-routing-key"] != target.RoutingKey):
		return nil, fmt.Errorf("queue %q: %w (it is %q): declare a new queue with x-dead-letter-exchange: %s, or without it, and move consumers and messages there", q.Name, ErrArgument, x, target.Exchange)
	case fixed && !atLeastOnce:
		return p, nil
	}
	if x := q.Arguments["x-dead-letter-strategy"]; target.AtMostOnce && x == "at-least-once" {
		return nil, fmt.Errorf("queue %q was declared with x-dead-letter-strategy %q, which no policy can change: here what is not rejected would stop its dead-lettering; declare a new queue without it, or use the library or the service", q.Name, x)
	}
	if atLeastOnce {
		for key, needed := range map[string]string{"x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once"} {
			if x, fixed := q.Arguments[key]; fixed && x != needed {
				// RabbitMQ would fall back to at-most-once without a word.
				return nil, fmt.Errorf("the queue %q was declared with %s %q, which no policy can change, and at-least-once dead-lettering needs %q: enroll it without, or declare a new queue", q.Name, key, x, needed)
			}
		}
	}
	set := target.policy(q.Name)
	def := map[string]any{}
	if p.Before != nil {
		if target.reached(p.Before.Definition) && !atLeastOnce {
			return p, nil
		}
		maps.Copy(def, p.Before.Definition)
		set.Priority = p.Before.Priority + 1
		if p.Before.Name == set.Name {
			set.Priority = p.Before.Priority
		}
	}
	delete(def, "dead-letter-routing-key") // it would replace the routing key, which a return keeps
	if target.AtMostOnce {
		delete(def, "dead-letter-strategy")
	}
	maps.Copy(def, set.Definition)
	if atLeastOnce {
		def["dead-letter-strategy"] = "at-least-once"
		def["overflow"] = "reject-publish"
	}
	set.Definition = def
	p.Policy = &set
	return p, nil
}

// Write shows a plan to a person: what applies now, and each key that changes.
func (p *Plan) Write(w io.Writer) {
	if p.Policy == nil {
		fmt.Fprintf(w, "queue %q dead-letters to %q already, no policy to set; %s\n", p.Queue.Name, p.Target.Exchange, p.Target.Makes)
		return
	}
	before := map[string]any{}
	if p.Before == nil {
		fmt.Fprintf(w, "queue %q (%s), no policy applies\n", p.Queue.Name, p.Queue.Type)
	} else {
		before = p.Before.Definition
		fmt.Fprintf(w, "queue %q (%s), policy %q of priority %d applies\n", p.Queue.Name, p.Queue.Type, p.Before.Name, p.Before.Priority)
	}
	fmt.Fprintf(w, "sets policy %q, priority %d, on %s:\n", p.Policy.Name, p.Policy.Priority, p.Policy.Pattern)
	keys := maps.Clone(before)
	maps.Copy(keys, p.Policy.Definition)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		was, had := before[k]
		is, has := p.Policy.Definition[k]
		switch {
		case had && has && show(was) == show(is):
			fmt.Fprintf(w, "    %s: %s\n", k, show(is))
		case had && has:
			fmt.Fprintf(w, "  - %s: %s\n  + %s: %s\n", k, show(was), k, show(is))
		case had:
			fmt.Fprintf(w, "  - %s: %s\n", k, show(was))
		default:
			fmt.Fprintf(w, "  + %s: %s\n", k, show(is))
		}
	}
	fmt.Fprintln(w, p.Target.Makes)
	if p.Queue.Type == "classic" {
		fmt.Fprintln(w, "note: a classic queue's own dead-lettering is at-most-once; what it loses on the way is lost")
	}
}

// show is a value as it was set: JSON numbers are floats, and a day of
// message-ttl would read 8.64e+07.
func show(v any) string {
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// Apply carries a plan out. The way back is made first, so that nothing fails
// into Redrive that could not return.
func (p *Plan) Apply(ctx context.Context, m *management.Client) error {
	if err := p.Target.make(ctx, m); err != nil {
		return err
	}
	if p.Policy == nil {
		return nil
	}
	return m.PutPolicy(ctx, *p.Policy)
}

// Undo takes our policy away, so that the one before applies again. The return
// exchange stays: messages that wait still have to come back.
func Undo(ctx context.Context, m *management.Client, queue string) error {
	return undo(ctx, m, service(queue).PolicyPrefix+queue, queue)
}

func undo(ctx context.Context, m *management.Client, policy, queue string) error {
	err := m.DeletePolicy(ctx, policy)
	if errors.Is(err, management.ErrNotFound) {
		return fmt.Errorf("queue %q: %w: there is no policy %q", queue, ErrNotEnrolled, policy)
	}
	return err
}
