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

// RetryExchanges declares and finds the retry exchanges of queues.
type RetryExchanges interface {
	// BindRetryExchange declares the retry exchange of an existing queue and binds the queue to
	// it.
	BindRetryExchange(ctx context.Context, queue string) error
	// RemoveRetryExchange deletes the retry exchange of a queue, unless a queue is bound to it.
	RemoveRetryExchange(ctx context.Context, queue string) error
	// RetryExchangeExists tells whether the queue has a retry exchange.
	RetryExchangeExists(ctx context.Context, queue string) (bool, error)
}

// retryTargets are the queues that messages may be retried to, whichever way they wait: those
// with a retry exchange. Only what RabbitMQ itself proves, or a policy that names the queue
// exactly, declares one. `redrive enroll` sets a queue's dead-letter exchange and declares its
// retry exchange, but a queue may be a target without it.
type retryTargets struct {
	broker   RetryExchanges
	policies func() policy.Set
	consent  Consent // nil: RabbitMQ is not asked

	lookup  *exchangeLookup
	binding *exchangeBinding
	bound   queueSet // whose retry exchange this process has seen or declared
	proven  queueSet // that RabbitMQ has dead-lettered from
	away    awayQueues
	// patience is how long messages wait for a queue that does not exist; nil: for ever.
	patience func(queue string) time.Duration
}

func newRetryTargets(b RetryExchanges, policies func() policy.Set, consent Consent, patience func(queue string) time.Duration, answered func()) *retryTargets {
	if answered == nil {
		answered = func() {}
	}
	t := &retryTargets{broker: b, policies: policies, consent: consent, patience: patience, lookup: newExchangeLookup(b.RetryExchangeExists, answered)}
	t.binding = newExchangeBinding(t.bind, answered)
	return t
}

// errAway: the queue does not exist, and may be declared again, as by a deploy. Its retry exchange
// stays meanwhile, so that reports of the queue wait too.
var errAway = errors.New("its messages wait for it")

// bind declares a queue's retry exchange and binds the queue to it, and remembers that.
func (t *retryTargets) bind(ctx context.Context, queue string) error {
	err := t.broker.BindRetryExchange(ctx, queue)
	switch {
	case err == nil:
		t.away.remove(queue)
		t.bound.add(queue)
		t.lookup.forget(queue) // or it would be remembered as existing when it is deleted
	case t.patience == nil:
	case errors.Is(err, wire.ErrQueueGone) && t.away.waits(queue, t.patience(queue), time.Now()):
		return fmt.Errorf("%w: %w", errAway, err)
	case errors.Is(err, wire.ErrQueueGone), errors.Is(err, wire.ErrExclusive):
		_ = t.broker.RemoveRetryExchange(ctx, queue) // at worst it stays
	}
	return err
}

// awayQueues remembers since when queues do not exist. The zero value has none.
type awayQueues struct {
	mu     sync.Mutex
	queues map[string]awayQueue
}

type awayQueue struct{ since, seen time.Time }

// waits notes that a queue does not exist, and tells whether messages wait for it still. What was
// noted longer ago than patience says nothing about the time between.
func (a *awayQueues) waits(queue string, patience time.Duration, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.queues == nil || len(a.queues) >= maxTargets {
		a.queues = map[string]awayQueue{}
	}
	q, noted := a.queues[queue]
	if !noted || now.Sub(q.seen) > max(patience, 2*maxBackoff) {
		q.since = now
	}
	q.seen = now
	a.queues[queue] = q
	return now.Sub(q.since) < patience
}

func (a *awayQueues) remove(queue string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.queues, queue)
}

// queueSet remembers queues. The zero value has none.
type queueSet struct {
	mu     sync.Mutex
	queues map[string]bool
}

// maxTargets bounds how many queues a set remembers: queues with generated names may come and go
// for years. A forgotten one is looked up again.
const maxTargets = 10_000

func (s *queueSet) add(queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues == nil || !s.queues[queue] && len(s.queues) >= maxTargets {
		s.queues = map[string]bool{}
	}
	s.queues[queue] = true
}

func (s *queueSet) has(queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues[queue]
}

func (s *queueSet) remove(queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queues, queue)
}

// Three methods tell whether messages can be retried to a queue. All answer at once, from
// memory; known is false where memory has no answer:
//
//	                 yes or no, from                           if not known
//	lookUpIfUnknown  policies, dead letters, consent, lookups  a lookup begins
//	cached           the same; a "no" for a minute             nothing
//	withoutLookups   policies, dead letters, consent           nothing

// lookUpIfUnknown begins a lookup in RabbitMQ where the answer is not known.
func (t *retryTargets) lookUpIfUnknown(queue string) (yes, known bool) {
	if yes, known, _ = t.withoutLookups(queue); known {
		return yes, true
	}
	yes, _, err := t.lookup.exists(queue, time.Now().Add(-maxLookupWait))
	return yes, err == nil
}

// cached begins no lookup. "No" is known only where neither a retry exchange nor the owner's
// consent existed within maxLookupWait.
func (t *retryTargets) cached(queue string) (yes, known bool) {
	yes, known, consent := t.withoutLookups(queue)
	if known {
		return yes, true
	}
	since := time.Now().Add(-maxLookupWait)
	yes, known = t.lookup.cached(queue, since)
	return yes, yes || known && (t.consent == nil || consent.After(since))
}

// withoutLookups uses no answer to a lookup. Where it knows nothing, consent is the time as of
// which the queue's owner had not consented (see Consent).
func (t *retryTargets) withoutLookups(queue string) (yes, known bool, consent time.Time) {
	policies := t.policies()
	if _, ok := policies.Match(queue); !ok || wire.OwnQueue(queue) {
		return false, true, consent
	}
	if t.bound.has(queue) || t.proven.has(queue) || policies.Exact(queue) {
		return true, true, consent
	}
	if t.consent != nil {
		yes, consent, _ = t.consent.Consented(queue)
	}
	return yes, yes, consent
}

// route makes sure that messages can be retried to the queue, and remembers that. The zero
// Result means that they can. due is that of the newest message: for a queue that only a report
// names, an older answer is not enough.
func (t *retryTargets) route(ctx context.Context, queue string, proven bool, due time.Time) Result {
	return t.routeBy(ctx, t.bind, queue, proven, due)
}

// routeSoon is route, but for queues that are being bound: of those the error is ErrLookupPending.
func (t *retryTargets) routeSoon(ctx context.Context, queue string, proven bool, due time.Time) Result {
	return t.routeBy(ctx, t.binding.begin, queue, proven, due)
}

func (t *retryTargets) routeBy(ctx context.Context, bind func(context.Context, string) error, queue string, proven bool, due time.Time) Result {
	policies := t.policies()
	if _, ok := policies.Match(queue); !ok || wire.OwnQueue(queue) {
		return Result{Park: fmt.Sprintf("no policy allows the queue %q", queue)}
	}
	if !utf8.ValidString(queue) { // no way in takes it: another program wrote the store
		return Result{Park: fmt.Sprintf("the name of the queue %q is not valid UTF-8, so RabbitMQ has no such queue", queue)}
	}
	if t.bound.has(queue) {
		return Result{}
	}
	if !proven && !policies.Exact(queue) {
		// Only a client's report names the queue. That must declare nothing.
		exists, asOf, err := t.lookup.exists(queue, due)
		if err != nil {
			return Result{Err: err}
		}
		if !exists {
			if r := t.decideUnproven(queue); r.Park != "" || r.Err != nil {
				return r.dependingOn(asOf)
			}
		}
	}
	switch err := bind(ctx, queue); {
	case errors.Is(err, ErrLookupPending):
		return Result{Err: err}
	case errors.Is(err, errAway):
		return Result{Err: err}
	case errors.Is(err, wire.ErrQueueGone):
		t.proven.remove(queue)
		t.lookup.forget(queue)
		return Result{Park: fmt.Sprintf("the queue %q does not exist any more", queue)}
	case errors.Is(err, wire.ErrExclusive):
		t.proven.remove(queue)
		t.lookup.forget(queue)
		return Result{Park: fmt.Sprintf("the queue %q is exclusive to another connection, so it cannot be retried to", queue)}
	case err != nil:
		return Result{Err: fmt.Errorf("binding the retry exchange of queue %q: %w", queue, err)}
	}
	return Result{}
}

// dependingOn makes a result depend on an answer of that moment too.
func (r Result) dependingOn(asOf time.Time) Result {
	if r.Park != "" && (r.asOf.IsZero() || asOf.Before(r.asOf)) {
		if r.asOf = asOf; r.errAfter == nil {
			r.errAfter = ErrLookupPending
		}
	}
	return r
}

func (t *retryTargets) forget(queue string) {
	t.bound.remove(queue)
	t.lookup.forget(queue)
}
