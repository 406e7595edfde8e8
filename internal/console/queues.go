package console

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// MostQueues is how many queues one look shows: there may be a hundred thousand.
const MostQueues = 1000

// Queues tells of the work queues that something is kept for or happened to, ordered by
// name, limit of them from a page's end on; 0: MostQueues. next is "" at their end.
func (c *Console) Queues(ctx context.Context, by auth.Caller, after string, limit int) (page []Queue, next string, err error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, "", err
	}
	if page, err = c.allQueues(ctx, by); err != nil {
		return nil, "", err
	}
	if after != "" {
		name, err := base64.RawURLEncoding.DecodeString(after)
		if err != nil {
			return nil, "", fmt.Errorf("%w: after is %q, which no page ends with", ErrInvalid, after)
		}
		page = page[sort.Search(len(page), func(i int) bool { return "."+page[i].Name > string(name) }):]
	}
	if limit <= 0 || limit > MostQueues {
		limit = MostQueues
	}
	if len(page) > limit {
		page = page[:limit]
		next = base64.RawURLEncoding.EncodeToString([]byte("." + page[limit-1].Name)) // a name may be "", or any bytes
	}
	c.askBroker(ctx, page)
	return page, next, nil
}

// askBroker adds RabbitMQ's word.
func (c *Console) askBroker(ctx context.Context, all []Queue) {
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
}

// inOneLook are MostQueues at most: those that nothing returns to first, in their order.
func inOneLook(all []Queue) []Queue {
	if len(all) <= MostQueues {
		return all
	}
	shown := make([]Queue, 0, MostQueues)
	for _, stopped := range []bool{true, false} {
		for _, q := range all {
			if len(shown) < MostQueues && (q.Returns != "" || q.Hold != nil) == stopped {
				shown = append(shown, q)
			}
		}
	}
	slices.SortFunc(shown, func(a, b Queue) int { return cmp.Compare(a.Name, b.Name) })
	return shown
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
