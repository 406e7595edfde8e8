package console

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

const (
	// fresh is how long what RabbitMQ says of a queue is shown again, and brokerWait
	// how long a page waits for it: what it has not said by then is left out.
	fresh      = 5 * time.Second
	brokerWait = time.Second
	// asking is how many queues RabbitMQ is asked about at once.
	asking = 4
	// mostKnown bounds the answers that are remembered.
	mostKnown = 10_000
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
	policies := c.policies()
	all := []Queue{}
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		if by.Sees(name) {
			all = append(all, c.queue(kept[name], policies, holds))
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
	return q
}

// queueCache is what RabbitMQ said of queues a moment ago.
type queueCache struct {
	mu     sync.Mutex
	known  map[string]answer
	silent time.Time // when it did not answer
}

type answer struct {
	at AtBroker
	as time.Time
}

// ask tells what is known of the queues, at most fresh old. It takes no longer than
// brokerWait; what RabbitMQ has not said by then is left out.
func (q *queueCache) ask(ctx context.Context, b Broker, names []string) map[string]AtBroker {
	if b == nil {
		return nil
	}
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, brokerWait)
	defer cancel()
	next := make(chan string)
	var askers sync.WaitGroup
	var answers atomic.Int64
	for range asking {
		askers.Go(func() {
			for name := range next {
				switch at, err := b.Queue(ctx, name); {
				case err == nil:
					answers.Add(1)
					q.said(name, at)
				case answers.Load() == 0:
					cancel() // the others would wait for the same
				}
			}
		})
	}
	asked := false
	for _, name := range q.stale(names) {
		asked = true
		select {
		case next <- name:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	askers.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	if asked && answers.Load() == 0 && !errors.Is(whole.Err(), context.Canceled) {
		q.silent = time.Now() // or each page would wait again
	}
	all := map[string]AtBroker{}
	for _, name := range names {
		if a, ok := q.known[name]; ok && time.Since(a.as) <= 2*fresh {
			all[name] = a.at
		}
	}
	return all
}

// stale are the queues to ask about, those first whose answers are the oldest: of
// very many, not all are answered in one go.
func (q *queueCache) stale(names []string) (stale []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.silent) < fresh {
		return nil
	}
	for _, name := range names {
		if a, ok := q.known[name]; !ok || time.Since(a.as) > fresh {
			stale = append(stale, name)
		}
	}
	slices.SortStableFunc(stale, func(a, b string) int { return q.known[a].as.Compare(q.known[b].as) })
	return stale
}

func (q *queueCache) said(name string, at AtBroker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known == nil || len(q.known) >= mostKnown {
		q.known = map[string]answer{} // queues come and go
	}
	q.known[name] = answer{at, time.Now()}
}
