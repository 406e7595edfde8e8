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
	// refreshAfter is how old an answer may be before RabbitMQ is asked again about a queue that
	// is on somebody's page. A page that has an answer twice as old waits brokerWait for a new one,
	// and then shows what there is.
	refreshAfter = 5 * time.Second
	brokerWait   = time.Second
	// watchedFor is how long after a queue was shown its answer is kept fresh: somebody may still
	// look at it.
	watchedFor = 15 * time.Second
	// maxAskers is how many queues RabbitMQ is asked about at once.
	maxAskers = 4
	// mostKnown bounds the answers that are remembered.
	mostKnown = 10_000
)

// queueCache has RabbitMQ's latest answers about queues.
type queueCache struct {
	mu     sync.Mutex
	known  map[string]answer
	silent time.Time // when RabbitMQ last did not answer
}

type answer struct {
	at     AtBroker
	asOf   time.Time
	wanted time.Time // when somebody last looked
}

// keepFresh asks again about the queues that somebody looks at, so that only the first page with
// a queue waits for RabbitMQ.
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

// ask returns what is known of the queues. It takes no longer than brokerWait, and leaves out
// those for which RabbitMQ has not answered by then.
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

// stale returns the queues whose answers are older than this, the oldest first: of very many,
// RabbitMQ may answer only the first in time.
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
	at.ConsumerList = nil // too much of ten thousand queues
	q.known[name] = answer{at, time.Now(), q.known[name].wanted}
}

// brokerTimeout is how long an action waits for what RabbitMQ says of a queue.
const brokerTimeout = 5 * time.Second

var errNoManagement = errors.New("RabbitMQ's management API is not configured")

// LatelyAtBroker returns RabbitMQ's answers about queues, of at most three times refreshAfter ago,
// and waits for those that it lacks for at most brokerWait. Those without an answer are left out.
func (in *Inspector) LatelyAtBroker(ctx context.Context, queues []string) map[string]AtBroker {
	return in.queues.ask(ctx, in.Broker, queues)
}

// AtBroker asks RabbitMQ about a queue now.
func (in *Inspector) AtBroker(ctx context.Context, queue string) (AtBroker, error) {
	if in.Broker == nil {
		return AtBroker{}, errNoManagement
	}
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	return in.Broker.Queue(ctx, queue)
}
