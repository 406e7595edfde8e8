package retry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Enroller makes and finds the retry exchanges of queues.
type Enroller interface {
	// BindRetryExchange makes the retry exchange of an existing queue and binds it.
	BindRetryExchange(ctx context.Context, queue string) error
	// RetryExchangeExists tells whether the queue has a retry exchange.
	RetryExchangeExists(ctx context.Context, queue string) (bool, error)
}

// enrolled decides which queues messages may be retried to, whichever way they wait: those
// with a retry exchange. Only what RabbitMQ itself proves, or a policy that names the queue
// exactly, makes one.
type enrolled struct {
	broker   Enroller
	policies func() policy.Set
	consent  Consent // nil: RabbitMQ is not asked

	asker *asker

	mu     sync.Mutex
	bound  map[string]bool // queues whose retry exchange was seen in place by this process
	proven map[string]bool // queues that RabbitMQ has dead-lettered from
}

// mostEnrolled bounds what is remembered of each kind: queues with names of their own may
// come and go for years. RabbitMQ is asked again about what was forgotten.
const mostEnrolled = 10_000

// note remembers a queue in one of the maps. The caller holds mu.
func note(queues map[string]bool, queue string) {
	if !queues[queue] && len(queues) >= mostEnrolled {
		clear(queues)
	}
	queues[queue] = true
}

func newEnrolled(b Enroller, policies func() policy.Set) *enrolled {
	return &enrolled{broker: b, policies: policies, asker: newAsker(b.RetryExchangeExists), bound: map[string]bool{}, proven: map[string]bool{}}
}

// is tells from memory whether a queue can be retried to. Where that is not known, RabbitMQ is
// asked.
func (e *enrolled) is(queue string) (yes, known bool) {
	if yes, known, _ = e.settled(queue); known {
		return yes, true
	}
	yes, _, err := e.asker.exists(queue, time.Now().Add(-askRarely))
	return yes, err == nil
}

// remembers is is, and asks for no name. That a queue is not enrolled is known only where
// it is known of its retry exchange and of its owner's consent, and not long since.
func (e *enrolled) remembers(queue string) (yes, known bool) {
	yes, known, consent := e.settled(queue)
	if known {
		return yes, true
	}
	since := time.Now().Add(-askRarely)
	yes, known = e.asker.remembers(queue, since)
	return yes, yes || known && (e.consent == nil || consent.After(since))
}

// settled tells what RabbitMQ need not be asked for; else as of when the queue's owner has
// not consented.
func (e *enrolled) settled(queue string) (yes, known bool, consent time.Time) {
	policies := e.policies()
	if _, ok := policies.Match(queue); !ok || wire.OwnQueue(queue) {
		return false, true, consent
	}
	e.mu.Lock()
	yes = e.bound[queue] || e.proven[queue]
	e.mu.Unlock()
	if yes || policies.Exact(queue) {
		return true, true, consent
	}
	if e.consent != nil {
		yes, consent, _ = e.consent.Consented(queue)
	}
	return yes, yes, consent
}

// prove remembers that RabbitMQ has dead-lettered from a queue.
func (e *enrolled) markProven(queue string) {
	e.mu.Lock()
	note(e.proven, queue)
	e.mu.Unlock()
}

// route makes sure that the queue can be retried to, once per process and queue but for
// those it has forgotten. The zero Result means that it can. due is that of the newest
// message: whether a queue is enrolled that only a report names must be known since then.
func (e *enrolled) route(ctx context.Context, queue string, proven bool, due time.Time) Result {
	policies := e.policies()
	if _, ok := policies.Match(queue); !ok || wire.OwnQueue(queue) {
		return Result{Park: fmt.Sprintf("no policy allows the queue %q", queue)}
	}
	if !utf8.ValidString(queue) { // kept by an earlier version
		return Result{Park: fmt.Sprintf("the name of the queue %q is not valid UTF-8, so RabbitMQ has no such queue", queue)}
	}
	e.mu.Lock()
	bound := e.bound[queue]
	e.mu.Unlock()
	if bound {
		return Result{}
	}
	if !proven && !policies.Exact(queue) {
		// A client said that it failed there. That must not enrol a queue.
		there, asOf, err := e.asker.exists(queue, due)
		if err != nil {
			return Result{Err: err}
		}
		if !there {
			if f := e.unproven(queue); f.Park != "" || f.Err != nil {
				return f.since(asOf)
			}
		}
	}
	switch err := e.broker.BindRetryExchange(ctx, queue); {
	case errors.Is(err, wire.ErrQueueGone):
		e.mu.Lock()
		delete(e.proven, queue)
		e.mu.Unlock()
		e.asker.forget(queue)
		return Result{Park: fmt.Sprintf("the queue %q does not exist any more", queue)}
	case err != nil:
		return Result{Err: fmt.Errorf("binding the retry exchange of queue %q: %w", queue, err)}
	}
	e.mu.Lock()
	note(e.bound, queue)
	e.mu.Unlock()
	e.asker.forget(queue) // it would be remembered as there when it is gone
	return Result{}
}

// since makes a result depend on an answer of that moment too.
func (r Result) since(asOf time.Time) Result {
	if r.Park != "" && (r.asOf.IsZero() || asOf.Before(r.asOf)) {
		if r.asOf = asOf; r.later == nil {
			r.later = ErrAsked
		}
	}
	return r
}

func (e *enrolled) forget(queue string) {
	e.mu.Lock()
	delete(e.bound, queue)
	e.mu.Unlock()
	e.asker.forget(queue)
}
