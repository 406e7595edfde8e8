// Package enroll makes an existing queue dead-letter to Redrive. A queue's arguments cannot be
// changed, so it sets a RabbitMQ policy. One policy applies to a queue at a time, so that has the
// keys of the one in force as well. What no policy can change, a Move changes by a new queue.
package enroll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
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
	// Makes are further steps for the queue, as they follow "will".
	Makes string
	// topology is that, as it is declared.
	topology delay.Topology
}

const servicePrefix = "redrive."

// serviceTarget is the target of an enrolled queue.
func serviceTarget(queue string) Target {
	return Target{Exchange: wire.ExchangeDeadLetters, PolicyPrefix: servicePrefix,
		Makes:    fmt.Sprintf("make exchange %q and bind the queue to it", wire.RetryExchange(queue)),
		topology: delay.Retry(queue)}
}

// policy of a queue.
func (t Target) policy(queue string) management.Policy {
	def := map[string]any{"dead-letter-exchange": t.Exchange}
	if t.RoutingKey != "" {
		def["dead-letter-routing-key"] = t.RoutingKey
	}
	return management.Policy{Name: t.PolicyPrefix + queue, Pattern: "^" + regexp.QuoteMeta(queue) + "$",
		ApplyTo: "queues", Definition: def}
}

// isSetIn reports whether a policy's definition dead-letters to the target already.
func (t Target) isSetIn(def map[string]any) bool {
	key, _ := def["dead-letter-routing-key"].(string)
	return def["dead-letter-exchange"] == t.Exchange && (t.RoutingKey == "" || t.RoutingKey == key)
}

// Plan lists the changes of enrolling one queue.
type Plan struct {
	Queue  management.Queue
	Target Target
	// Before is the policy in force; nil when there is none.
	Before *management.Policy
	// Policy is set by it; nil when the queue dead-letters to Redrive already.
	Policy *management.Policy
	// LeftOut are the keys of Before that this RabbitMQ refuses.
	LeftOut []string
	// Notes are for a person to read before it is applied.
	Notes []string
}

// ReadQueue reads a queue, with the settings in force, and the policies.
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
		return nil, fmt.Errorf("queue %q: there is a policy %q already, on %s, which is not Redrive's: rename it",
			q.Name, was.Name, management.Text(was.Pattern))
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
		return fmt.Errorf("queue %q: %w (it is %q): `redrive move %s --to NEWNAME` makes a queue without it, and "+
			"moves bindings and messages there", q.Name, ErrArgument, x, q.Name)
	}
	if fixed && !atLeastOnce {
		return nil // no policy is set
	}
	if x := q.Arguments["x-dead-letter-strategy"]; t.AtMostOnce && x == "at-least-once" {
		return fmt.Errorf("queue %q was declared with x-dead-letter-strategy %q, which no policy can change: here "+
			"what is not rejected would stop its dead-lettering; declare a new queue without it, or use the library "+
			"or the service", q.Name, x)
	}
	if !atLeastOnce {
		return nil
	}
	for key, needed := range map[string]string{"x-overflow": "reject-publish",
		"x-dead-letter-strategy": "at-least-once"} {
		if x, fixed := q.Arguments[key]; fixed && x != needed {
			// RabbitMQ would fall back to at-most-once without a word.
			return fmt.Errorf("the queue %q was declared with %s %q, which no policy can change, and at-least-once "+
				"dead-lettering needs %q: enroll it without, or declare a new queue", q.Name, key, x, needed)
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
	if since4, _ := delay.VersionAtLeast(rabbitMQ, 4, 0); p.Policy == nil || !since4 {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(p.Policy.Definition)) {
		if strings.HasPrefix(key, "ha-") || key == "queue-master-locator" {
			delete(p.Policy.Definition, key)
			p.LeftOut = append(p.LeftOut, key)
		}
	}
	if len(p.LeftOut) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("leaves out %s, which RabbitMQ %s no longer has",
			strings.Join(p.LeftOut, ", "), rabbitMQ))
	}
}

// Apply carries a plan out. First it lets RabbitMQ check the policy, on no queue. It makes the path back to
// the queue before the policy, so that no message dead-letters to Redrive that could not be retried.
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

// QueuePlan is one queue of many, and what enrolling it changes, or why it cannot be.
type QueuePlan struct {
	Queue string
	Plan  *Plan // nil with Err
	Err   error
}

// PlanMany plans for the queues named, and all that match a pattern, in order. Each gets a policy of
// its own. A single policy on the pattern would also apply to queues that are declared later, and
// it could not keep what is in force, which differs from queue to queue.
//
// A pattern does not match Redrive's own queues, streams, exclusive queues, or dead-letter queues that are not enrolled
// yet; left names these and says why.
func PlanMany(
	ctx context.Context, m *management.Client, names []string, pattern string, atLeastOnce bool,
) (all []QueuePlan, left []string, err error) {
	queues, err := m.Queues(ctx)
	if err != nil {
		return nil, nil, err
	}
	policies, err := m.Policies(ctx)
	if err != nil {
		return nil, nil, err
	}
	overview, err := m.Overview(ctx)
	if err != nil {
		return nil, nil, err
	}
	suspect := map[string]string{}
	if pattern != "" {
		if suspect, err = suspects(ctx, m, queues, policies); err != nil {
			return nil, nil, err
		}
	}
	known := map[string]management.Queue{}
	for _, q := range queues {
		known[q.Name] = q
		switch {
		case pattern == "" || !policy.MatchQueue(pattern, q.Name) || wire.OwnQueue(q.Name) || q.Type == "stream" ||
			q.Exclusive:
		case suspect[q.Name] != "" && q.Setting("dead-letter-exchange") != wire.ExchangeDeadLetters:
			left = append(left, fmt.Sprintf("queue %q is left out, as a dead-letter queue (%s): name it to enroll it",
				q.Name, suspect[q.Name]))
		default:
			names = append(names, q.Name)
		}
	}
	slices.SortFunc(names, hint.Natural)
	names = slices.Compact(names)
	all = make([]QueuePlan, len(names))
	for i, name := range names {
		q, ok := known[name]
		all[i].Queue = name
		if !ok {
			all[i].Err = fmt.Errorf("the queue %q does not exist: %w", name, management.ErrNotFound)
			continue
		}
		all[i].Plan, all[i].Err = plan(q, policies, serviceTarget(name), atLeastOnce)
		if all[i].Err == nil {
			all[i].Plan.leaveOut(overview.Version)
		}
	}
	return all, left, nil
}

// suspects says why queues look like dead-letter queues, by name.
func suspects(
	ctx context.Context, m *management.Client, queues []management.Queue, policies []management.Policy,
) (map[string]string, error) {
	bindings, err := m.Bindings(ctx)
	if err != nil {
		return nil, err
	}
	exchanges, err := m.Exchanges(ctx)
	if err != nil {
		return nil, err
	}
	states := make([]management.QueueState, len(queues))
	for i, q := range queues {
		states[i].Queue = q
	}
	routes, all := management.NewRoutes(states, bindings, exchanges, policies), map[string]string{}
	leads := routes.Leads()
	for name := range routes.Queues {
		// A queue with a TTL may be one to wait in, that leads back to a work queue.
		from := slices.DeleteFunc(leads[name], func(q string) bool { return routes.Queues[q].TTL() > 0 })
		all[name], _ = routes.Suspect(name, from)
	}
	return all, nil
}

// Successor plans the policy of a queue that replaces old under another name and type: with what is
// in force on old, dead letters to Redrive, and a priority above all others that match the name. rabbitMQ
// is its version.
func Successor(old management.Queue, policies []management.Policy, name, kind, rabbitMQ string) *Plan {
	p := &Plan{Queue: management.Queue{Name: name, Type: kind}, Target: serviceTarget(name),
		Before: management.PolicyNamed(policies, old.Policy)}
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

// Undo removes our policy, so that the one before applies again. RabbitMQ has kept that all the
// time, so any machine can undo. The retry exchange stays: messages that wait are still retried.
func Undo(ctx context.Context, m *management.Client, queue string) error {
	return undo(ctx, m, serviceTarget(queue).policy(queue), queue)
}

func undo(ctx context.Context, m *management.Client, ours management.Policy, queue string) error {
	is, err := m.Policy(ctx, ours.Name)
	if errors.Is(err, management.ErrNotFound) {
		return fmt.Errorf("queue %q: %w: there is no policy %q", queue, ErrNotEnrolled, ours.Name)
	}
	if err != nil {
		return err
	}
	if is.Pattern != ours.Pattern {
		return fmt.Errorf("queue %q: %w: the policy %q is on %s, so it is not Redrive's", queue, ErrNotEnrolled,
			is.Name, management.Text(is.Pattern))
	}
	err = m.DeletePolicy(ctx, ours.Name)
	if errors.Is(err, management.ErrNotFound) { // somebody else was faster
		return nil
	}
	return err
}

// UndoPlan lists the changes of removing a queue's policy.
type UndoPlan struct {
	Queue string
	Ours  management.Policy
	// After applies then; nil for none. Unknown: it is not known which one RabbitMQ chooses.
	After   *management.Policy
	Unknown bool
	// Gone: the queue no longer exists, only its policy.
	Gone bool
}

// PlanUndo finds the enrolled queues among those named, or that match a
// pattern. A queue that is named and not enrolled is an error of its own.
func PlanUndo(
	ctx context.Context, m *management.Client, names []string, pattern string,
) (found []UndoPlan, missing []error, err error) {
	policies, err := m.Policies(ctx)
	if err != nil {
		return nil, nil, err
	}
	queues, err := m.Queues(ctx)
	if err != nil {
		return nil, nil, err
	}
	add := func(name string) bool {
		ours := serviceTarget(name).policy(name)
		is := management.PolicyNamed(policies, ours.Name)
		if is == nil || is.Pattern != ours.Pattern {
			return false
		}
		u := UndoPlan{Queue: name, Ours: *is}
		q := slices.IndexFunc(queues, func(q management.Queue) bool { return q.Name == name })
		if u.Gone = q < 0; !u.Gone {
			known := false
			u.After, known = policyWithout(queues[q], policies, ours.Name)
			u.Unknown = !known
		}
		found = append(found, u)
		return true
	}
	for _, name := range names {
		if !add(name) {
			missing = append(missing, fmt.Errorf("queue %q: %w: there is no policy %q", name, ErrNotEnrolled,
				serviceTarget(name).policy(name).Name))
		}
	}
	if pattern != "" {
		for _, p := range policies {
			if name, ok := strings.CutPrefix(p.Name, servicePrefix); ok && policy.MatchQueue(pattern, name) {
				add(name)
			}
		}
	}
	return found, missing, nil
}

// PlanDisallow finds those of the queues that have a retry exchange and do not dead-letter to Redrive: replays
// to them are allowed, or they were enrolled once.
func PlanDisallow(
	ctx context.Context, m *management.Client, names []string,
) (found []string, missing []error, err error) {
	queues, err := m.Queues(ctx)
	if err != nil {
		return nil, nil, err
	}
	exchanges, err := m.Exchanges(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		q := slices.IndexFunc(queues, func(q management.Queue) bool { return q.Name == name })
		exchange := wire.RetryExchange(name)
		switch {
		case !slices.ContainsFunc(exchanges, func(e management.Exchange) bool { return e.Name == exchange }):
			missing = append(missing, fmt.Errorf("queue %q: %w: there is no exchange %q",
				name, ErrNotEnrolled, exchange))
		case q >= 0 && queues[q].Setting("dead-letter-exchange") == wire.ExchangeDeadLetters:
			missing = append(missing, fmt.Errorf("queue %q: it is enrolled, so its retry exchange would be "+
				"declared again",
				name))
		default:
			found = append(found, name)
		}
	}
	return found, missing, nil
}

// Disallow removes the retry exchange of a queue.
func Disallow(ctx context.Context, m *management.Client, queue string) error {
	err := m.DeleteExchange(ctx, wire.RetryExchange(queue))
	if errors.Is(err, management.ErrNotFound) { // somebody else was faster
		return nil
	}
	return err
}

// Write shows a person what applies afterwards.
func (u *UndoPlan) Write(w io.Writer) {
	fmt.Fprintf(w, "queue %q: policy %q of priority %d goes; ", u.Queue, u.Ours.Name, u.Ours.Priority)
	switch {
	case u.Gone:
		fmt.Fprintln(w, "the queue itself is gone")
		return
	case u.Unknown:
		fmt.Fprintln(w, "RabbitMQ then chooses among the others that match")
		return
	case u.After == nil:
		fmt.Fprintln(w, "no other applies")
	default:
		fmt.Fprintf(w, "policy %q of priority %d applies again:\n", u.After.Name, u.After.Priority)
	}
	writeKeys(w, diffPolicies(&u.Ours, u.After), "")
}

// policyWithout is the policy that would be in force on a queue if the one named did not exist. It is
// known only where Go can compile all patterns, and no other of the highest priority matches.
func policyWithout(
	q management.Queue, policies []management.Policy, without string,
) (best *management.Policy, known bool) {
	known = true
	tied := false
	for i := range policies {
		p := &policies[i]
		switch is, ok := p.For(q.Name, q.Type); {
		case p.Name == without:
		case !ok:
			known = false
		case !is:
		case best == nil || p.Priority > best.Priority:
			best, tied = p, false
		case p.Priority == best.Priority:
			tied = true
		}
	}
	return best, known && !tied
}

// Key is one key of the policy in force, and what becomes of it.
type Key struct {
	Name   string `json:"key"`
	Change string `json:"change"` // added, changed, removed, kept
	Was    any    `json:"was,omitempty"`
	Is     any    `json:"is,omitempty"`
	// Overruled is what is in force instead, by the operator policy.
	Overruled any `json:"overruled,omitempty"`
}

// Keys returns what a plan does to each key, in order.
func (p *Plan) Keys() []Key {
	if p.Policy == nil {
		return nil
	}
	keys := diffPolicies(p.Before, p.Policy)
	for i, k := range keys {
		if now, ok := p.Queue.Effective[k.Name]; ok && k.Change == "kept" &&
			management.Text(now) != management.Text(k.Was) {
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
		add("messages expire here (after %s ms): those come to Redrive too, which parks them unless a policy's "+
			"reasons name expired", management.Text(ttl))
	}
}

// Write shows plans to a person: what applies now, each key that changes, and each note once. will is that, or would.
func Write(w io.Writer, will string, plans ...*Plan) {
	var notes []string
	of := map[string][]string{} // queues, by note
	first := map[string]string{}
	var blocks []string
	same := map[string][]string{} // queues, by their plan without names
	for _, p := range plans {
		var block strings.Builder
		p.write(&block, will)
		key := strings.NewReplacer(regexp.QuoteMeta(p.Queue.Name), "", p.Queue.Name, "").Replace(block.String())
		if same[key] = append(same[key], p.Queue.Name); len(same[key]) == 1 {
			blocks = append(blocks, key)
			first[key] = block.String()
		}
		for _, n := range p.Notes {
			if of[n] == nil {
				notes = append(notes, n)
			}
			of[n] = append(of[n], p.Queue.Name)
		}
	}
	for i, key := range blocks {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprint(w, first[key])
		if others := same[key][1:]; len(others) > 0 {
			fmt.Fprintf(w, "the same for %d more: %s\n", len(others), strings.Join(others, ", "))
		}
	}
	for i, n := range notes {
		if len(plans) > 1 {
			if i == 0 {
				fmt.Fprintln(w)
			}
			n += fmt.Sprintf(" (%s)", strings.Join(of[n], ", "))
		}
		fmt.Fprintf(w, "note: %s\n", n)
	}
}

func (p *Plan) write(w io.Writer, will string) {
	if p.Policy == nil {
		fmt.Fprintf(w, "queue %q dead-letters to %q already, no policy to set; %s %s\n", p.Queue.Name,
			p.Target.Exchange, will, p.Target.Makes)
		return
	}
	if p.Before == nil {
		fmt.Fprintf(w, "queue %q (%s), no policy applies\n", p.Queue.Name, p.Queue.Type)
	} else {
		fmt.Fprintf(w, "queue %q (%s), policy %q of priority %d applies\n", p.Queue.Name, p.Queue.Type, p.Before.Name,
			p.Before.Priority)
	}
	fmt.Fprintf(w, "%s set policy %q, priority %d, on %s:\n", will, p.Policy.Name, p.Policy.Priority,
		management.Text(p.Policy.Pattern))
	writeKeys(w, p.Keys(), p.Queue.OperatorPolicy)
	fmt.Fprintln(w, will, p.Target.Makes)
}

func writeKeys(w io.Writer, keys []Key, operator string) {
	for _, k := range keys {
		switch {
		case k.Overruled != nil:
			fmt.Fprintf(w, "    %s: %s (the operator policy %q makes it %s)\n", k.Name, management.Text(k.Is), operator,
				management.Text(k.Overruled))
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

// FixedDelay is the recipe "reject → TTL queue → back", by RabbitMQ alone.
//
// Its delay queue is not one of the library's. RabbitMQ does not route a message back to its work
// queue that left it by anything but a reject: that is a cycle. A queue that dead-letters
// at-least-once would keep such a message and try for ever, and 32 of them stop the queue. So this
// one is at-most-once, and drops them.
type FixedDelay struct {
	queue, name string // name is that of the delay queue and its exchange
	delay       time.Duration
	kind        delay.QueueType
}

// NewFixedDelay refuses a delay that RabbitMQ does not support. An empty name is one made of the delay.
func NewFixedDelay(queue, name string, wait time.Duration, kind delay.QueueType) (*FixedDelay, error) {
	levels, err := delay.NewFixed(kind, wait)
	if err != nil {
		return nil, err
	}
	t, err := levels.Ticket(queue, wait)
	return &FixedDelay{queue, cmp.Or(name, t.Exchange+".alone"), wait, kind}, err
}

// Topology is all but the policy. A dead letter's routing key is the work queue's name, by which it
// goes back there; if that queue no longer exists it is parked.
func (a *FixedDelay) Topology() delay.Topology {
	args := amqp.Table{"x-queue-type": string(a.kind), "x-message-ttl": a.delay.Milliseconds(),
		"x-dead-letter-exchange": wire.ExchangeDue}
	if a.kind == delay.Quorum {
		args["x-delivery-limit"] = delay.NoLimit
	}
	if !strings.HasPrefix(a.name, wire.DelayPrefix) { // of this work queue alone, as in Topology.Named
		args["x-dead-letter-routing-key"] = a.queue
	}
	return delay.Due(a.queue).With(delay.Topology{
		Exchanges: []delay.Exchange{delay.Own(a.name, amqp.ExchangeFanout)},
		Queues:    []delay.Queue{{Name: a.name, Args: args}},
		Bindings:  []delay.Binding{{From: a.name, ToQueue: a.name}},
	})
}

func (a *FixedDelay) target() Target {
	return Target{Exchange: a.name, RoutingKey: a.queue, PolicyPrefix: management.FixedDelayPrefix, AtMostOnce: true,
		Makes: fmt.Sprintf("make exchange and queue %q, where a rejected message waits %s, and the way back to "+
			"its queue", a.name, policy.FormatDuration(a.delay)),
		topology: a.Topology()}
}

// Policy dead-letters the work queue to it, for where no other policy applies; Plan merges them.
func (a *FixedDelay) Policy() management.Policy { return a.target().policy(a.queue) }

// Plan returns what it changes.
func (a *FixedDelay) Plan(ctx context.Context, m *management.Client) (*Plan, error) {
	q, policies, err := ReadQueue(ctx, m, a.queue)
	if err != nil {
		return nil, err
	}
	overview, err := m.Overview(ctx)
	if err != nil {
		return nil, err
	}
	p, err := plan(q, policies, a.target(), false)
	if err == nil {
		p.leaveOut(overview.Version)
	}
	return p, err
}

// UndoFixedDelay removes its policy. Messages that wait are still retried, so all else stays.
func UndoFixedDelay(ctx context.Context, m *management.Client, queue string) error {
	return undo(ctx, m, Target{PolicyPrefix: management.FixedDelayPrefix}.policy(queue), queue)
}

// Warnings returns what a person should know before using it.
func (a *FixedDelay) Warnings() []string {
	w := []string{
		"only rejected messages are retried: RabbitMQ takes what expired, overflowed its queue or passed its " +
			"delivery limit for a cycle, and drops it",
		"there is no limit of attempts: a message that always fails goes round for ever; the library and the service " +
			"park it in the end",
		"it is at-most-once: a message is lost that comes due while its work queue cannot take it (a quorum queue " +
			"cannot just after RabbitMQ has started), or is rejected while the delay queue cannot",
	}
	if a.kind == delay.Classic {
		w = append(w, "the classic delay queue is on one node: what waits there is lost with its disk")
	}
	return append(w, fmt.Sprintf("messages are retried with the routing key %q; the first one is in their "+
		"header x-death", a.queue))
}
