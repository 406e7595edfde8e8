package retry

import (
	"context"
	"sync"
	"time"
)

const (
	// mostAsking is how many questions are on their way to RabbitMQ at once. A name that is
	// not there costs a channel: one after the other took 15 ms each on 3.10.8.
	mostAsking = 16
	// askAgain is how long an answer "not there" is the newest at least; it doubles with
	// each such answer, up to askRarely.
	askAgain, askRarely = 2 * time.Second, time.Minute
	// mostAnswers bounds what is remembered, and mostPending how many questions wait to be
	// asked: some seconds' worth, so that a queue's own is not long behind made up names.
	mostAnswers, mostPending = 10_000, 1000
)

// asker finds out which queues have a retry exchange, off the goroutines that retry and
// take in: a client that reports failures may make up names, and each costs a question.
type asker struct {
	ask      func(ctx context.Context, queue string) (bool, error)
	answered func() // what waits for an answer may go on; nil: nothing does

	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	answers map[string]*answer
	pending []string
	asking  int
	running sync.WaitGroup
}

type answer struct {
	there   bool
	at      time.Time // when RabbitMQ was asked; zero: there is no answer
	err     error     // of the last question
	tries   int       // that found it not there, or failed
	again   time.Time // the next question is not asked before
	pending bool
}

func newAsker(ask func(ctx context.Context, queue string) (bool, error)) *asker {
	a := &asker{ask: ask, answers: map[string]*answer{}}
	a.ctx, a.stop = context.WithCancel(context.Background())
	return a
}

// close ends the questions under way, and waits for them.
func (a *asker) close() {
	a.mu.Lock()
	a.stop()
	a.mu.Unlock()
	a.running.Wait()
}

// exists answers from memory whether a queue has a retry exchange, as of when. Where
// that is not known since then, RabbitMQ is asked again. The error is ErrAsked where
// there is no answer yet, or why there is none. Where too many questions wait already this
// one is not registered: whoever wants the answer calls again.
func (a *asker) exists(queue string, since time.Time) (there bool, asOf time.Time, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	is, full := a.answers[queue], len(a.pending) >= mostPending
	if is == nil {
		if full {
			return false, time.Time{}, ErrAsked
		}
		a.makeRoom()
		is = &answer{}
		a.answers[queue] = is
	}
	now := time.Now()
	if !is.there && (is.at.IsZero() || is.at.Before(since)) && !is.pending && !full && !now.Before(is.again) && a.ctx.Err() == nil {
		is.pending = true
		a.pending = append(a.pending, queue)
		if a.asking < mostAsking {
			a.asking++
			a.running.Go(a.run)
		}
	}
	switch {
	case is.err != nil:
		return false, is.at, is.err
	case is.at.IsZero():
		return false, is.at, ErrAsked
	}
	return is.there, is.at, nil
}

// remembers is exists, and asks nothing.
func (a *asker) remembers(queue string, since time.Time) (there, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	is := a.answers[queue]
	if is == nil || is.err != nil || !is.there && !is.at.After(since) {
		return false, false
	}
	return is.there, true
}

// makeRoom forgets answers when there are too many, but none that is awaited. The
// caller holds mu.
func (a *asker) makeRoom() {
	if len(a.answers) < mostAnswers {
		return
	}
	for queue, is := range a.answers {
		if !is.pending {
			delete(a.answers, queue)
		}
	}
}

func (a *asker) forget(queue string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if is := a.answers[queue]; is != nil && !is.pending {
		delete(a.answers, queue)
	}
}

// run asks until nothing is left to ask.
func (a *asker) run() {
	for {
		a.mu.Lock()
		if len(a.pending) == 0 || a.ctx.Err() != nil {
			a.asking--
			a.mu.Unlock()
			return
		}
		queue := a.pending[0]
		a.pending = a.pending[1:]
		a.mu.Unlock()

		began := time.Now()
		there, err := a.ask(a.ctx, queue)
		a.mu.Lock()
		is := a.answers[queue]
		is.pending, is.err = false, err
		if err == nil {
			is.there, is.at = there, began
		}
		if is.there {
			is.tries = 0
		} else {
			is.again = time.Now().Add(min(askAgain<<min(is.tries, 10), askRarely))
			is.tries++
		}
		a.mu.Unlock()
		if a.answered != nil {
			a.answered()
		}
	}
}
