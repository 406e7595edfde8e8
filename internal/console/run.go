package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	firstRest   = 250 * time.Millisecond
	longestRest = 15 * time.Second
	// stepsASecond is how many steps of an operation with a rate there are at least
	// in a second, so that its messages do not come in bursts.
	stepsASecond = 10
)

// Run does until ctx ends what each replica does and, where there is but one, Lead.
func (c *Console) Run(ctx context.Context) error {
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { c.queues.keepFresh(ctx, c.Broker) })
	if c.Replicas == nil {
		c.Lead(ctx)
	}
	return nil
}

// Lead does operations until ctx ends, those first that were under way when the
// service, or the replica that did them, ended, and forgets what is old. What is
// under way then goes on at the next start, or at the next leader.
//
// One goroutine does all operations, a step of each in turn: one of a million
// messages holds up another by no more than a step, and they take no more of the
// store than one goroutine can.
func (c *Console) Lead(ctx context.Context) {
	var others sync.WaitGroup
	defer others.Wait()
	defer c.ops.looks.Wait()
	if c.Replicas != nil {
		c.ops.take(true)
		defer c.ops.take(false)
	}
	others.Go(func() { c.forgetting(ctx) })
	others.Go(func() { c.recounting(ctx) })
	for failing := false; ctx.Err() == nil; {
		var ready <-chan time.Time // nil: when something is announced
		if c.Replicas != nil {
			err := c.follow(ctx)
			if err != nil && !failing && ctx.Err() == nil && !deposed(err) {
				c.Log.Error("what was ordered at another replica is not done yet; trying again", "error", err)
			}
			failing = err != nil
		}
		at := c.round(ctx)
		if !at.IsZero() {
			ready = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
		case <-c.ops.wake:
		case <-ready:
		}
	}
}

// sooner is the earlier of two times, of which the zero time is none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// round does a step of each operation that is ready for one, and tells when the
// next of them is; the zero time: when something is announced.
func (c *Console) round(ctx context.Context) (next time.Time) {
	all, err := c.operations(ctx)
	if err != nil {
		if ctx.Err() == nil {
			c.Log.Error("operations cannot go on; trying again", "error", err)
		}
		return time.Now().Add(longestRest)
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		op := all[id]
		op.turn.Lock()
		var at time.Time
		if !c.ReadOnly {
			at = c.step(ctx, op)
		} else if op.active() {
			op.set(func() { op.trouble = "this service is read-only now; it goes on when it is not" })
		}
		op.turn.Unlock()
		if !at.IsZero() {
			next = sooner(next, at)
		}
	}
	return next
}

// step does one step of an operation if it is ready, and tells when it will be
// ready for the next; the zero time: never by itself. The caller has op.turn.
func (c *Console) step(ctx context.Context, op *operation) (next time.Time) {
	if op.unsure && time.Now().Before(op.next) {
		return op.next
	}
	if err := c.reread(ctx, op); err != nil {
		return c.failing(ctx, op, err)
	}
	p := &op.progress
	var err error
	switch ended := p.Ended != nil; {
	case ended && !p.Untold || !ended && p.State != Running && p.State != Canary:
		return time.Time{}
	case time.Now().Before(op.next):
		return op.next
	case ended: // the service ended before it was announced
		err = c.over(ctx, op)
	case p.State == Canary:
		op.next, err = c.watch(ctx, op)
	default:
		op.next, err = c.some(ctx, op)
	}
	if err == nil && p.Ended != nil && p.Untold {
		err = c.over(ctx, op)
	}
	if err != nil {
		return c.failing(ctx, op, err)
	}
	op.tries = 0
	op.set(func() { op.trouble = "" })
	return op.next
}

// failing says, once, that a step of an operation failed, and tells when to try again.
func (c *Console) failing(ctx context.Context, op *operation, err error) (next time.Time) {
	if ctx.Err() != nil || deposed(err) {
		return time.Time{}
	}
	if op.trouble == "" {
		c.Log.Warn("an operation cannot go on for now; trying again", "operation", op.ID, "error", err)
	}
	op.next = time.Now().Add(min(firstRest<<min(op.tries, 16), longestRest))
	op.tries++
	op.set(func() { op.trouble = err.Error() })
	return op.next
}

// reread reads how far an operation is, when a write of it failed that may have been done
// all the same: else its messages would be dealt with twice. It tells of what was done.
func (c *Console) reread(ctx context.Context, op *operation) error {
	if !op.unsure {
		return nil
	}
	value, err := c.Store.Entry(ctx, headPrefix+op.ID)
	if err != nil || value == nil {
		return err
	}
	is, err := c.readOperation(ctx, store.Entry{Name: headPrefix + op.ID, Value: value})
	if err != nil {
		return err
	}
	if at := op.progress.dealt(); is.progress.dealt() > at {
		if value, err = c.Store.Entry(ctx, outcomeName(op.ID, at)); err != nil {
			return err
		}
		var outcomes []Outcome
		if json.Unmarshal(value, &outcomes) == nil {
			c.tellOf(recordChange{verb: op.Verb, by: op.StartedBy, to: op.To}, outcomes)
		}
	}
	op.unsure = false
	if op.progress.State == "" && is.progress.State != "" {
		op.start(is.head, is.progress)
		c.ops.began(op.ID)
	} else {
		op.set(func() { op.progress = is.progress })
	}
	c.changed(op.ID)
	return nil
}

func outcomeName(id string, at int64) string {
	return fmt.Sprintf("%soutcome/%012d", partsOf(id), at)
}

// some deals with the next messages of an operation, as many as one step may.
func (c *Console) some(ctx context.Context, op *operation) (next time.Time, err error) {
	p := op.progress
	if p.dealt() == op.Count { // its last messages were the canary
		return c.put(ctx, op, Finished, "")
	}
	now := time.Now()
	frozen, wait, err := c.nextOf(ctx, op, now)
	switch {
	case err != nil || !wait.IsZero():
		return wait, err
	case len(frozen) == 0:
		return c.put(ctx, op, Stopped, "the list of its messages is damaged: make a new plan for what is left")
	}
	if why := c.lost(ctx, op, frozen); why != "" {
		return c.put(ctx, op, Stopped, why)
	}
	targets := make([]target, len(frozen))
	for i, f := range frozen {
		id, _, _ := f.Key.Parts()
		targets[i] = target{id: id.String(), queue: op.Queues[f.Queue].Queue, key: f.Key, state: f.State}
	}
	d := recordChange{verb: op.Verb, by: op.StartedBy, to: op.To, at: op.At, restorable: c.Restorable}
	var watched []sent
	if p.Done < int64(op.Canary) {
		d.sent = func(r *store.Record) {
			watched = append(watched, sentAs(r))
			c.ops.canaries.watch(op.ID, watched[len(watched)-1:]) // before it can fail
		}
	}
	outcomes, err := c.apply(ctx, d, targets, func(all []Outcome) (entries []store.Entry) {
		p, entries = op.account(all, watched, c.Now())
		return entries
	})
	switch {
	case err == nil:
		op.narrow = min(2*op.narrow, chunk)
	case c.wasDone(ctx, op):
		return now, nil
	case op.unsure || ctx.Err() != nil || errors.Is(err, store.ErrFull) || deposed(err):
		return next, err
	case len(targets) > 1: // one of them, perhaps: the others need not suffer
		op.narrow = len(targets) / 2
		return now, nil
	case op.tries < 2:
		return next, err
	default:
		t, entries := targets[0], []store.Entry(nil)
		outcomes = []Outcome{{ID: t.id, Key: string(t.key), Queue: t.queue, Outcome: failed, Why: err.Error(), At: c.Now()}}
		if p, entries = op.account(outcomes, nil, c.Now()); c.Store.PutEntries(ctx, entries) != nil {
			op.unsure = true
			return next, err
		}
	}
	c.dealt(op, p, now)
	c.tellOf(d, outcomes)
	return now, nil
}

// dealt notes how far an operation is, which is written.
func (c *Console) dealt(op *operation, p progress, now time.Time) {
	op.set(func() {
		op.progress = p
		op.forget(now)
		op.speed = append(op.speed, pace{now, p.dealt()})
	})
	c.changed(op.ID)
}

// nextOf are the messages of an operation's next step, or when that may be; none when
// their list is damaged.
func (c *Console) nextOf(ctx context.Context, op *operation, now time.Time) (next []frozen, wait time.Time, err error) {
	at := op.dealt()
	n := min(chunk, op.Count-at)
	if left := int64(op.Canary) - op.Done; left > 0 {
		n = min(n, left)
	}
	if op.Rate > 0 {
		n = min(n, max(1, int64(op.Rate/stepsASecond)))
		if op.limit == nil {
			op.limit = rate.NewLimiter(rate.Limit(op.Rate), int(max(1, int64(op.Rate/stepsASecond))))
		}
	}
	if op.narrow > 0 {
		n = min(n, int64(op.narrow))
	}
	all, err := c.readChunk(ctx, chunkName(op.ID, at/chunk))
	if err != nil || at%chunk >= int64(len(all)) {
		return nil, wait, err
	}
	next = all[at%chunk:]
	next = next[:min(n, int64(len(next)))]
	if op.limit != nil && !op.limit.AllowN(now, len(next)) {
		turn := op.limit.ReserveN(now, len(next))
		defer turn.CancelAt(now)
		return nil, now.Add(turn.DelayFrom(now)), nil
	}
	return next, wait, nil
}

// wasDone tells whether a step that failed was done all the same; op.unsure stays while
// that is not known.
func (c *Console) wasDone(ctx context.Context, op *operation) bool {
	at := op.progress.dealt()
	op.unsure = true
	return c.reread(ctx, op) == nil && op.progress.dealt() > at
}

// account is how far an operation is with some more outcomes, and what is written
// of it.
func (op *operation) account(all []Outcome, watched []sent, now time.Time) (progress, []store.Entry) {
	p := op.progress
	at := p.dealt()
	for _, o := range all {
		switch o.Outcome {
		case done:
			p.Done++
		case skipped:
			p.Skipped++
		default:
			p.Fails++
		}
	}
	canary := int64(op.Canary)
	switch dealt := p.dealt(); {
	case op.progress.Done < canary && (p.Done == canary || dealt == op.Count):
		p.State = Canary
	case dealt == op.Count:
		p.State, p.Ended = Finished, &now
	}
	entries := []store.Entry{entryOf(partsOf(op.ID)+"progress", p), entryOf(outcomeName(op.ID, at), all)}
	if len(watched) > 0 {
		entries = append(entries, entryOf(fmt.Sprintf("%scanary/%012d", partsOf(op.ID), at), watched))
	}
	return p, entries
}

// put writes that an operation is in another state.
func (c *Console) put(ctx context.Context, op *operation, state, why string) (time.Time, error) {
	p := op.progress
	p.State, p.Why = state, why
	if state == Finished || state == Stopped {
		now := c.Now()
		p.Ended = &now
	}
	if err := c.Store.PutEntries(ctx, []store.Entry{entryOf(partsOf(op.ID)+"progress", p)}); err != nil {
		op.unsure = true
		return time.Time{}, err
	}
	op.set(func() { op.progress = p })
	c.changed(op.ID)
	return time.Now(), nil
}

// lost is why messages have nowhere to go any more, or "". That RabbitMQ does not
// say is no reason: they wait then until it takes them.
func (c *Console) lost(ctx context.Context, op *operation, of []frozen) string {
	ask := map[string]bool{}
	switch op.Verb {
	case Replay:
		for _, f := range of {
			ask[op.Queues[f.Queue].Queue] = true
		}
	case Copy:
		ask[op.To] = true
	}
	for queue := range ask {
		if _, ok := c.policies().Match(queue); !ok && op.Verb == Replay && c.Config.Policies != nil {
			return fmt.Sprintf("no policy allows the queue %q any more; what is left is as it was", queue)
		}
		if c.isGone(ctx, op, queue) {
			return fmt.Sprintf("the queue %q does not exist any more; what is left is as it was", queue)
		}
	}
	return ""
}

// over writes the last line of an ended operation to the audit log. It stands
// there once or, when the service ends in between, twice. The caller has op.turn.
func (c *Console) over(ctx context.Context, op *operation) error {
	c.ops.ended(op.ID)
	c.ops.canaries.forget(op.ID)
	p := op.progress
	end, err := c.begin(op.StartedAs, "operation.end", op.ID, op.Count, p.Why)
	if err != nil {
		return err
	}
	end(nil, p.Done)
	p.Untold = false
	if err := c.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{entryOf(partsOf(op.ID)+"progress", p)}); err != nil {
		op.unsure = true
		return err
	}
	op.set(func() { op.progress = p })
	c.changed(op.ID)
	c.Log.Info("an operation has ended", "operation", op.ID, "state", p.State, "done", p.Done, "skipped", p.Skipped, "of", op.Count)
	return nil
}
