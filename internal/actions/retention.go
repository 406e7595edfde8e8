package actions

import (
	"context"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// byRetention is who discards what a policy's retention ends, in audit log, events and metrics.
var byRetention = auth.Caller{Name: "retention", How: "policy", Interface: "service"}

// mostRetained is how many messages are discarded in one step of the store, each with its two
// lines of the audit log.
const mostRetained = store.ChangeMost

// DiscardExpired discards the parked messages whose policy keeps them no longer at now. As those
// that a person discards they can be restored for a while, and are counted as discarded.
func (a *Actions) DiscardExpired(ctx context.Context, now time.Time) error {
	policies := a.Inspect.Config.Policies
	if policies == nil {
		return nil
	}
	counts, err := a.Store.Counts(ctx)
	if err != nil {
		return err
	}
	set := policies()
	for _, c := range counts {
		p, ok := set.Match(c.Queue)
		if !ok || p.Retention == 0 || c.Parked == 0 {
			continue
		}
		for more := true; more; {
			if more, err = a.discardExpired(ctx, c.Queue, p, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// discardExpired discards those that were parked first, and tells whether there may be more.
func (a *Actions) discardExpired(ctx context.Context, queue string, p *policy.Policy, now time.Time) (more bool, err error) {
	var refs []MessageRef
	until := now.Add(-p.Retention)
	err = a.Inspect.Store.Scan(ctx, store.Range{State: store.Parked, Queues: []string{queue}, To: until}, func(l store.Listed) (bool, error) {
		if l.Record.Unreadable == nil {
			refs = append(refs, MessageRef{ID: l.Record.ID.String(), Queue: queue, Key: l.Key, State: store.Parked})
		}
		return len(refs) < mostRetained, nil
	})
	if err != nil || len(refs) == 0 {
		return false, err
	}
	more = len(refs) == mostRetained
	why := fmt.Sprintf("policy %q keeps parked messages for %s", p.Name, policy.FormatDuration(p.Retention))
	end, err := a.Begin(byRetention, string(Discard), fmt.Sprintf("queue:%s parked:<%s", queue, until.UTC().Format(time.RFC3339)), int64(len(refs)), why)
	if err != nil {
		return false, err
	}
	c := RecordChange{Verb: Discard, By: byRetention.Name, Changed: func(r *store.Record) { r.Notes = append(r.Notes, inspect.ByRetention+": "+why) }}
	ctx = context.WithoutCancel(ctx)
	var all []Outcome
	for len(all) < len(refs) && err == nil {
		var some []Outcome
		some, err = a.Apply(ctx, c, refs[len(all):], nil)
		all = append(all, some...)
	}
	a.Announce(c, all)
	n := len(succeeded(all))
	end(err, int64(n))
	return more && n > 0, err
}
