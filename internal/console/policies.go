package console

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// mostWaits is how many of a policy's waits are shown; those after are like the
// last, or the list is too long to read.
const mostWaits = 100

// Policies are those in force, in the order in which they are tried. A caller who is
// limited to queues sees those that apply to them, without other queues' names.
func (c *Console) Policies(ctx context.Context, by auth.Caller) ([]PolicyInForce, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	var mine sight
	if by.Queues != nil {
		var err error
		if mine, err = c.sight(ctx, by); err != nil {
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
				return !slices.ContainsFunc(mine.counts, func(n store.QueueCount) bool { return policy.MatchQueue(pattern, n.Queue) })
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
		f.Throttle = c.Limits(p.Name)
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
func waits(p *policy.Policy, way delay.Way, failure int) (least, most time.Duration) {
	d := p.Backoff.Delay(failure)
	least, most = p.Jitter.Shortest(d), p.Jitter.Longest(d)
	if way == nil {
		return least, most
	}
	for _, d := range []*time.Duration{&least, &most} {
		if t, err := way.Ticket("", *d); err == nil {
			*d = t.Delay
		}
	}
	return least, most
}

func (c *Console) way(policy string) delay.Way {
	if c.Way == nil {
		return nil
	}
	return c.Way(policy)
}

func wayName(way delay.Way) string {
	if way == nil {
		return retry.Disk
	}
	return way.Limits().Name
}

// Groups are the error groups, those with the most parked and
// waiting first. The query is about what they share: queue, reason, state, group,
// and error, type and note in their own words; nothing else. A page has limit of them; 0:
// MostQueues. One whose messages become fewer meanwhile may be on two pages.
func (c *Console) Groups(ctx context.Context, by auth.Caller, text, after string, limit int) (page GroupPage, err error) {
	page.Groups = []Group{}
	q, err := c.parse(by, text)
	if err != nil {
		return page, err
	}
	last, err := readGroupPlace(after)
	if err != nil {
		return page, err
	}
	found, err := c.groupsSeen(ctx, by)
	if err != nil {
		return page, err
	}
	if err := q.OnlyGroups(); err != nil {
		return page, err
	}
	if limit <= 0 || limit > MostQueues {
		limit = MostQueues
	}
	some := first(limit+1, func(yield func(*store.GroupCount) bool) {
		for i := range found {
			g := &found[i]
			if !q.MatchGroup(g) {
				continue
			}
			page.Total++
			if (last == nil || placeOf(g).compare(*last) > 0) && !yield(g) {
				return
			}
		}
	}, func(a, b *store.GroupCount) int { return placeOf(a).compare(placeOf(b)) })
	if len(some) > limit {
		some = some[:limit]
		page.After = placeOf(some[limit-1]).String()
	}
	for _, g := range some {
		page.Groups = append(page.Groups, shownGroup(g))
	}
	return page, nil
}

// groupPlace is a group's place in their order: those with the most messages first, of
// these the ones that failed last.
type groupPlace struct {
	kept, last int64
	id         string
}

func placeOf(g *store.GroupCount) groupPlace {
	return groupPlace{g.Parked + g.Waiting, g.Last.UnixMicro(), g.ID.String()}
}

func (p groupPlace) compare(o groupPlace) int {
	return cmp.Or(cmp.Compare(o.kept, p.kept), cmp.Compare(o.last, p.last), cmp.Compare(p.id, o.id))
}

func (p groupPlace) String() string { return fmt.Sprintf("%d.%d.%s", p.kept, p.last, p.id) }

func readGroupPlace(after string) (*groupPlace, error) {
	if after == "" {
		return nil, nil
	}
	parts := strings.Split(after, ".")
	if len(parts) == 3 {
		kept, err := strconv.ParseInt(parts[0], 10, 64)
		last, err2 := strconv.ParseInt(parts[1], 10, 64)
		if err == nil && err2 == nil {
			return &groupPlace{kept, last, parts[2]}, nil
		}
	}
	return nil, fmt.Errorf("%w: after is %.100q, which no page ends with", ErrInvalid, after)
}

func shownGroup(g *store.GroupCount) Group {
	return Group{ID: g.ID.String(), Queue: g.Queue, Reason: g.Reason, Error: g.Pattern, Type: g.Type, Waiting: g.Waiting, Parked: g.Parked,
		Discarded: g.Discarded, First: g.First, Last: g.Last, Hours: g.Hours[:], Note: g.Note}
}
