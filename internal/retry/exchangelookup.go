package retry

import (
	"context"
	"sync"
	"time"
)

const (
	// maxQuestions is how many lookups are under way at once. A missing exchange costs a
	// channel: one after the other took 15 ms each on 3.10.8.
	maxQuestions = 16
	// minAskAgain is how long the answer "missing" is not asked for again; it doubles with each
	// such answer, up to maxAskAgain.
	minAskAgain, maxAskAgain = 2 * time.Second, time.Minute
	// maxAnswers bounds the answers that are remembered, and maxPending the lookups that wait:
	// some seconds' worth, so that a real queue is not long behind invented names.
	maxAnswers, maxPending = 10_000, 1000
)

// exchangeLookup finds out which queues have a retry exchange. It asks RabbitMQ on goroutines
// of its own: a client that reports failures may invent names, and each costs a lookup, for
// which neither intake nor scheduler may wait.
type exchangeLookup struct {
	ask      func(ctx context.Context, queue string) (bool, error)
	answered func() // what waits for an answer may go on; nil: nothing does

	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	answers map[string]*lookupAnswer
	pending []string
	asking  int
	running sync.WaitGroup
}

type lookupAnswer struct {
	there   bool
	at      time.Time // when RabbitMQ was asked; zero: there is no answer
	err     error     // of the last question
	tries   int       // that found it not there, or failed
	again   time.Time // the next question is not asked before
	pending bool
}

func newExchangeLookup(ask func(ctx context.Context, queue string) (bool, error)) *exchangeLookup {
	a := &exchangeLookup{ask: ask, answers: map[string]*lookupAnswer{}}
	a.ctx, a.stop = context.WithCancel(context.Background())
	return a
}

// close cancels the lookups under way, and waits for them.
func (l *exchangeLookup) close() {
	l.mu.Lock()
	l.stop()
	l.mu.Unlock()
	l.running.Wait()
}

// exists answers from memory whether a queue has a retry exchange, and as of when. Where the
// answer is older than since, RabbitMQ is asked again. The error is ErrLookupPending where
// there is no answer yet, or why there is none. Where too many lookups wait already, this one
// is not added: the caller calls again.
func (l *exchangeLookup) exists(queue string, since time.Time) (there bool, asOf time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	is, full := l.answers[queue], len(l.pending) >= maxPending
	if is == nil {
		if full {
			return false, time.Time{}, ErrLookupPending
		}
		l.makeRoom()
		is = &lookupAnswer{}
		l.answers[queue] = is
	}
	now := time.Now()
	if !is.there && (is.at.IsZero() || is.at.Before(since)) && !is.pending && !full && !now.Before(is.again) && l.ctx.Err() == nil {
		is.pending = true
		l.pending = append(l.pending, queue)
		if l.asking < maxQuestions {
			l.asking++
			l.running.Go(l.run)
		}
	}
	switch {
	case is.err != nil:
		return false, is.at, is.err
	case is.at.IsZero():
		return false, is.at, ErrLookupPending
	}
	return is.there, is.at, nil
}

// remembers is exists without a lookup.
func (l *exchangeLookup) remembers(queue string, since time.Time) (there, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	is := l.answers[queue]
	if is == nil || is.err != nil || !is.there && !is.at.After(since) {
		return false, false
	}
	return is.there, true
}

// makeRoom forgets answers when there are too many, except pending ones. The caller holds mu.
func (l *exchangeLookup) makeRoom() {
	if len(l.answers) < maxAnswers {
		return
	}
	for queue, is := range l.answers {
		if !is.pending {
			delete(l.answers, queue)
		}
	}
}

func (l *exchangeLookup) forget(queue string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if is := l.answers[queue]; is != nil && !is.pending {
		delete(l.answers, queue)
	}
}

// run looks up until nothing is pending.
func (l *exchangeLookup) run() {
	for {
		l.mu.Lock()
		if len(l.pending) == 0 || l.ctx.Err() != nil {
			l.asking--
			l.mu.Unlock()
			return
		}
		queue := l.pending[0]
		l.pending = l.pending[1:]
		l.mu.Unlock()

		began := time.Now()
		there, err := l.ask(l.ctx, queue)
		l.mu.Lock()
		is := l.answers[queue]
		is.pending, is.err = false, err
		if err == nil {
			is.there, is.at = there, began
		}
		if is.there {
			is.tries = 0
		} else {
			is.again = time.Now().Add(min(minAskAgain<<min(is.tries, 10), maxAskAgain))
			is.tries++
		}
		l.mu.Unlock()
		if l.answered != nil {
			l.answered()
		}
	}
}
