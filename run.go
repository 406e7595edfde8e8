package redrive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/wire"
)

// returnGrace is how long handlers may take to return after their contexts ended.
const returnGrace = time.Second

// run consumes until ctx ends.
func (c *Client) run(ctx context.Context, a *acknowledger, handle Handler) error {
	k := &a.consumer
	// A handler that has begun may finish, but not take forever.
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	over, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() {
		first := time.AfterFunc(k.Shutdown, stopWorking)
		last := time.AfterFunc(k.Shutdown+returnGrace, giveUp)
		context.AfterFunc(over, func() { first.Stop(); last.Stop() })
	})()

	r := &run{client: c, acknowledger: a, consumeCtx: ctx, handleCtx: working, waitCtx: over, handle: handle,
		slots: make(chan struct{}, k.Concurrency), deliveries: deliveries{max: int64(k.MaxDeliveries)}}
	q := broker.ConsumeOptions{Queue: k.Queue, Prefetch: k.Prefetch, Log: c.config.Log, Observe: func(yes bool) {
		count(c, k.Queue, c.config.Metrics.Consumer, ConsumerEvent{k.Queue, yes})
	}}
	if err := c.subscribe.Consume(ctx, q, r.consume); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	return r.finish()
}

// run is one Consume.
type run struct {
	client       *Client
	acknowledger *acknowledger
	consumeCtx   context.Context // while it lasts, messages are consumed
	handleCtx    context.Context // while it lasts, handlers run, and failed messages are published
	waitCtx      context.Context // while it lasts, finish waits for handlers to return
	handle       Handler         // nil for batches
	slots        chan struct{}   // one for each worker, of whichever connection
	reconnected  bool            // not the first connection
	deliveries   deliveries
}

// subscription is the deliveries of one connection, and how long its failures are published.
type subscription struct {
	broker.Subscription
	ctx       context.Context // ends with the connection, and with run.handleCtx
	prepared  <-chan struct{} // closed when prepareAgain has ended
	receiving chan struct{}   // full while a worker receives a message, or collects a batch, and judges it
	unsettled *atomic.Int64   // messages whose attempt began, and that are not acknowledged
}

// consume works on one connection. When that is lost, handlers under way continue, and their workers' places are free
// only when they have returned: a slow one delays neither the next connection nor the others.
func (r *run) consume(s broker.Subscription) {
	// A failed message is published only while it can still be acknowledged: otherwise RabbitMQ
	// delivers it again, and the copy would be a duplicate.
	ctx, cancel := context.WithCancelCause(r.handleCtx)
	prepared := r.prepareAgain(ctx)
	defer func() { cancel(errLost); <-prepared }()
	sub := subscription{s, ctx, prepared, make(chan struct{}, 1), new(atomic.Int64)}
	done := make(chan struct{})
	var left atomic.Int32
	left.Store(int32(cap(r.slots)))
	for range cap(r.slots) {
		go func() {
			defer func() {
				if left.Add(-1) == 0 {
					close(done)
				}
			}()
			select {
			case r.slots <- struct{}{}:
				defer func() { <-r.slots }()
				r.work(sub)
			case <-s.Ended:
			case <-r.consumeCtx.Done():
			}
		}()
	}
	select {
	case <-done:
	case <-s.Ended:
	case <-r.waitCtx.Done():
	}
	if n := sub.unsettled.Load(); n > 0 { // once, not for each message
		r.client.config.Log.Warn("messages could not be acknowledged: RabbitMQ delivers them again, and failed ones "+
			"may have been published as well, to be retried, parked or forwarded", "queue",
			r.acknowledger.consumer.Queue, "messages", n)
	}
}

// prepareAgain declares the exchanges and queues that failed messages need once more when this is not the first
// connection: the queue may be another of the same name, without bindings. Until that was tried (see prepared) no
// failure is published; an alarm may delay it for long, and successful messages must not wait for it.
func (r *run) prepareAgain(ctx context.Context) (prepared <-chan struct{}) {
	done := make(chan struct{})
	if !r.reconnected {
		r.reconnected = true
		close(done)
		return done
	}
	go func() {
		defer close(done)
		if err := r.acknowledger.prepare(ctx); err != nil && ctx.Err() == nil {
			r.client.config.Log.Error("cannot declare the exchanges and queues that failed messages need; consuming "+
				"all the same", "queue", r.acknowledger.consumer.Queue, "error", err)
		}
	}()
	return done
}

// work attempts one message after the other, until there are no more.
func (r *run) work(sub subscription) {
	if r.handle == nil {
		r.workBatches(sub)
		return
	}
	for {
		d, a, ok := r.receive(sub)
		if !ok {
			return
		}
		r.attempt(sub, &d, a)
	}
}

// receive waits for a message and judges it; ok is false when there are no more. One worker at a
// time does, so that messages are judged in the order in which RabbitMQ delivers them: of several at
// the limit the first one is at fault, since those before it were acknowledged.
func (r *run) receive(sub subscription) (d amqp.Delivery, a attempt, ok bool) {
	if !r.mayReceive(sub) {
		return d, a, false
	}
	defer func() { <-sub.receiving }()
	select {
	case <-r.consumeCtx.Done():
	case <-sub.Ended:
	case d, ok = <-sub.In:
		// A select may receive a message although another case is ready too.
		if ok = ok && r.consumeCtx.Err() == nil && !sub.ended(); ok {
			r.judge(&a, &d)
		}
	}
	return d, a, ok
}

// mayReceive waits until no other worker receives, and reports false when there is no more to receive.
func (r *run) mayReceive(sub subscription) bool {
	select {
	case sub.receiving <- struct{}{}:
		return true
	case <-r.consumeCtx.Done():
	case <-sub.Ended:
	}
	return false
}

// ended reports that RabbitMQ has requeued the deliveries.
func (sub *subscription) ended() bool {
	select {
	case <-sub.Ended:
		return true
	default:
		return false
	}
}

// finish waits for the workers, and returns an error when some did not return.
func (r *run) finish() error {
	busy := 0
	for range cap(r.slots) {
		select {
		case r.slots <- struct{}{}:
			continue
		default:
		}
		select {
		case r.slots <- struct{}{}:
		case <-r.waitCtx.Done():
			busy++
		}
	}
	if busy == 0 {
		return nil
	}
	return fmt.Errorf("redrive: %d of %d handlers of queue %q did not return when their context ended, %s after the "+
		"consumer was stopped, and are left behind; RabbitMQ delivers their messages again",
		busy, cap(r.slots), r.acknowledger.consumer.Queue, r.acknowledger.consumer.Shutdown)
}

// attempt is one try of the handler at a delivery, and how it ended.
type attempt struct {
	m               *Message
	number          int    // m.Attempt before the handler, which may change m
	cannotRepublish string // why it cannot be published again as it was; "" when it can
	failed          error
	unhandled       bool // it is parked without its handler: failed says why
	suspect         bool // its handler may have ended the process: it is handled alone
	took            time.Duration
}

// judge looks how often a delivery was delivered before, where that is not what the policy counts.
func (r *run) judge(a *attempt, d *amqp.Delivery) {
	if !r.acknowledger.limits.QueueCounts {
		r.deliveries.judge(a, d)
	}
}

// begin reads a delivery that was judged. One that cannot be published again is passed to no handler.
func (r *run) begin(sub subscription, d *amqp.Delivery, a *attempt) {
	a.m = message(d, r.acknowledger.consumer.Queue, r.acknowledger.limits.QueueCounts)
	a.cannotRepublish = sub.CannotRepublish(d)
	a.number = a.m.Attempt
	sub.unsettled.Add(1)
	r.acknowledger.checkEarly(a.m)
	if a.cannotRepublish != "" {
		a.failed, a.unhandled, a.suspect = errors.New(a.cannotRepublish), true, false
	}
}

// attempt calls the handler with one delivery and ends it.
func (r *run) attempt(sub subscription, d *amqp.Delivery, a attempt) {
	r.begin(sub, d, &a)
	if a.unhandled {
		r.end(sub, d, &a)
		return
	}
	r.deliveries.enter(a.suspect)
	began := time.Now()
	a.failed = callHandler(r.handleCtx, r.acknowledger.consumer.Timeout, r.handle, a.m)
	a.took = time.Since(began)
	r.leaveAndEnd(sub, d, &a)
}

// leaveAndEnd lets other messages be handled after one, and ends it. A suspect that succeeded ends first, and RabbitMQ
// must know: the next one may end the process. One that failed would have the others wait until its copy is confirmed.
func (r *run) leaveAndEnd(sub subscription, d *amqp.Delivery, a *attempt) {
	cleared := a.suspect && a.failed == nil
	if !cleared {
		r.deliveries.leave(a.suspect)
	}
	r.end(sub, d, a)
	if a.suspect {
		sub.AwaitAcks()
	}
	if cleared {
		r.deliveries.leave(true)
	}
}

// end acknowledges the delivery of an attempt; if it failed, only once its copy is confirmed. The
// delivery is passed beside the attempt: as a field of it, it would be allocated for each message.
func (r *run) end(sub subscription, d *amqp.Delivery, a *attempt) {
	m := a.m
	outcome, err := Unsettled, error(nil)
	if a.failed == nil {
		outcome, err = outcomeOf(Succeeded, Unsettled, d.Ack(false))
	} else {
		f := failure{text: a.cannotRepublish}
		if a.cannotRepublish == "" {
			f = r.acknowledger.classify(a.failed)
		}
		if err = r.waitPrepared(sub); err == nil {
			outcome, err = r.acknowledger.acknowledge(sub.ctx, d, m, a.cannotRepublish, f)
		}
		r.logFailure(m, outcome, &f, err)
	}
	if err == nil {
		sub.unsettled.Add(-1)
	} else {
		r.logUnsettled(m, outcome, err)
	}
	queue := r.acknowledger.consumer.Queue
	count(r.client, queue, r.client.config.Metrics.Attempt,
		AttemptEvent{Queue: queue, Attempt: a.number, Outcome: outcome, Duration: a.took})
}

var (
	errLost  = errors.New("the connection was lost meanwhile")
	errEnded = errors.New("the time to stop ended first")
)

// waitPrepared waits until the exchanges and queues that failed messages need are declared. Its
// error is why the failure needs no copy: the message is in its queue again, or soon will be.
func (r *run) waitPrepared(sub subscription) error {
	select {
	case <-sub.prepared:
	case <-sub.ctx.Done():
	}
	if sub.ended() {
		return errLost
	}
	if r.handleCtx.Err() != nil {
		return errEnded
	}
	return nil
}

func (r *run) logOf(m *Message, o Outcome) *slog.Logger {
	return r.client.config.Log.With("queue", r.acknowledger.consumer.Queue, "id", m.ID, "message_id", m.MessageID,
		"attempt", m.Attempt, "outcome", o)
}

// logFailure logs a failure once, a panic with its stack. A payload is never logged.
func (r *run) logFailure(m *Message, o Outcome, f *failure, err error) {
	log := r.logOf(m, o)
	if f.panicked != nil {
		log.Error("a handler panicked", "panic", fmt.Sprint(f.panicked.Value), "stack", string(f.panicked.Stack))
	}
	if err != nil {
		return
	}
	level := slog.LevelInfo
	switch o {
	case Retried:
		level = slog.LevelDebug // a retry is normal
	case Parked:
		level = slog.LevelWarn // it waits for a person
	}
	log.Log(context.Background(), level, "an attempt failed", "error", f.text)
}

// logUnsettled logs why a message was not acknowledged. consume warns of all of a connection at once.
func (r *run) logUnsettled(m *Message, o Outcome, err error) {
	log := r.logOf(m, o)
	if errors.Is(err, wire.ErrUnacceptable) {
		log.Error("a failed message cannot be published, neither for its retry nor to redrive.parked: it stays "+
			"unacknowledged, counts in Consumer.Prefetch, and RabbitMQ delivers it again when the connection closes",
			"prefetch", r.acknowledger.consumer.Prefetch, "error", err)
		return
	}
	log.Debug("a message could not be acknowledged", "error", err)
}

// callHandler calls a handler once. A panic is an error.
func callHandler(ctx context.Context, timeout time.Duration, handle Handler, m *Message) (err error) {
	ctx, cancel := withTimeout(ctx, timeout)
	defer cancel()
	if p := catch(func() { err = handle(ctx, m) }); p != nil {
		return p
	}
	return err
}

// withTimeout returns a context that ends with ctx, and after timeout unless that is 0.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout > 0 {
		return context.WithTimeout(ctx, timeout)
	}
	return ctx, func() {}
}

const (
	defaultMaxDeliveries = 10
	// suspectFrom is after how many deliveries without an acknowledgement a message is handled alone.
	suspectFrom = 3
	// benefit is how many deliveries beyond the limit a message gets when another was parked at it:
	// RabbitMQ also counts messages that were only prefetched.
	benefit = 5
)

// deliveries finds messages whose handler may have ended the process before. Its methods are safe for concurrent use.
type deliveries struct {
	max    int64        // as Consumer.MaxDeliveries
	alone  sync.RWMutex // held for writing while a suspect is handled
	passed atomic.Bool  // a suspect's handler returned
	parked atomic.Bool  // a message reached max
}

// judge reads RabbitMQ's count. It counts only what RabbitMQ marks as redelivered: on the first
// delivery the header is a publisher's.
func (s *deliveries) judge(a *attempt, d *amqp.Delivery) {
	if !d.Redelivered {
		return
	}
	if _, counted := d.Headers["x-delivery-count"]; !counted { // a classic queue
		a.suspect = !s.passed.Load()
		return
	}
	limit := s.max
	if limit < 0 {
		limit = math.MaxInt64 - benefit
	}
	n := headers.Deliveries(d.Headers)
	if n >= limit && (!s.parked.Swap(true) || n >= limit+benefit) {
		a.failed, a.unhandled = fmt.Errorf("%w: %d times", ErrMaxDeliveries, n), true
		return
	}
	a.suspect = n >= min(suspectFrom, limit-1)
}

// enter waits until a handler may be called: a suspect's while no other one runs.
func (s *deliveries) enter(suspect bool) {
	if suspect {
		s.alone.Lock()
	} else {
		s.alone.RLock()
	}
}

func (s *deliveries) leave(suspect bool) {
	if suspect {
		s.passed.Store(true)
		s.alone.Unlock()
	} else {
		s.alone.RUnlock()
	}
}

// Batch has a consumer handle several messages at once. Size and Handler are required.
type Batch struct {
	// Size is the most messages of one call, from 1 to 65,535.
	Size int
	// Wait is how long the first message of a batch waits for more. The default is 1 s.
	Wait time.Duration
	// Handler handles a batch.
	Handler BatchHandler
}

// BatchHandler is one attempt at each of several messages, 1 to Batch.Size of them. It returns the errors of those that
// failed, by the very pointers it was called with; nil is a success of all. Each message is settled by itself: an error
// means for it what it means when a Handler returns it. A panic, or an error for a message that is not of the batch,
// fails all that have no error of their own.
//
// Different attempts at a message may be in different batches. When the consumer stops, a
// batch that is not full is handled at once. It must return when ctx ends.
type BatchHandler func(ctx context.Context, batch []*Message) map[*Message]error

var errNotOfBatch = errors.New("redrive: the batch handler returned an error for a message that is not of its batch")

// workBatches attempts one batch after the other, until there are no more messages. One worker
// at a time collects, or each would wait with a part of what has arrived.
func (r *run) workBatches(sub subscription) {
	b := r.acknowledger.consumer.Batch
	for r.mayReceive(sub) {
		deliveries := collect(r.consumeCtx, sub.In, sub.Ended, b.Size, b.Wait)
		all := make([]attempt, len(deliveries))
		for i := range all {
			r.judge(&all[i], &deliveries[i])
		}
		<-sub.receiving
		if len(deliveries) == 0 || sub.ended() {
			return
		}
		for i := range all {
			r.begin(sub, &deliveries[i], &all[i])
		}
		r.attemptBatch(sub, deliveries, all)
	}
}

// collect waits for a delivery, and from then on up to wait for size of them, not longer than
// ctx lasts. It returns none when nothing more is to be handled: after ended, and after the end
// of in, RabbitMQ delivers again what was collected.
func collect(
	ctx context.Context, in <-chan amqp.Delivery, ended <-chan struct{}, size int, wait time.Duration,
) (batch []amqp.Delivery) {
	var over <-chan time.Time
	for len(batch) < size {
		if ctx.Err() != nil { // a select may receive a message although ctx has ended
			return batch
		}
		select {
		case <-ctx.Done():
			return batch
		case <-ended:
			return nil
		case <-over:
			return batch
		case d, ok := <-in:
			if !ok {
				return nil
			}
			if batch = append(batch, d); len(batch) == 1 {
				over = time.After(wait)
			}
		}
	}
	return batch
}

// attemptBatch calls the handler with a batch and ends the attempt at each of its messages: that at
// a suspect before the next one is handled, which may end the process.
func (r *run) attemptBatch(sub subscription, deliveries []amqp.Delivery, all []attempt) {
	var batch []*attempt
	for i := range all {
		switch a := &all[i]; {
		case a.unhandled:
		case a.suspect:
			r.handleBatch([]*attempt{a}, func() { r.leaveAndEnd(sub, &deliveries[i], a) })
		default:
			batch = append(batch, a)
		}
	}
	if len(batch) > 0 {
		r.handleBatch(batch, func() { r.deliveries.leave(false) })
	}
	var ending sync.WaitGroup // each waits for its own confirm
	for i := range all {
		d, a := &deliveries[i], &all[i]
		switch {
		case a.suspect: // it has ended
		case a.failed == nil:
			r.end(sub, d, a)
		default:
			ending.Go(func() { r.end(sub, d, a) })
		}
	}
	ending.Wait()
}

// handleBatch calls the handler with messages that are all suspects, or none of them, and leave.
func (r *run) handleBatch(batch []*attempt, leave func()) {
	r.deliveries.enter(batch[0].suspect)
	began := time.Now()
	messages := make([]*Message, len(batch))
	for i, a := range batch {
		messages[i] = a.m
	}
	failed, other := callBatchHandler(r.handleCtx, r.acknowledger.consumer, messages)
	took := time.Since(began)
	for _, a := range batch {
		a.took = took
		if a.failed = failed[a.m]; a.failed == nil {
			a.failed = other
		}
	}
	leave()
}

// callBatchHandler calls a batch handler once.
func callBatchHandler(ctx context.Context, c Consumer, batch []*Message) (failed map[*Message]error, other error) {
	ctx, cancel := withTimeout(ctx, c.Timeout)
	defer cancel()
	known := make(map[*Message]bool, len(batch))
	for _, m := range batch {
		known[m] = true
	}
	var returned map[*Message]error
	if p := catch(func() { returned = c.Batch.Handler(ctx, batch) }); p != nil {
		return nil, p
	}
	failed = make(map[*Message]error, len(returned)) // the handler may keep its own
	for m, err := range returned {
		switch {
		case err == nil:
		case !known[m]:
			other = errNotOfBatch
		default:
			failed[m] = err
		}
	}
	return failed, other
}
