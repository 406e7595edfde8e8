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
	ErrNotEnrolled = errors.New("not enrolled by `redrive enroll`")
)

// policyPrefix leads the names of our policies.
const policyPrefix = "redrive."

// Plan is what enrolling a queue changes.
type Plan struct {
	Queue management.Queue
	// Before is the policy in force; nil when there is none.
	Before *management.Policy
	// Policy is what is set; nil when the queue dead-letters to Redrive already.
	Policy *management.Policy
}

// Make finds out what enrolling queue needs, and changes nothing. With
// atLeastOnce a quorum queue also gets dead-letter-strategy at-least-once, and
// overflow reject-publish, which that needs.
func Make(ctx context.Context, m *management.Client, queue string, atLeastOnce bool) (*Plan, error) {
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
	return plan(q, policies, atLeastOnce)
}

func plan(q management.Queue, policies []management.Policy, atLeastOnce bool) (*Plan, error) {
	p := &Plan{Queue: q}
	if i := slices.IndexFunc(policies, func(p management.Policy) bool { return p.Name == q.Policy && q.Policy != "" }); i >= 0 {
		p.Before = &policies[i]
	}
	if atLeastOnce && q.Type != "quorum" {
		return nil, fmt.Errorf("the queue %q is %s: at-least-once dead-lettering needs a quorum queue", q.Name, q.Type)
	}
	switch x, fixed := q.Arguments["x-dead-letter-exchange"]; {
	case fixed && x != wire.ExchangeDeadLetters:
		return nil, fmt.Errorf("queue %q: %w (it is %q): declare a new queue with x-dead-letter-exchange: %s, or without it, and move consumers and messages there", q.Name, ErrArgument, x, wire.ExchangeDeadLetters)
	case fixed && !atLeastOnce:
		return p, nil
	}
	if atLeastOnce {
		for key, needed := range map[string]string{"x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once"} {
			if x, fixed := q.Arguments[key]; fixed && x != needed {
				// RabbitMQ would fall back to at-most-once without a word.
				return nil, fmt.Errorf("the queue %q was declared with %s %q, which no policy can change, and at-least-once dead-lettering needs %q: enroll it without, or declare a new queue", q.Name, key, x, needed)
			}
		}
	}
	def := map[string]any{}
	priority := 0
	if p.Before != nil {
		if p.Before.Definition["dead-letter-exchange"] == wire.ExchangeDeadLetters && !atLeastOnce {
			return p, nil
		}
		maps.Copy(def, p.Before.Definition)
		priority = p.Before.Priority + 1
		if p.Before.Name == policyPrefix+q.Name {
			priority = p.Before.Priority
		}
	}
	def["dead-letter-exchange"] = wire.ExchangeDeadLetters
	delete(def, "dead-letter-routing-key") // it would replace the routing key, which a return keeps
	if atLeastOnce {
		def["dead-letter-strategy"] = "at-least-once"
		def["overflow"] = "reject-publish"
	}
	p.Policy = &management.Policy{
		Name: policyPrefix + q.Name, Pattern: "^" + regexp.QuoteMeta(q.Name) + "$", ApplyTo: "queues", Priority: priority, Definition: def,
	}
	return p, nil
}

// Write shows a plan to a person: what applies now, and each key that changes.
func (p *Plan) Write(w io.Writer) {
	if p.Policy == nil {
		fmt.Fprintf(w, "queue %q dead-letters to %q already; nothing to set but its return exchange %q\n", p.Queue.Name, wire.ExchangeDeadLetters, wire.ReturnExchange(p.Queue.Name))
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
	fmt.Fprintf(w, "makes exchange %q and binds the queue to it\n", wire.ReturnExchange(p.Queue.Name))
	if p.Queue.Type == "classic" {
		fmt.Fprintln(w, "note: a classic queue's own dead-lettering is at-most-once; what it loses before it reaches Redrive is lost")
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
	exchange := wire.ReturnExchange(p.Queue.Name)
	if err := m.DeclareFanout(ctx, exchange); err != nil {
		return err
	}
	if err := m.BindQueue(ctx, exchange, p.Queue.Name); err != nil {
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
	err := m.DeletePolicy(ctx, policyPrefix+queue)
	if errors.Is(err, management.ErrNotFound) {
		return fmt.Errorf("queue %q: %w: there is no policy %q", queue, ErrNotEnrolled, policyPrefix+queue)
	}
	return err
}
