package operations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// Target is a dead-letter queue that messages are put back into.
type Target struct {
	Refused  string   // why nothing is put into it
	Doubt    string   // why only a person who is sure may do so
	Warnings []string // what becomes of messages in it
	// Room is how many more messages fit before it drops its oldest; negative: it never does, or that is not
	// known.
	Room int64
}

// Sink puts messages into a queue. Its methods are called from one goroutine.
type Sink interface {
	// Put publishes messages in order, and returns RabbitMQ's answer to each: see broker.Putter.
	Put(ctx context.Context, all []wire.Message) []error
	Close()
}

// planUnadoption plans to put back the messages that are still parked from a dead-letter queue. It touches nothing.
func (r *Runner) planUnadoption(ctx context.Context, by auth.Caller, q PlanRequest) (Plan, error) {
	if err := checkNames(q.To); err != nil {
		return Plan{}, err
	}
	if q.Query != "" || q.At != nil || q.From != "" || len(q.WorkQueues) > 0 || q.Limit != 0 {
		return Plan{}, fmt.Errorf("%w: unadopt takes the queue (to), and no query, time, limit or other queue",
			inspect.ErrInvalid)
	}
	if err := r.Actions.Permit(by, q.Verb.Info().Role, "plan.unadopt", q.To, q.To); err != nil {
		return Plan{}, err
	}
	is, err := r.DeadLetters.Target(ctx, q.To)
	if err != nil {
		return Plan{}, err
	}
	q.Query = "state:parked adopted:" + query.Quote(q.To)
	upto, err := r.Store.NewestNumber(ctx)
	if err != nil {
		return Plan{}, err
	}
	expiring := 0
	err = r.Inspect.Find(ctx, by, q.Query, upto, func(l store.Listed) (bool, error) {
		if m := retry.AsItCame(l.Record); m.Expiration != "" {
			expiring++
		}
		return true, nil
	})
	if err != nil {
		return Plan{}, err
	}
	c := actions.RecordChange{Verb: q.Verb, By: by.Name, To: q.To}
	return r.planFound(ctx, by, c, q, func(p *Plan) {
		switch {
		case is.Refused != "":
			p.Blocked = append(p.Blocked, is.Refused)
		case is.Doubt != "" && !q.EvenWithConsumers:
			p.Blocked = append(p.Blocked, is.Doubt+"; to put them back anyway, set even_with_consumers")
		case is.Doubt != "":
			p.Warnings = append(p.Warnings, is.Doubt)
		}
		if is.Room >= 0 && p.Count > is.Room {
			p.Blocked = append(p.Blocked, fmt.Sprintf("the queue %q drops its oldest messages when it is full, "+
				"and has room for %d: give it a larger max-length, or the overflow reject-publish", q.To, is.Room))
		}
		p.Warnings = append(p.Warnings, is.Warnings...)
		if expiring > 0 {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%d of the messages have an expiration of their own, "+
				"which begins again", expiring))
		}
	})
}

// meets returns the dead-letter queue that h and an operation would take from and put into at the same time;
// "": there is none.
func (h *head) meets(op *operation) string {
	queueOf := func(p *Plan) string {
		switch p.Verb {
		case actions.Adopt:
			return p.From
		case actions.Unadopt:
			return p.To
		}
		return ""
	}
	queue := queueOf(&h.Plan)
	if queue != queueOf(&op.Plan) || h.Verb != actions.Unadopt && op.Verb != actions.Unadopt {
		return ""
	}
	return queue
}

const (
	// maxPut is how many messages are published before their answers are waited for.
	maxPut = 256
	// heldFor is how long nothing else is done to a message that is being put back: longer than
	// broker.Putter waits for RabbitMQ.
	heldFor = 2 * time.Minute
)

// putBack is a message of the window that is being put back.
type putBack struct {
	key     store.Key
	outcome actions.Outcome
	done    bool // outcome counts; otherwise its turn comes again
}

// unadoptNext puts the next messages back: they are held, so that a person does not replay them meanwhile, published,
// and deleted once RabbitMQ has confirmed them. A crash before that puts them back again.
func (r *Runner) unadoptNext(ctx context.Context, op *operation) (next time.Time, err error) {
	if len(op.window) > 0 { // before anything else is published
		return time.Now(), r.finishWindow(ctx, op)
	}
	now := time.Now()
	op.stepLimit = maxPut
	frozen, readyAt, err := r.nextOf(ctx, op, now)
	switch {
	case err != nil || !readyAt.IsZero():
		return readyAt, err
	case len(frozen) == 0:
		return r.saveState(ctx, op, Stopped, listDamaged)
	}
	if op.sink == nil {
		if op.sink, err = r.DeadLetters.OpenTarget(ctx, op.To); err != nil {
			op.sink = nil
			return r.putFailed(ctx, op, err)
		}
	}
	messages, at, err := r.hold(ctx, op, frozen)
	if err != nil {
		return next, err
	}
	step, cancel := context.WithCancel(ctx)
	defer cancel()
	op.set(func() { op.interrupt = cancel })
	failed := op.put(step, messages, at, r.now())
	if err := r.finishWindow(context.WithoutCancel(ctx), op); err != nil {
		return next, err
	}
	switch {
	case failed == nil:
		return time.Now(), nil
	case step.Err() != nil && ctx.Err() == nil: // a person's order does not wait for it
		op.closeSource()
		return time.Now(), nil
	}
	return r.putFailed(ctx, op, failed)
}

// hold makes messages the window, held so that nothing else is done to them. It returns those that can be
// published, and the index of each in the window.
func (r *Runner) hold(ctx context.Context, op *operation, all []frozen) (messages []wire.Message, at []int, err error) {
	c := actions.RecordChange{Verb: op.Verb, By: op.StartedBy, To: op.To}
	now := r.now()
	keys := make([]store.Key, len(all))
	for i, f := range all {
		keys[i] = f.Key
	}
	window := make([]putBack, 0, len(all))
	edit := func(key store.Key, m *store.Record) store.Edit {
		id, _, _ := key.Parts()
		o := actions.Outcome{ID: id.String(), Key: string(key), Queue: op.Queues[all[len(window)].Queue].Queue,
			Outcome: actions.Skipped, Why: r.Actions.Skip(c, m), At: now}
		if m != nil && m.Unreadable != nil {
			o.Outcome, o.Why = actions.Failed, m.Unreadable.Error()
		}
		window = append(window, putBack{key: key, outcome: o, done: o.Why != ""})
		if o.Why != "" {
			return store.Edit{}
		}
		messages, at = append(messages, retry.AsItCame(m)), append(at, len(window)-1)
		m.HeldUntil = now.Add(heldFor)
		return store.Edit{Keep: true}
	}
	n, err := r.Actions.Store.Change(ctx, keys, edit, nil)
	if err != nil {
		return nil, nil, err
	}
	op.window = window[:n]
	return messages, at, nil
}

// put publishes messages of the window and notes the outcomes. It returns why their order, or the operation,
// cannot go on.
func (op *operation) put(ctx context.Context, messages []wire.Message, at []int, now time.Time) (failed error) {
	last := -1 // of those that were put back, or cannot be
	for i, err := range op.sink.Put(ctx, messages) {
		w := &op.window[at[i]]
		w.outcome.Why, w.outcome.At = "", now
		switch {
		case err == nil:
			w.outcome.Outcome, last = actions.Done, at[i]
		case errors.Is(err, wire.ErrUnacceptable):
			w.outcome.Outcome, w.outcome.Why, last = actions.Failed, err.Error(), at[i]
		default:
			w.outcome.Outcome, w.outcome.Why = actions.Failed, err.Error()
			failed = err
		}
	}
	for i := range op.window {
		op.window[i].done = failed == nil || i <= last
	}
	return failed
}

// finishWindow deletes what was put back, and no longer holds the rest. Until it has succeeded, nothing more
// is published.
func (r *Runner) finishWindow(ctx context.Context, op *operation) error {
	keys := make([]store.Key, len(op.window))
	for i, w := range op.window {
		keys[i] = w.key
	}
	i, now := 0, r.now()
	edit := func(_ store.Key, m *store.Record) store.Edit {
		w := op.window[i]
		i++
		switch {
		case m == nil || m.Unreadable != nil:
			return store.Edit{}
		case w.outcome.Outcome == actions.Done:
			return store.Edit{Delete: true, Forwarded: now}
		case m.HeldUntil.IsZero():
			return store.Edit{}
		}
		m.HeldUntil = time.Time{}
		return store.Edit{Keep: true}
	}
	var p progress
	var outcomes []actions.Outcome
	n, err := r.Actions.Store.Change(ctx, keys, edit, func(n int) []store.Entry {
		outcomes = nil
		for _, w := range op.window[:n] {
			if w.done {
				outcomes = append(outcomes, w.outcome)
			}
		}
		if outcomes == nil {
			return nil
		}
		var entries []store.Entry
		p, entries = op.withOutcomes(outcomes, nil, now)
		return entries
	})
	if err != nil {
		return err
	}
	if op.window = op.window[n:]; outcomes != nil {
		r.noteProgress(op, p, time.Now())
		r.Actions.Announce(actions.RecordChange{Verb: op.Verb, By: op.StartedBy, To: op.To}, outcomes)
	}
	if len(op.window) > 0 {
		return r.finishWindow(ctx, op)
	}
	return nil
}

// putFailed stops an operation whose queue takes no more messages, and tries others again.
func (r *Runner) putFailed(ctx context.Context, op *operation, err error) (time.Time, error) {
	op.closeSource()
	switch {
	case ctx.Err() != nil || deposed(err):
		return time.Time{}, err
	case op.Ended != nil: // the last of them failed
		return time.Time{}, nil
	case errors.Is(err, wire.ErrForbidden):
		err = fmt.Errorf("%w (redrive permissions --adopt prints the rights that it needs)", err)
	case errors.Is(err, wire.ErrQueueGone), errors.Is(err, wire.ErrExclusive), errors.Is(err, wire.ErrNacked):
	default:
		return time.Time{}, err
	}
	return r.saveState(ctx, op, Stopped, err.Error()+"; what is left is parked as it was")
}
