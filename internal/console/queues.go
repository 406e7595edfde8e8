package console

import (
	"context"
	"maps"
	"slices"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// Queues tells of each work queue that something is kept for or happened to.
func (c *Console) Queues(ctx context.Context, by auth.Caller) ([]Queue, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	all, err := c.allQueues(ctx, by)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	at := c.queues.ask(ctx, c.Broker, names)
	for i := range all {
		if q, ok := at[all[i].Name]; ok {
			all[i].Broker = &q
		}
	}
	return all, nil
}

// allQueues is Queues without RabbitMQ's word.
func (c *Console) allQueues(ctx context.Context, by auth.Caller) ([]Queue, error) {
	counts, err := c.Store.Counts(ctx)
	if err != nil {
		return nil, err
	}
	holds, err := c.holds(ctx)
	if err != nil {
		return nil, err
	}
	kept := map[string]store.QueueCount{}
	for _, n := range counts {
		kept[n.Queue] = n
	}
	more := slices.Collect(maps.Keys(holds)) // a hold shows though nothing is kept
	if c.Rates != nil {
		more = append(more, c.Rates.Queues()...)
	}
	for _, name := range more {
		if _, ok := kept[name]; !ok {
			kept[name] = store.QueueCount{Queue: name}
		}
	}
	forced, err := c.forced(ctx)
	if err != nil {
		return nil, err
	}
	policies := c.policies()
	all := []Queue{}
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		if by.Sees(name) {
			q := c.queue(kept[name], policies, holds)
			if f, ok := forced[name]; ok && q.Gate != nil {
				q.Gate.Forced = &f
			}
			all = append(all, q)
		}
	}
	return all, nil
}

func (c *Console) queue(n store.QueueCount, policies policy.Set, holds map[string]Hold) Queue {
	q := Queue{Name: n.Queue, Waiting: n.Waiting, Parked: n.Parked, Discarded: n.Discarded}
	if n.Waiting > 0 && !n.NextDue.IsZero() {
		q.NextDue = &n.NextDue
		if !n.NextFailed.IsZero() {
			q.Oldest = &n.NextFailed
		}
	}
	if c.Rates != nil {
		f := c.Rates.Minute(n.Queue, c.Now())
		q.Failed, q.Returned, q.ParkedIn = f.Failed, f.Returned, f.Parked
	}
	if p, ok := policies.Match(n.Queue); ok {
		q.Policy, q.Way = p.Name, wayName(c.way(p.Name))
	}
	if c.Returns != nil {
		q.Returns = c.Returns(n.Queue)
	}
	if h, ok := holds[n.Queue]; ok {
		q.Hold = &h
	}
	if c.Gate != nil {
		q.Gate = c.Gate(n.Queue)
	}
	return q
}
