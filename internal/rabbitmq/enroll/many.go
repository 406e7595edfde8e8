package enroll

import (
	"context"
	"fmt"
	"slices"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

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
// A pattern never means Redrive's own queues, streams and exclusive queues.
func PlanMany(ctx context.Context, m *management.Client, names []string, pattern string, atLeastOnce bool) ([]QueuePlan, error) {
	queues, err := m.Queues(ctx)
	if err != nil {
		return nil, err
	}
	policies, err := m.Policies(ctx)
	if err != nil {
		return nil, err
	}
	overview, err := m.Overview(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]management.Queue{}
	for _, q := range queues {
		known[q.Name] = q
		if pattern != "" && policy.MatchQueue(pattern, q.Name) && !wire.OwnQueue(q.Name) && q.Type != "stream" && !q.Exclusive {
			names = append(names, q.Name)
		}
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	all := make([]QueuePlan, len(names))
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
	return all, nil
}
