package enroll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
)

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
		return fmt.Errorf("queue %q: %w: the policy %q is on %s, so it is not Redrive's", queue, ErrNotEnrolled, is.Name, management.Text(is.Pattern))
	}
	err = m.DeletePolicy(ctx, ours.Name)
	if errors.Is(err, management.ErrNotFound) { // somebody else was faster
		return nil
	}
	return err
}

// UndoPlan is what removing the policy of a queue changes.
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
func PlanUndo(ctx context.Context, m *management.Client, names []string, pattern string) (found []UndoPlan, missing []error, err error) {
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
			missing = append(missing, fmt.Errorf("queue %q: %w: there is no policy %q", name, ErrNotEnrolled, serviceTarget(name).policy(name).Name))
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
func policyWithout(q management.Queue, policies []management.Policy, without string) (best *management.Policy, known bool) {
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
