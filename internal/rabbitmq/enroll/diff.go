package enroll

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// Key is one key of the policy in force, and what becomes of it.
type Key struct {
	Name   string `json:"key"`
	Change string `json:"change"` // added, changed, removed, kept
	Was    any    `json:"was,omitempty"`
	Is     any    `json:"is,omitempty"`
	// Overruled is what is in force instead, by the operator policy.
	Overruled any `json:"overruled,omitempty"`
}

// Keys are what a plan does to each key, in order.
func (p *Plan) Keys() []Key {
	if p.Policy == nil {
		return nil
	}
	keys := diffPolicies(p.Before, p.Policy)
	for i, k := range keys {
		if now, ok := p.Queue.Effective[k.Name]; ok && k.Change == "kept" && management.Text(now) != management.Text(k.Was) {
			keys[i].Overruled = now
		}
	}
	return keys
}

// diffPolicies compares two policies, nil for none.
func diffPolicies(from, to *management.Policy) (keys []Key) {
	before, after := map[string]any{}, map[string]any{}
	if from != nil {
		before = from.Definition
	}
	if to != nil {
		after = to.Definition
	}
	all := map[string]any{}
	maps.Copy(all, before)
	maps.Copy(all, after)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		was, had := before[name]
		is, has := after[name]
		k := Key{Name: name, Was: was, Is: is}
		switch {
		case had && has && management.Text(was) == management.Text(is):
			k.Change = "kept"
		case had && has:
			k.Change = "changed"
		case had:
			k.Change = "removed"
		default:
			k.Change = "added"
		}
		keys = append(keys, k)
	}
	return keys
}

// addNotes adds what the keys do not show.
func (p *Plan) addNotes() {
	add := func(format string, args ...any) { p.Notes = append(p.Notes, fmt.Sprintf(format, args...)) }
	if p.Queue.Type == "classic" {
		add("a classic queue's own dead-lettering is at-most-once; what it loses on the way is lost")
	}
	if p.Queue.OperatorPolicy != "" {
		add("the operator policy %q still applies, and overrides what is set here", p.Queue.OperatorPolicy)
	}
	ttl, ok := p.Queue.Arguments["x-message-ttl"]
	if !ok {
		ttl, ok = p.Queue.Effective["message-ttl"]
	}
	if ok {
		add("messages expire here (after %s ms): those come to Redrive too, which parks them unless a policy's reasons name expired", management.Text(ttl))
	}
}

// Write shows a plan to a person: what applies now, and each key that changes.
func (p *Plan) Write(w io.Writer) {
	if p.Policy == nil {
		fmt.Fprintf(w, "queue %q dead-letters to %q already, no policy to set; %s\n", p.Queue.Name, p.Target.Exchange, p.Target.Makes)
		return
	}
	if p.Before == nil {
		fmt.Fprintf(w, "queue %q (%s), no policy applies\n", p.Queue.Name, p.Queue.Type)
	} else {
		fmt.Fprintf(w, "queue %q (%s), policy %q of priority %d applies\n", p.Queue.Name, p.Queue.Type, p.Before.Name, p.Before.Priority)
	}
	fmt.Fprintf(w, "sets policy %q, priority %d, on %s:\n", p.Policy.Name, p.Policy.Priority, management.Text(p.Policy.Pattern))
	writeKeys(w, p.Keys(), p.Queue.OperatorPolicy)
	fmt.Fprintln(w, p.Target.Makes)
	for _, n := range p.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
}

func writeKeys(w io.Writer, keys []Key, operator string) {
	for _, k := range keys {
		switch {
		case k.Overruled != nil:
			fmt.Fprintf(w, "    %s: %s (the operator policy %q makes it %s)\n", k.Name, management.Text(k.Is), operator, management.Text(k.Overruled))
		case k.Change == "kept":
			fmt.Fprintf(w, "    %s: %s\n", k.Name, management.Text(k.Is))
		case k.Change == "changed":
			fmt.Fprintf(w, "  - %s: %s\n  + %s: %s\n", k.Name, management.Text(k.Was), k.Name, management.Text(k.Is))
		case k.Change == "removed":
			fmt.Fprintf(w, "  - %s: %s\n", k.Name, management.Text(k.Was))
		default:
			fmt.Fprintf(w, "  + %s: %s\n", k.Name, management.Text(k.Is))
		}
	}
}
