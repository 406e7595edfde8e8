package retry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

type RetryExchanges interface {
	// BindRetryExchange declares the retry exchange of an existing queue and binds the queue to
	// it.
	BindRetryExchange(ctx context.Context, queue string) error
	// RemoveRetryExchange deletes the retry exchange of a queue, unless a queue is bound to it.
	RemoveRetryExchange(ctx context.Context, queue string) error
	RetryExchangeExists(ctx context.Context, queue string) (bool, error)
}

// retryTargets are the queues that messages may be retried to: those with a retry exchange. `redrive enroll` declares
// one, and so does what RabbitMQ itself proves, or a policy that names the queue exactly.
type retryTargets struct {
	broker   RetryExchanges
	policies func() policy.Set
	consent  Consent // may be nil

	lookup  *exchangeLookup
	binding *exchangeBinding
	bound   queueSet // whose retry exchange this process has declared
	proven  queueSet // that RabbitMQ has dead-lettered from
	away    awayQueues
	// noQueue is how long messages wait for a queue that does not exist; nil: for ever.
	noQueue func(queue string) time.Duration
}

func newRetryTargets(
	b RetryExchanges, policies func() policy.Set, consent Consent, noQueue func(queue string) time.Duration,
	answered func(),
) *retryTargets {
	if answered == nil {
		answered = func() {}
	}
	t := &retryTargets{broker: b, policies: policies, consent: consent, noQueue: noQueue,
		lookup: newExchangeLookup(b.RetryExchangeExists, answered)}
	t.binding = newExchangeBinding(t.bind, answered)
	return t
}

// errAway: the queue may be declared again, as by a deploy. Its retry exchange stays, so that reports wait too.
var errAway = errors.New("its messages wait for it")

// bind declares a queue's retry exchange and binds the queue to it, and remembers that.
func (t *retryTargets) bind(ctx context.Context, queue string) error {
	err := t.broker.BindRetryExchange(ctx, queue)
	switch {
	case err == nil:
		t.away.remove(queue)
		t.bound.add(queue)
		t.lookup.forget(queue) // or it would be remembered as existing when it is deleted
	case t.noQueue == nil:
	case errors.Is(err, wire.ErrQueueGone) && t.away.waits(queue, t.noQueue(queue), time.Now()):
		return fmt.Errorf("%w: %w", errAway, err)
	case errors.Is(err, wire.ErrQueueGone), errors.Is(err, wire.ErrExclusive):
		_ = t.broker.RemoveRetryExchange(ctx, queue) // at worst it stays
	}
	return err
}

// awayQueues remembers since when queues do not exist.
type awayQueues struct{ queueMap[awayQueue] }

type awayQueue struct{ since, seen time.Time }

// waits notes that a queue does not exist, and reports whether messages still wait for it. It ignores a note older than
// noQueue: the queue may have existed since.
func (a *awayQueues) waits(queue string, noQueue time.Duration, now time.Time) bool {
	q := a.change(queue, func(q awayQueue) awayQueue {
		if now.Sub(q.seen) > max(noQueue, 2*maxBackoff) {
			q.since = now
		}
		return awayQueue{q.since, now}
	})
	return now.Sub(q.since) < noQueue
}

type queueSet struct{ queueMap[bool] }

func (s *queueSet) add(queue string) { s.change(queue, func(bool) bool { return true }) }

func (s *queueSet) has(queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues[queue]
}

// queueMap remembers something of each queue. It is safe for concurrent use.
type queueMap[V any] struct {
	mu     sync.Mutex
	queues map[string]V
}

// maxTargets bounds a queueMap: queues with generated names may come and go. A forgotten one is looked up again.
const maxTargets = 10_000

func (m *queueMap[V]) change(queue string, change func(V) V) V {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, known := m.queues[queue]
	if m.queues == nil || !known && len(m.queues) >= maxTargets {
		m.queues = map[string]V{}
	}
	m.queues[queue] = change(was)
	return m.queues[queue]
}

func (m *queueMap[V]) remove(queue string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.queues, queue)
}

// Three methods report from memory whether messages can be retried to a queue:
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

// cached begins no lookup. "No" is known only where neither a retry exchange nor consent existed within maxLookupWait.
func (t *retryTargets) cached(queue string) (yes, known bool) {
	yes, known, consent := t.withoutLookups(queue)
	if known {
		return yes, true
	}
	since := time.Now().Add(-maxLookupWait)
	yes, known = t.lookup.cached(queue, since)
	return yes, yes || known && (t.consent == nil || consent.After(since))
}

// withoutLookups uses no lookup. Where it knows nothing, the queue's owner had not consented as of consent.
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

// route makes sure that messages can be retried to the queue: then it returns the zero Result. due is that of the
// newest message; for a queue that only a report names, an older answer is not enough.
func (t *retryTargets) route(ctx context.Context, queue string, proven bool, due time.Time) Result {
	return t.routeBy(ctx, t.bind, queue, proven, due)
}

// routeSoon is like route, but does not wait for a binding: while a queue is being bound the error is ErrLookupPending.
func (t *retryTargets) routeSoon(ctx context.Context, queue string, proven bool, due time.Time) Result {
	return t.routeBy(ctx, t.binding.begin, queue, proven, due)
}

func (t *retryTargets) routeBy(
	ctx context.Context, bind func(context.Context, string) error, queue string, proven bool, due time.Time,
) Result {
	policies := t.policies()
	if _, ok := policies.Match(queue); !ok || wire.OwnQueue(queue) {
		return Result{Park: fmt.Sprintf(noPolicy, queue)}
	}
	if !utf8.ValidString(queue) { // no intake accepts it: another program wrote the store
		return Result{Park: fmt.Sprintf("the name of the queue %q is not valid UTF-8, so RabbitMQ has no such queue",
			queue)}
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
	case errors.Is(err, ErrLookupPending), errors.Is(err, errAway):
		return Result{Err: err}
	case errors.Is(err, wire.ErrQueueGone), errors.Is(err, wire.ErrExclusive):
		t.proven.remove(queue)
		t.lookup.forget(queue)
		why := queueGone
		if errors.Is(err, wire.ErrExclusive) {
			why = "the queue %q is exclusive to another connection, so it cannot be retried to"
		}
		return Result{Park: fmt.Sprintf(why, queue)}
	case err != nil:
		return Result{Err: fmt.Errorf("binding the retry exchange of queue %q: %w", queue, err)}
	}
	return Result{}
}

// dependingOn makes a result depend also on an answer as of then.
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

// Consent knows which queues dead-letter to Redrive by their owner's choice: an argument or a policy in RabbitMQ.
type Consent interface {
	// Consented reports from memory whether the queue's effective dead-letter exchange is redrive. If not, asOf is when
	// it was another or none; zero: nothing is known yet. err is then why RabbitMQ cannot be asked for a newer answer;
	// nil: it is being asked. It is safe for concurrent use.
	Consented(queue string) (yes bool, asOf time.Time, err error)
}

var (
	// ErrLookupPending is the error of a result for which RabbitMQ's answer is missing. It is no obstacle.
	ErrLookupPending = errors.New("RabbitMQ is being asked")
	// ErrConsentUnknown is the error of a result for which RabbitMQ cannot be asked.
	ErrConsentUnknown = errors.New("reports of failures wait, since it is unknown whether the queue dead-letters " +
		"to redrive")
)

// decideUnproven decides about a queue that only a report names and that has no retry exchange. It returns the zero
// Result if one may be declared.
func (t *retryTargets) decideUnproven(queue string) Result {
	none := Result{Park: fmt.Sprintf(notEnrolled+": nothing was dead-lettered from it yet, its "+
		"dead-letter exchange is not redrive, and no policy names it exactly; `redrive allow-replays` allows it",
		queue)}
	if t.consent == nil {
		return none
	}
	yes, asOf, err := t.consent.Consented(queue)
	switch {
	case yes:
		return Result{}
	case asOf.IsZero():
		return Result{Err: consentUnknown(err)}
	}
	none.asOf, none.errAfter = asOf, consentUnknown(err)
	return none
}

func consentUnknown(err error) error {
	if err == nil {
		return ErrLookupPending
	}
	return fmt.Errorf("%w: %w", ErrConsentUnknown, err)
}

// forDue returns the result for a message due then: the queue may have become a target after RabbitMQ was asked.
func (r Result) forDue(due time.Time) Result {
	if !r.asOf.IsZero() && due.After(r.asOf) {
		return Result{Err: r.errAfter}
	}
	return r
}

// maxAskers is how many queues RabbitMQ is asked about, or bound, at once. A missing exchange costs
// a channel: one after the other took 15 ms each on 3.10.8.
const maxAskers = 16

// askers ask RabbitMQ about queues on goroutines of their own.
type askers struct {
	ask func(ctx context.Context, queue string)

	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	pending []string
	workers int
	running sync.WaitGroup
}

func newAskers(ask func(ctx context.Context, queue string)) *askers {
	a := &askers{ask: ask}
	a.ctx, a.stop = context.WithCancel(context.Background())
	return a
}

// close cancels what is under way, and waits for it.
func (a *askers) close() {
	a.mu.Lock()
	a.stop()
	a.mu.Unlock()
	a.running.Wait()
}

// add asks about a queue soon. The caller holds mu.
func (a *askers) add(queue string) {
	a.pending = append(a.pending, queue)
	if a.workers < maxAskers {
		a.workers++
		a.running.Go(a.run)
	}
}

func (a *askers) run() {
	for {
		a.mu.Lock()
		if len(a.pending) == 0 || a.ctx.Err() != nil {
			a.workers--
			a.mu.Unlock()
			return
		}
		queue := a.pending[0]
		a.pending = a.pending[1:]
		a.mu.Unlock()
		a.ask(a.ctx, queue)
	}
}

const (
	// After the answer "missing" a queue is not looked up for minLookupWait, then twice that, up to maxLookupWait.
	minLookupWait, maxLookupWait = 2 * time.Second, time.Minute
	// maxAnswers bounds the answers that are remembered, and maxPending the lookups that wait, to some seconds' worth:
	// a real queue must not wait long behind invented names.
	maxAnswers, maxPending = 10_000, 1000
)

// exchangeLookup finds out which queues have a retry exchange, on goroutines of its own: a client that reports failures
// may invent names, each of which costs a lookup, and neither intake nor scheduler may wait for that.
type exchangeLookup struct {
	*askers
	lookUp   func(ctx context.Context, queue string) (bool, error)
	answered func() // called after each lookup
	answers  map[string]*lookupAnswer
}

type lookupAnswer struct {
	exists  bool
	asOf    time.Time // when the lookup began; zero: there is no answer
	err     error
	tries   int // lookups that found no exchange, or failed
	next    time.Time
	pending bool
}

func newExchangeLookup(lookUp func(ctx context.Context, queue string) (bool, error), answered func()) *exchangeLookup {
	l := &exchangeLookup{lookUp: lookUp, answered: answered, answers: map[string]*lookupAnswer{}}
	l.askers = newAskers(l.askOnce)
	return l
}

// exists answers from memory whether a queue has a retry exchange, and as of when. If the answer is no and older than
// since, another lookup begins, unless too many wait: the caller calls again. The error is why there is no answer,
// ErrLookupPending if there is none yet.
func (l *exchangeLookup) exists(queue string, since time.Time) (yes bool, asOf time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, full := l.answers[queue], len(l.pending) >= maxPending
	if a == nil {
		if full {
			return false, time.Time{}, ErrLookupPending
		}
		if len(l.answers) >= maxAnswers {
			maps.DeleteFunc(l.answers, func(_ string, a *lookupAnswer) bool { return !a.pending })
		}
		a = &lookupAnswer{}
		l.answers[queue] = a
	}
	now := time.Now()
	if !a.exists && (a.asOf.IsZero() || a.asOf.Before(since)) && !a.pending && !full && !now.Before(a.next) &&
		l.ctx.Err() == nil {
		a.pending = true
		l.add(queue)
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

func (l *exchangeLookup) forget(queue string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.answers[queue]; a != nil && !a.pending {
		delete(l.answers, queue)
	}
}

func (l *exchangeLookup) askOnce(ctx context.Context, queue string) {
	began := time.Now()
	yes, err := l.lookUp(ctx, queue)
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

const (
	// bindingWait is how long the scheduler waits for the first binding after bindingsQuiet without one; it waits for
	// no other.
	bindingWait, bindingsQuiet = 100 * time.Millisecond, time.Second
	// bindingErrorKept is how long the error of a binding is the answer; then it is tried again.
	bindingErrorKept = 2 * time.Second
)

// exchangeBinding declares retry exchanges and binds queues to them, on goroutines of its own. Each queue needs that
// once after a start: of thousands, the last would wait a minute [10 ms each, measured on 3.10.8 and 4.3.6].
type exchangeBinding struct {
	*askers
	bind      func(ctx context.Context, queue string) error
	ended     func() // called after a binding that begin did not wait for
	underWay  map[string]*queueBinding
	failed    map[string]bindingError
	lastEnded time.Time
}

type queueBinding struct {
	ended   chan struct{}
	awaited bool // begin waits for that
}

type bindingError struct {
	err error
	at  time.Time
}

func newExchangeBinding(bind func(ctx context.Context, queue string) error, ended func()) *exchangeBinding {
	b := &exchangeBinding{bind: bind, ended: ended, underWay: map[string]*queueBinding{},
		failed: map[string]bindingError{}}
	b.askers = newAskers(b.bindOnce)
	return b
}

// begin binds a queue. While that is under way the error is ErrLookupPending.
func (b *exchangeBinding) begin(ctx context.Context, queue string) error {
	b.mu.Lock()
	if e, ok := b.failed[queue]; ok {
		delete(b.failed, queue)
		if time.Since(e.at) < bindingErrorKept {
			b.mu.Unlock()
			return e.err
		}
	}
	if b.ctx.Err() != nil {
		b.mu.Unlock()
		return b.ctx.Err()
	}
	one := b.underWay[queue]
	if one == nil {
		one = &queueBinding{ended: make(chan struct{}),
			awaited: len(b.underWay) == 0 && time.Since(b.lastEnded) > bindingsQuiet}
		b.underWay[queue] = one
		b.add(queue)
	}
	awaited := one.awaited
	b.mu.Unlock()
	if awaited {
		return b.await(ctx, queue, one)
	}
	return ErrLookupPending
}

// await waits a moment for a binding, and returns its error.
func (b *exchangeBinding) await(ctx context.Context, queue string, one *queueBinding) error {
	select {
	case <-one.ended:
	case <-time.After(bindingWait):
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if one.awaited = false; b.underWay[queue] == one {
		return ErrLookupPending
	}
	e := b.failed[queue]
	delete(b.failed, queue)
	return e.err
}

func (b *exchangeBinding) isUnderWay(queue string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.underWay[queue] != nil
}

func (b *exchangeBinding) bindOnce(ctx context.Context, queue string) {
	err := b.bind(ctx, queue)
	b.mu.Lock()
	one := b.underWay[queue]
	delete(b.underWay, queue)
	awaited := one.awaited
	b.lastEnded = time.Now()
	if err != nil {
		if len(b.failed) >= maxTargets {
			clear(b.failed)
		}
		b.failed[queue] = bindingError{err, b.lastEnded}
	}
	b.mu.Unlock()
	close(one.ended)
	if !awaited {
		b.ended()
	}
}

const (
	// maxNames is how many names may be known from reports alone, and maxNamesEach how many of them one user of
	// RabbitMQ may have reported (all without user-id are one user). Each costs memory in store, metrics and throttle
	// while a message is kept for it.
	maxNames, maxNamesEach = 4000, 1000
	// moreNames and moreNamesEach are added for names that are not looked up yet: invented names that use up the limits
	// must not park a report for a real queue.
	moreNames, moreNamesEach = 1000, 250
	// recountEvery is how often names are counted again from the store, from firstRecount on: then RabbitMQ has
	// answered which of them are targets.
	recountEvery, firstRecount = 10 * time.Second, time.Minute
)

// ReportedNames bounds the queue names that are known from reports alone; retryTargets are never counted. A nil one has
// no bound.
type ReportedNames struct {
	store store.Store
	// As those of retryTargets.
	lookUpIfUnknown, cached func(queue string) (yes, known bool)
	markProven              func(queue string) // RabbitMQ has dead-lettered from the queue

	// turn is a lock that a caller can stop waiting for: it is held while the store is asked.
	turn       *semaphore.Weighted
	reporterOf map[string]string // of each counted name, the user who reported it first
	perUser    map[string]int    // counted names, by reporter
	recounted  time.Time
	loaded     bool // the names in the store at the start are counted
}

func NewReportedNames(s store.Store, sender *Sender) *ReportedNames {
	return &ReportedNames{store: s, turn: semaphore.NewWeighted(1), lookUpIfUnknown: sender.MayRetryTo,
		cached: sender.targets.cached, markProven: sender.targets.proven.add,
		reporterOf: map[string]string{}, perUser: map[string]int{},
		recounted: time.Now().Add(firstRecount - recountEvery)}
}

// admits reports whether a message may be kept for a queue that reporter named, and counts the name. A lookup in
// RabbitMQ begins only for a name that is counted.
func (n *ReportedNames) admits(ctx context.Context, queue, reporter string) bool {
	if n == nil || queue == "" {
		return true
	}
	yes, known := n.cached(queue)
	if n.turn.Acquire(ctx, 1) != nil {
		return true // the service ends, and the message is not stored
	}
	defer n.turn.Release(1)
	if _, counted := n.reporterOf[queue]; yes || counted {
		if yes {
			n.drop(queue)
		}
		return true
	}
	if (n.isFull(reporter) || !n.loaded) && time.Since(n.recounted) > recountEvery {
		n.recount(ctx)
	}
	if n.isFull(reporter) && (known || n.isOverfull(reporter)) {
		return false
	}
	n.count(queue, reporter)
	n.lookUpIfUnknown(queue)
	return true
}

func (n *ReportedNames) isFull(reporter string) bool {
	return len(n.reporterOf) >= maxNames || n.perUser[reporter] >= maxNamesEach
}

// isOverfull reports whether there is no place even for a name that may turn out to be a target. One that does not
// keeps its place while a message is kept for it, or the store could grow at each recount.
func (n *ReportedNames) isOverfull(reporter string) bool {
	return len(n.reporterOf) >= maxNames+moreNames || n.perUser[reporter] >= maxNamesEach+moreNamesEach
}

func (n *ReportedNames) count(queue, reporter string) {
	n.reporterOf[queue] = reporter
	n.perUser[reporter]++
}

func (n *ReportedNames) drop(queue string) {
	reporter, counted := n.reporterOf[queue]
	if !counted {
		return
	}
	delete(n.reporterOf, queue)
	if n.perUser[reporter]--; n.perUser[reporter] == 0 {
		delete(n.perUser, reporter)
	}
}

// recount counts again the names that messages are stored for and that are not targets, and looks up the unknown ones.
func (n *ReportedNames) recount(ctx context.Context) {
	n.recounted = time.Now()
	counts, err := n.store.Counts(ctx)
	if err != nil {
		return // the store's errors are reported elsewhere
	}
	n.loaded = true
	was := n.reporterOf
	n.reporterOf, n.perUser = map[string]string{}, map[string]int{}
	for _, c := range counts {
		if c.Queue == "" {
			continue
		}
		reporter, counted := was[c.Queue]
		if yes, known := n.lookUpIfUnknown(c.Queue); !yes && (known || counted) {
			n.count(c.Queue, reporter)
		}
	}
}

// tooMany returns why a report is parked without its queue's name.
func tooMany(queue string) string {
	return fmt.Sprintf("it names the queue %q, which is not known to be enrolled, and messages for too many such "+
		"names are kept (%d in all, %d reported by one user): enroll the queue, or discard what is parked for queues "+
		"that do not exist; `redrive copy --to QUEUE ID` publishes this one there", queue, maxNames, maxNamesEach)
}
