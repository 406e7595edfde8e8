package inspect

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// MostQueues is how many queues a page of a list has at most, and maxOnOverview how many the
// overview shows: there may be a hundred thousand.
const (
	MostQueues    = 1000
	maxOnOverview = 100
)

// Queues lists the work queues that have messages, are paused, or had messages since the service
// started, ordered by name: limit of them after the end of a page; 0: MostQueues. next is "" at
// the end of the list.
func (in *Inspector) Queues(ctx context.Context, by auth.Caller, after string, limit int) (page []Queue, next string, err error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, "", err
	}
	s, err := in.visibleQueues(ctx, by)
	if err != nil {
		return nil, "", err
	}
	some, next, err := pageOf(s.counts, func(n store.QueueCount) string { return n.Queue }, after, limit)
	if err != nil {
		return nil, "", err
	}
	page = s.shown(some)
	in.askBroker(ctx, page)
	return page, next, nil
}

// askBroker adds RabbitMQ's state of each queue.
func (in *Inspector) askBroker(ctx context.Context, all []Queue) {
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	at := in.LatelyAtBroker(ctx, names)
	for i := range all {
		if q, ok := at[all[i].Name]; ok {
			all[i].Broker = &q
		}
	}
}

// visibleQueues are the queues that a caller may see, and what is stored about them.
type visibleQueues struct {
	*Inspector
	counts []store.QueueCount // ordered by name
	pauses map[string]QueuePause
	forced map[string]Forced
}

func (in *Inspector) visibleQueues(ctx context.Context, by auth.Caller) (s visibleQueues, err error) {
	s.Inspector = in
	if s.pauses, err = Pauses(ctx, in.Store); err != nil {
		return s, err
	}
	if s.forced, err = ForcedBreakers(ctx, in.Store); err != nil {
		return s, err
	}
	s.counts, err = in.queuesOf(ctx, by, s.pauses)
	return s, err
}

// shown returns queues as people see them, without RabbitMQ's state of them.
func (s *visibleQueues) shown(some []store.QueueCount) []Queue {
	all, policies := make([]Queue, 0, len(some)), s.policies()
	for _, n := range some {
		q := s.queue(n, policies, s.pauses)
		if f, ok := s.forced[n.Queue]; ok && q.Throttle != nil {
			q.Throttle.Forced = &f
		}
		all = append(all, q)
	}
	return all
}

// topQueues returns maxOnOverview queues at most, ordered by name: those with restricted retries before
// the others, then those with the most failures, and with the most messages.
func (s *visibleQueues) topQueues() []store.QueueCount {
	if len(s.counts) <= maxOnOverview {
		return s.counts
	}
	type ranked struct {
		store.QueueCount
		restricted int
		failed     int64
	}
	found := firstInOrder(maxOnOverview, func(yield func(ranked) bool) {
		for _, n := range s.counts {
			if r := (ranked{n, s.restricted(n.Queue), s.failedLately(n.Queue)}); !yield(r) {
				return
			}
		}
	}, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.restricted, a.restricted), cmp.Compare(b.failed, a.failed), cmp.Compare(b.Waiting+b.Parked, a.Waiting+a.Parked), cmp.Compare(a.Queue, b.Queue))
	})
	some := make([]store.QueueCount, len(found))
	for i := range found {
		some[i] = found[i].QueueCount
	}
	slices.SortFunc(some, func(a, b store.QueueCount) int { return cmp.Compare(a.Queue, b.Queue) })
	return some
}

// restricted is 1 for a queue that is paused, unreachable or restricted by its breaker or for lack of
// consumers.
func (s *visibleQueues) restricted(queue string) int {
	_, paused := s.pauses[queue]
	if paused || s.Unreachable != nil && s.Unreachable(queue) != "" || s.Throttle != nil && s.Throttle(queue).KeepsBack() {
		return 1
	}
	return 0
}

func (s *visibleQueues) failedLately(queue string) int64 {
	if s.Activity == nil {
		return 0
	}
	return s.Activity.Minute(queue, s.Now()).Failed
}

func (in *Inspector) queue(n store.QueueCount, policies policy.Set, pauses map[string]QueuePause) Queue {
	q := Queue{Name: n.Queue, Waiting: n.Waiting, Parked: n.Parked, Discarded: n.Discarded}
	q.NextDue, q.Oldest = dueFirst(n)
	if in.Activity != nil {
		f := in.Activity.Minute(n.Queue, in.Now())
		q.Failed, q.Retried, q.ParkedIn = f.Failed, f.Retried, f.Parked
	}
	if p, ok := policies.Match(n.Queue); ok {
		q.Policy, q.Way = p.Name, in.wayName(in.way(p.Name))
	}
	if in.Unreachable != nil {
		q.Unreachable = in.Unreachable(n.Queue)
	}
	if p, ok := pauses[n.Queue]; ok {
		q.Pause = &p
	}
	if in.Throttle != nil {
		q.Throttle = in.Throttle(n.Queue)
		if q.Throttle != nil && (q.NextDue == nil || q.NextDue.After(in.Now())) {
			q.Throttle.LimitedBy = "" // nothing waits for the limit
		}
	}
	return q
}

// dueFirst is when the message of a queue that is due first is due, and when it failed.
func dueFirst(n store.QueueCount) (due, failed *time.Time) {
	if n.Waiting > 0 && !n.NextDue.IsZero() {
		due = &n.NextDue
		if !n.NextFailed.IsZero() {
			failed = &n.NextFailed
		}
	}
	return due, failed
}
