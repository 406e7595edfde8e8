package inspect

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// refreshAfter is when RabbitMQ is asked again about a queue that somebody looks at, and
	// brokerWait how long a page waits for its answer, once the one it has is twice
	// as old: what RabbitMQ has not said by then is left out.
	refreshAfter = 5 * time.Second
	brokerWait   = time.Second
	// watchedFor is how long after somebody's look they are taken to look still.
	watchedFor = 15 * time.Second
	// maxAskers is how many queues RabbitMQ is asked about at once.
	maxAskers = 4
	// mostKnown bounds the answers that are remembered.
	mostKnown = 10_000
)

// queueCache is what RabbitMQ said of queues a moment ago.
type queueCache struct {
	mu     sync.Mutex
	known  map[string]answer
	silent time.Time // when it did not answer
}

type answer struct {
	at     AtBroker
	asOf   time.Time
	wanted time.Time // when somebody last looked
}

// keepFresh asks again about the queues that somebody looks at, so that a page waits
// for RabbitMQ only when it is the first to ask.
func (q *queueCache) keepFresh(ctx context.Context, b Broker) {
	each := time.NewTicker(refreshAfter / 2)
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-each.C:
			q.refresh(ctx, b, q.stale(q.wanted(), refreshAfter))
		}
	}
}

// wanted are the queues that somebody looked at lately.
func (q *queueCache) wanted() (names []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, a := range q.known {
		if time.Since(a.wanted) < watchedFor {
			names = append(names, name)
		}
	}
	return names
}

// ask tells what is known of the queues. It takes no longer than brokerWait; what
// RabbitMQ has not said by then is left out.
func (q *queueCache) ask(ctx context.Context, b Broker, names []string) map[string]AtBroker {
	if b == nil {
		return nil
	}
	q.refresh(ctx, b, q.stale(names, 2*refreshAfter))
	q.mu.Lock()
	defer q.mu.Unlock()
	all, now := map[string]AtBroker{}, time.Now()
	for _, name := range names {
		if a, ok := q.known[name]; ok && now.Sub(a.asOf) <= 3*refreshAfter {
			all[name] = a.at
			a.wanted = now
			q.known[name] = a
		}
	}
	return all
}

// refresh asks about queues, for no longer than brokerWait.
func (q *queueCache) refresh(ctx context.Context, b Broker, stale []string) {
	if len(stale) == 0 {
		return
	}
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, brokerWait)
	defer cancel()
	next := make(chan string)
	var askers sync.WaitGroup
	var answers atomic.Int64
	for range maxAskers {
		askers.Go(func() {
			for name := range next {
				switch at, err := b.Queue(ctx, name); {
				case err == nil:
					answers.Add(1)
					q.setAnswer(name, at)
				case answers.Load() == 0:
					cancel() // the others would wait for the same
				}
			}
		})
	}
	for _, name := range stale {
		select {
		case next <- name:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	askers.Wait()
	if answers.Load() == 0 && !errors.Is(whole.Err(), context.Canceled) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.silent = time.Now() // or each page would wait again
	}
}

// stale are the queues whose answers are older than that, the oldest first: of very
// many, not all are answered in one go.
func (q *queueCache) stale(names []string, than time.Duration) (stale []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.silent) < refreshAfter {
		return nil
	}
	for _, name := range names {
		if a, ok := q.known[name]; !ok || time.Since(a.asOf) > than {
			stale = append(stale, name)
		}
	}
	slices.SortStableFunc(stale, func(a, b string) int { return q.known[a].asOf.Compare(q.known[b].asOf) })
	return stale
}

func (q *queueCache) setAnswer(name string, at AtBroker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known == nil || len(q.known) >= mostKnown {
		q.known = map[string]answer{} // queues come and go
	}
	q.known[name] = answer{at, time.Now(), q.known[name].wanted}
}

// brokerTimeout is how long an action waits for what RabbitMQ says of a queue.
const brokerTimeout = 5 * time.Second

var errNoManagement = errors.New("RabbitMQ's management API is not configured")

// AtBroker asks RabbitMQ about a queue, for who acts on the answer: it is none of a moment
// ago, as Queues may show it.
func (in *Inspector) AtBroker(ctx context.Context, queue string) (AtBroker, error) {
	if in.Broker == nil {
		return AtBroker{}, errNoManagement
	}
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	return in.Broker.Queue(ctx, queue)
}
