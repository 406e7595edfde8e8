package retry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Declarer declares delay queues and publishes to them, on its own connection: an alarm must not stop the retries.
type Declarer interface {
	RetryExchanges
	// Send is like Publisher's, but Unchecked messages are not mandatory.
	Send(ctx context.Context, out []wire.Outgoing) (wait func(context.Context) []error)
	// Ready reports whether RabbitMQ would answer a Send now.
	Ready() bool
	Declare(ctx context.Context, t delay.Topology) error
}

const (
	// defaultConfirmTimeout bounds the time of a batch, for which the intake waits.
	defaultConfirmTimeout = 5 * time.Second
	// A way works again when it has not failed for recoveredAfter: it may fail for one queue and work for another.
	recoveredAfter = 3 * time.Second
	// tryAgainAfter is the pause after RabbitMQ has not answered a batch in time, or has not declared something.
	tryAgainAfter = 15 * time.Second
)

var (
	errNotReady = errors.New("there is no connection, or an alarm of RabbitMQ blocks it")
	errNoRoute  = errors.New("messages cannot be retried to its queue")
)

// DelayQueues publishes failed messages to the queues of RabbitMQ where they wait. It tries once, and declares a
// deleted exchange or queue again for the next message: what RabbitMQ does not accept waits in the store, so a way that
// fails may cost a duplicate, and never stops the intake. Only the intake's goroutine publishes, and not while an
// abandoned batch is under way.
type DelayQueues struct {
	broker  Declarer
	targets *retryTargets
	report  func(way string, err error)
	timeout time.Duration // of a batch
	errLate error         // RabbitMQ has not confirmed by then

	declared  map[any]declaration  // topologies, by wayOfQueue, or by the name of a delay queue
	failing   map[string]time.Time // ways that were reported, and when they failed last
	notBefore time.Time            // until then nothing is published
	busy      chan struct{}        // closed when the abandoned batch has ended
	sending   sync.WaitGroup

	mu         sync.Mutex
	lostQueues []string // queues that were gone or not bound when a wait ended
}

// NewDelayQueues returns DelayQueues that publish through b. A batch that RabbitMQ has not confirmed within timeout (0:
// 5 s) waits in the store. report receives why a way begins to fail, and nil when it works again. consent may be nil.
func NewDelayQueues(
	b Declarer, policies func() policy.Set, consent Consent, timeout time.Duration, report func(way string, err error),
) *DelayQueues {
	timeout = cmp.Or(timeout, defaultConfirmTimeout)
	return &DelayQueues{broker: b, targets: newRetryTargets(b, policies, consent, nil, nil), report: report,
		timeout:  timeout,
		errLate:  fmt.Errorf("RabbitMQ has not confirmed within %s", timeout),
		declared: map[any]declaration{}, failing: map[string]time.Time{}}
}

// Wait waits for abandoned batches, which end with their connection, and cancels lookups.
func (d *DelayQueues) Wait() {
	d.sending.Wait()
	d.targets.lookup.close()
}

// delayedMessage is a message to wait in RabbitMQ.
type delayedMessage struct {
	rec   *store.Record
	way   delay.Way
	delay time.Duration

	messageIndex, eventIndex int // in the batch, and in its events

	rounded time.Duration // delay, as rounded by the way
	err     error         // why RabbitMQ has not confirmed it; nil if it has
}

// publish publishes a batch and waits for the answers. A message without an error is then safe in RabbitMQ.
func (d *DelayQueues) publish(ctx context.Context, batch []delayedMessage) {
	if err := d.ready(); err != nil {
		refuse(batch, err)
	} else {
		limit := time.After(d.timeout)
		// A little less, so that answers in time count even if others are late.
		ctx, cancel := context.WithTimeout(ctx, d.timeout*9/10)
		defer cancel()
		// A publish into a connection that an alarm has just blocked hangs, and ignores its context.
		trying, done := slices.Clone(batch), make(chan struct{})
		d.sending.Go(func() { defer close(done); d.publishBatch(ctx, trying) })
		select {
		case <-done:
			if copy(batch, trying); ctx.Err() != nil {
				d.notBefore = time.Now().Add(tryAgainAfter)
			}
		case <-limit:
			d.busy, d.notBefore = done, time.Now().Add(tryAgainAfter)
			refuse(batch, d.errLate)
		}
	}
	d.reportWays(batch)
}

func refuse(batch []delayedMessage, err error) {
	for i := range batch {
		batch[i].err = err
	}
}

// ready returns why nothing can be published now, or nil.
func (d *DelayQueues) ready() error {
	if d.busy != nil {
		select {
		case <-d.busy:
			d.busy = nil
		default:
			return d.errLate
		}
	}
	if time.Now().Before(d.notBefore) {
		return d.errLate
	}
	if !d.broker.Ready() {
		return errNotReady
	}
	return nil
}

func (d *DelayQueues) publishBatch(ctx context.Context, batch []delayedMessage) {
	d.forgetLost()
	out := make([]wire.Outgoing, 0, len(batch))
	sent := make([]int, 0, len(batch)) // index in batch of each of out
	tickets := make([]delay.Ticket, 0, len(batch))
	type source struct {
		queue  string
		proven bool
	}
	noRoute := map[source]error{} // looked up once for each: a client may report any name
	for i := 0; i < len(batch) && ctx.Err() == nil; i++ {
		m := &batch[i]
		from := source{m.rec.Queue, m.rec.Proven}
		if m.err = noRoute[from]; m.err != nil {
			continue
		}
		// Only jitter can exceed the maximum: the config's check bounds the policy's waits.
		t, err := m.way.Ticket(m.rec.Queue, min(m.delay, m.way.Limits().Longest))
		if err == nil {
			err = d.prepare(ctx, m, &t)
		}
		if m.err = err; errors.Is(err, errNoRoute) {
			noRoute[from] = err
		}
		if err != nil {
			continue
		}
		m.rounded = t.Delay
		id, message := withHistory(m.rec)
		out, sent, tickets = append(out, t.Outgoing(id, message)), append(sent, i), append(tickets, t)
	}
	if ctx.Err() != nil { // abandoned: the store has it by now
		refuse(batch, d.errLate)
		return
	}
	if len(out) == 0 {
		return
	}
	for n, err := range d.broker.Send(ctx, out)(ctx) {
		m, t := &batch[sent[n]], tickets[n]
		if err == nil {
			err = t.CheckConfirm(d.declared[t.Exchange].at)
		}
		if m.err = err; errors.Is(err, wire.ErrUnroutable) {
			// The exchange or queue was deleted: declare it again for the next message.
			delete(d.declared, t.Exchange)
			delete(d.declared, m.declaredKey())
		}
	}
}

// reportWays reports, for each way in a batch, whether it works.
func (d *DelayQueues) reportWays(batch []delayedMessage) {
	state := map[string]error{}
	for _, m := range batch {
		name, err := m.way.Limits().Name, m.err
		if errors.Is(err, errNoRoute) || errors.Is(err, wire.ErrQueueGone) || errors.Is(err, wire.ErrUnacceptable) {
			continue // not the way's fault, but the message's or its queue's
		}
		if state[name] == nil {
			state[name] = err
		}
	}
	now := time.Now()
	for name, err := range state {
		last, wasFailing := d.failing[name]
		switch {
		case err != nil:
			if d.failing[name] = now; !wasFailing {
				d.report(name, err)
			}
		case wasFailing && now.Sub(last) >= recoveredAfter:
			delete(d.failing, name)
			d.report(name, nil)
		}
	}
}

type wayOfQueue struct {
	way   delay.Way
	queue string
}

type declaration struct {
	at  time.Time
	err error
}

func (m *delayedMessage) declaredKey() wayOfQueue { return wayOfQueue{m.way, m.rec.Queue} }

// MarkLost has what a queue needs declared again, since it was deleted. It is safe for concurrent use.
func (d *DelayQueues) MarkLost(queue string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.lostQueues) < 1000 { // each further message marks its queue again
		d.lostQueues = append(d.lostQueues, queue)
	}
}

func (d *DelayQueues) forgetLost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.lostQueues {
		d.targets.forget(q)
		maps.DeleteFunc(d.declared, func(k any, _ declaration) bool {
			by, ok := k.(wayOfQueue)
			return ok && by.queue == q
		})
	}
	d.lostQueues = nil
}

// prepare checks that a message may be retried to its queue, and declares the exchanges and queues on its way.
func (d *DelayQueues) prepare(ctx context.Context, m *delayedMessage, t *delay.Ticket) error {
	switch r := d.targets.route(ctx, m.rec.Queue, m.rec.Proven, m.rec.FailedAt); {
	case errors.Is(r.Err, ErrLookupPending), errors.Is(r.Err, ErrConsentUnknown):
		return fmt.Errorf("%w: %w", errNoRoute, r.Err) // it waits in the store meanwhile
	case r.Err != nil:
		return r.Err
	case r.Park != "":
		return fmt.Errorf("%w: %s", errNoRoute, r.Park) // the scheduler will park it for that
	}
	topology := func() delay.Topology { return m.way.Topology(m.rec.Queue) }
	if err := d.declare(ctx, m.declaredKey(), topology, 0); err != nil || t.DeclareFirst == nil {
		return err
	}
	return d.declare(ctx, t.Exchange, func() delay.Topology { return *t.DeclareFirst }, t.ConfirmWithin/2)
}

// declare declares a topology once and, unless within is 0, again when that was longer ago. After an error it does not
// try again for tryAgainAfter.
func (d *DelayQueues) declare(ctx context.Context, key any, t func() delay.Topology, within time.Duration) error {
	was, ok := d.declared[key]
	age := time.Since(was.at)
	if ok && was.err != nil && age < tryAgainAfter {
		return was.err
	}
	if !ok || was.err != nil || within > 0 && age > within {
		was = declaration{at: time.Now()}
		was.err = d.broker.Declare(ctx, t())
		d.declared[key] = was
	}
	return was.err
}
