package console

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/flow"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/wait"
	"github.com/redrive-mq/redrive/policy"
)

// mostWaits is how many of a policy's waits are shown; those after are like the
// last, or a list nobody reads.
const mostWaits = 100

// Policies are those in force, in the order in which they are tried. A caller who is
// limited to queues sees those that apply to them, without other queues' names.
func (c *Console) Policies(ctx context.Context, by auth.Caller) ([]PolicyInForce, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	var mine []Queue
	if by.Queues != nil {
		var err error
		if mine, err = c.allQueues(ctx, by); err != nil {
			return nil, err
		}
	}
	all := []PolicyInForce{}
	set := c.policies()
	for i := range set {
		p := &set[i]
		f := c.inForce(p)
		if by.Queues != nil {
			f.Queues = slices.DeleteFunc(slices.Clone(p.Queues), func(pattern string) bool {
				return !slices.ContainsFunc(mine, func(q Queue) bool { return policy.MatchQueue(pattern, q.Name) })
			})
			if len(f.Queues) == 0 {
				continue
			}
		}
		all = append(all, f)
	}
	return all, nil
}

func (c *Console) policies() policy.Set {
	if c.Config.Policies == nil {
		return nil
	}
	return c.Config.Policies()
}

func (c *Console) inForce(p *policy.Policy) PolicyInForce {
	way := c.way(p.Name)
	f := PolicyInForce{Name: p.Name, Queues: p.Queues, Attempts: p.Attempts, Backoff: p.Backoff.String(), Jitter: p.Jitter.String(), Reasons: p.Reasons,
		Exhausted: p.Exhausted.Action.String(), Wait: wayName(way), Waits: []Wait{}}
	if c.Limits != nil {
		f.Returns = c.Limits(p.Name)
	}
	if len(f.Reasons) == 0 {
		f.Reasons = policy.DefaultReasons
	}
	if p.Exhausted.Action == policy.Forward {
		f.Exhausted += " to " + p.Exhausted.Destination.String()
	}
	for n := 1; n < p.Attempts && n <= mostWaits; n++ {
		least, most := waits(p, way, n)
		f.Waits = append(f.Waits, Wait{Attempt: n, Least: policy.FormatDuration(least), Most: policy.FormatDuration(most)})
	}
	return f
}

// waits are the shortest and the longest wait after a failure, as it comes out where
// messages wait.
func waits(p *policy.Policy, way wait.Way, failure int) (least, most time.Duration) {
	d := p.Backoff.Delay(failure)
	least, most = p.Jitter.Shortest(d), p.Jitter.Longest(d)
	if way == nil {
		return least, most
	}
	for _, d := range []*time.Duration{&least, &most} {
		if t, err := way.Hold("", *d); err == nil {
			*d = t.Delay
		}
	}
	return least, most
}

func (c *Console) way(policy string) wait.Way {
	if c.Way == nil {
		return nil
	}
	return c.Way(policy)
}

func wayName(way wait.Way) string {
	if way == nil {
		return flow.Disk
	}
	return way.Limits().Name
}

// Groups are the failures that are the same trouble, those with the most parked and
// waiting first. The query is about what they share: queue, reason, state, group,
// and error, type and note in their own words; nothing else.
func (c *Console) Groups(ctx context.Context, by auth.Caller, text string) ([]Group, error) {
	q, err := c.parse(by, text)
	if err != nil {
		return nil, err
	}
	found, err := c.groupsSeen(ctx, by)
	if err != nil {
		return nil, err
	}
	if err := q.OnlyGroups(); err != nil {
		return nil, err
	}
	all := []Group{}
	for i := range found {
		if g := &found[i]; q.MatchGroup(g) {
			all = append(all, shownGroup(g))
		}
	}
	slices.SortStableFunc(all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Parked+b.Waiting, a.Parked+a.Waiting), b.Last.Compare(a.Last), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

func shownGroup(g *store.GroupCount) Group {
	return Group{ID: g.ID.String(), Queue: g.Queue, Reason: g.Reason, Error: g.Pattern, Type: g.Type, Waiting: g.Waiting, Parked: g.Parked,
		Discarded: g.Discarded, First: g.First, Last: g.Last, Hours: g.Hours[:], Note: g.Note}
}
