package retry

import (
	"context"
	"sync"
	"time"
)

const (
	// maxLookups is how many lookups are under way at once. A missing exchange costs a
	// channel: one after the other took 15 ms each on 3.10.8.
	maxLookups = 16
	// minLookupWait is how long after the answer "missing" the next lookup of the same queue
	// is; it doubles with each such answer, up to maxLookupWait.
	minLookupWait, maxLookupWait = 2 * time.Second, time.Minute
	// maxAnswers bounds the answers that are remembered, and maxPending the lookups that wait:
	// some seconds' worth, so that a real queue does not wait long behind invented names.
	maxAnswers, maxPending = 10_000, 1000
)

// exchangeLookup finds out which queues have a retry exchange. It looks them up in RabbitMQ on
// goroutines of its own: a client that reports failures may invent names, and each costs a
// lookup, for which neither intake nor scheduler may wait.
type exchangeLookup struct {
	lookUp   func(ctx context.Context, queue string) (bool, error)
	answered func() // called after each lookup

	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	answers map[string]*lookupAnswer
	pending []string
	workers int // goroutines that look up
	running sync.WaitGroup
}

type lookupAnswer struct {
	exists  bool
	asOf    time.Time // when the lookup began; zero: there is no answer
	err     error     // of the last lookup
	tries   int       // lookups that found no exchange, or failed
	next    time.Time // no lookup before
	pending bool
}

func newExchangeLookup(lookUp func(ctx context.Context, queue string) (bool, error), answered func()) *exchangeLookup {
	l := &exchangeLookup{lookUp: lookUp, answered: answered, answers: map[string]*lookupAnswer{}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// close cancels the lookups under way, and waits for them.
func (l *exchangeLookup) close() {
	l.mu.Lock()
	l.stop()
	l.mu.Unlock()
	l.running.Wait()
}

// exists answers from memory whether a queue has a retry exchange, and as of when. Where the
// answer is no and older than since, another lookup begins. The error is ErrLookupPending where
// there is no answer yet, or why there is none. Where too many lookups wait already, this one
// is not added: the caller calls again.
func (l *exchangeLookup) exists(queue string, since time.Time) (yes bool, asOf time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, full := l.answers[queue], len(l.pending) >= maxPending
	if a == nil {
		if full {
			return false, time.Time{}, ErrLookupPending
		}
		l.forgetAnswers()
		a = &lookupAnswer{}
		l.answers[queue] = a
	}
	now := time.Now()
	if !a.exists && (a.asOf.IsZero() || a.asOf.Before(since)) && !a.pending && !full && !now.Before(a.next) && l.ctx.Err() == nil {
		a.pending = true
		l.pending = append(l.pending, queue)
		if l.workers < maxLookups {
			l.workers++
			l.running.Go(l.run)
		}
	}
	switch {
	case a.err != nil:
		return false, a.asOf, a.err
	case a.asOf.IsZero():
		return false, a.asOf, ErrLookupPending
	}
	return a.exists, a.asOf, nil
}

// cached is exists without a lookup.
func (l *exchangeLookup) cached(queue string, since time.Time) (yes, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.answers[queue]
	if a == nil || a.err != nil || !a.exists && !a.asOf.After(since) {
		return false, false
	}
	return a.exists, true
}

// forgetAnswers forgets all answers when there are too many, except pending ones. The caller holds mu.
func (l *exchangeLookup) forgetAnswers() {
	if len(l.answers) < maxAnswers {
		return
	}
	for queue, a := range l.answers {
		if !a.pending {
			delete(l.answers, queue)
		}
	}
}

func (l *exchangeLookup) forget(queue string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.answers[queue]; a != nil && !a.pending {
		delete(l.answers, queue)
	}
}

// run looks up until nothing is pending.
func (l *exchangeLookup) run() {
	for {
		l.mu.Lock()
		if len(l.pending) == 0 || l.ctx.Err() != nil {
			l.workers--
			l.mu.Unlock()
			return
		}
		queue := l.pending[0]
		l.pending = l.pending[1:]
		l.mu.Unlock()

		began := time.Now()
		yes, err := l.lookUp(l.ctx, queue)
		l.mu.Lock()
		a := l.answers[queue]
		a.pending, a.err = false, err
		if err == nil {
			a.exists, a.asOf = yes, began
		}
		if a.exists {
			a.tries = 0
		} else {
			a.next = time.Now().Add(min(minLookupWait<<min(a.tries, 10), maxLookupWait))
			a.tries++
		}
		l.mu.Unlock()
		l.answered()
	}
}
