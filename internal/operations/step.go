package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	minBackoff = 250 * time.Millisecond
	maxBackoff = 15 * time.Second
	// stepsASecond is the least number of steps per second of an operation with a rate, so
	// that its messages are not retried in bursts.
	stepsASecond = 10
)

// Run runs operations until ctx ends, also those that were running when the service ended. What is
// still running then continues at the next start, or at another replica.
//
// One goroutine runs all operations, a step of each in turn: one of a million messages
// delays another by no more than a step, and together they use the store no more than one
// goroutine can. A second one runs adoptions and unadoptions, since they wait for RabbitMQ.
func (r *Runner) Run(ctx context.Context) {
	var others sync.WaitGroup
	defer others.Wait()
	if !r.shared() {
		others.Go(func() { r.Lead(ctx) })
	}
	others.Go(func() {
		r.run(ctx, adoptions)
		r.closeSources()
	})
	r.run(ctx, records)
}

// The two loops, by what they run.
const (
	records   = 0 // operations on messages that are kept
	adoptions = 1
)

// loop is the one that runs the operation.
func (op *operation) loop() int {
	if op.Verb == actions.Adopt || op.Verb == actions.Unadopt {
		return adoptions
	}
	return records
}

func (r *Runner) run(ctx context.Context, of int) {
	for failing := false; ctx.Err() == nil; {
		at, err := r.round(ctx, of)
		if err != nil && !failing && ctx.Err() == nil && of == records { // both loops read the same store
			r.log.Error("operations cannot continue; trying again", "error", err)
		}
		failing = err != nil
		var ready <-chan time.Time // nil: not before Wake
		if !at.IsZero() {
			ready = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
		case <-r.wake[of]:
		case <-ready:
		}
	}
}

// sooner is the earlier of two times, of which the zero time is none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// round does a step of each operation that is ready for one, and returns when the next
// operation is; the zero time: not before Wake.
func (r *Runner) round(ctx context.Context, of int) (next time.Time, err error) {
	if err := r.readStale(ctx, of); err != nil {
		return time.Now().Add(maxBackoff), err
	}
	all, err := r.operations(ctx)
	if err != nil {
		return time.Now().Add(maxBackoff), err
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		op := all[id]
		if op.loop() != of {
			continue
		}
		if op.stepping.Acquire(ctx, 1) != nil {
			return next, nil // ctx has ended
		}
		if !r.Inspect.ReadOnly {
			next = sooner(next, sooner(r.step(ctx, op), r.countAgain(ctx, op)))
		} else if op.active() {
			op.set(func() { op.trouble = "this service is read-only now; the operation continues when it is not" })
		}
		op.stepping.Release(1)
	}
	return next, nil
}

// step does one step of an operation if it is ready, and returns when it is ready for the
// next; the zero time: never by itself. The caller has op.stepping.
func (r *Runner) step(ctx context.Context, op *operation) (next time.Time) {
	if op.uncertain {
		if time.Now().Before(op.next) {
			return op.next
		}
		if err := r.reread(ctx, op); err != nil {
			return r.failing(ctx, op, err)
		}
	}
	p := &op.progress
	ended := p.Ended != nil
	if ended && !p.Unlogged || !ended && p.State != Running && p.State != Watching {
		return time.Time{}
	}
	if time.Now().Before(op.next) {
		return op.next
	}
	if r.shared() && op.term == 0 {
		if !r.orphaned(op) {
			return time.Time{}
		}
		if err := r.take(ctx, op); err != nil {
			return r.failing(ctx, op, err)
		}
		return time.Now() // it may have got further
	}
	ctx = r.inTerm(ctx, op)
	var err error
	switch {
	case ended: // the service ended before it was logged
		err = r.logEnd(ctx, op)
	case p.State == Watching:
		op.next, err = r.checkCanaries(ctx, op)
	case op.Verb == actions.Adopt:
		op.next, err = r.adoptNext(ctx, op)
	case op.Verb == actions.Unadopt:
		op.next, err = r.unadoptNext(ctx, op)
	default:
		op.next, err = r.processNext(ctx, op)
	}
	if err == nil && p.Ended != nil && p.Unlogged {
		err = r.logEnd(ctx, op)
	}
	if err != nil {
		return r.failing(ctx, op, err)
	}
	op.tries = 0
	op.set(func() { op.trouble = "" })
	return op.next
}

// failing logs, once, that a step of an operation failed, and returns when to try again.
func (r *Runner) failing(ctx context.Context, op *operation, err error) (next time.Time) {
	switch {
	case ctx.Err() != nil || errors.Is(err, inspect.ErrNotFound):
		return time.Time{}
	case deposed(err):
		op.lose()
		return time.Now()
	}
	if op.trouble == "" {
		r.log.Warn("an operation cannot continue for now; trying again", "operation", op.ID, "error", err)
	}
	op.next = time.Now().Add(min(minBackoff<<min(op.tries, 16), maxBackoff))
	op.tries++
	op.set(func() { op.trouble = err.Error() })
	return op.next
}

// announceLost announces what a step has done whose answer was lost; is is the operation as the store
// has it. Until then its messages could be processed twice.
func (r *Runner) announceLost(ctx context.Context, op, is *operation) error {
	if !op.uncertain {
		return nil
	}
	if at := op.processed(); is.processed() > at {
		value, err := r.Store.Entry(ctx, outcomeName(op.ID, at))
		if err != nil {
			return err
		}
		var outcomes []actions.Outcome
		if json.Unmarshal(value, &outcomes) == nil {
			r.Actions.Announce(actions.RecordChange{Verb: op.Verb, By: op.StartedBy, To: op.To}, outcomes)
		}
	}
	op.uncertain = false
	r.changed(op.ID)
	return nil
}

func outcomeName(id string, at int64) string {
	return fmt.Sprintf("%soutcome/%012d", partsOf(id), at)
}

// listDamaged is why an operation stops that does not find its next messages.
const listDamaged = "the list of its messages is damaged: make a new plan for what is left"

// processNext processes the next messages of an operation, as many as one step may.
func (r *Runner) processNext(ctx context.Context, op *operation) (next time.Time, err error) {
	p := op.progress
	if p.processed() == op.Count { // its last messages were the canaries
		return r.saveState(ctx, op, Finished, "")
	}
	now := time.Now()
	frozen, readyAt, err := r.nextOf(ctx, op, now)
	switch {
	case err != nil || !readyAt.IsZero():
		return readyAt, err
	case len(frozen) == 0:
		return r.saveState(ctx, op, Stopped, listDamaged)
	}
	if why := r.missingTarget(ctx, op, frozen); why != "" {
		return r.saveState(ctx, op, Stopped, why)
	}
	refs := make([]actions.MessageRef, len(frozen))
	for i, f := range frozen {
		id, _, _ := f.Key.Parts()
		refs[i] = actions.MessageRef{ID: id.String(), Queue: op.Queues[f.Queue].Queue, Key: f.Key, State: f.State}
	}
	c := actions.RecordChange{Verb: op.Verb, By: op.StartedBy, To: op.To, At: op.At}
	var canaries []canary
	if p.Done < int64(op.CanarySize) {
		c.Changed = func(m *store.Record) {
			canaries = append(canaries, canaryOf(m))
			r.canaryFailures.add(op.ID, canaries[len(canaries)-1:]) // before it can fail
		}
	}
	outcomes, err := r.Actions.Apply(ctx, c, refs, func(all []actions.Outcome) (entries []store.Entry) {
		r.watchReplayed(op, all) // before they can fail
		p, entries = op.withOutcomes(all, canaries, r.now())
		return entries
	})
	switch {
	case err == nil:
		op.stepLimit = min(2*op.stepLimit, chunk)
	case r.wasDone(ctx, op) || r.shared() && op.term == 0: // or another replica has it now
		return now, nil
	case op.uncertain || ctx.Err() != nil || errors.Is(err, store.ErrFull) || deposed(err):
		return next, err
	case len(refs) > 1: // perhaps because of one of them: the others continue without it
		op.stepLimit = len(refs) / 2
		return now, nil
	case op.tries < 2:
		return next, err
	default:
		m, entries := refs[0], []store.Entry(nil)
		outcomes = []actions.Outcome{{ID: m.ID, Key: string(m.Key), Queue: m.Queue, Outcome: actions.Failed,
			Why: err.Error(), At: r.now()}}
		if p, entries = op.withOutcomes(outcomes, nil, r.now()); r.Store.PutEntries(ctx, entries) != nil {
			op.uncertain = true
			return next, err
		}
	}
	r.noteProgress(op, p, now)
	r.Actions.Announce(c, outcomes)
	return now, nil
}

// noteProgress notes how far an operation is, which is written.
func (r *Runner) noteProgress(op *operation, p progress, now time.Time) {
	op.set(func() {
		op.progress = p
		op.notePace(now)
	})
	r.changed(op.ID)
}

// nextOf returns the messages of an operation's next step or, where its rate does not allow that
// yet, when it will; neither when their list is damaged.
func (r *Runner) nextOf(
	ctx context.Context, op *operation, now time.Time,
) (next []frozen, readyAt time.Time, err error) {
	at := op.processed()
	n := min(chunk, op.Count-at)
	if left := int64(op.CanarySize) - op.Done; left > 0 {
		n = min(n, left)
	}
	n = min(n, op.maxByRate())
	if op.stepLimit > 0 {
		n = min(n, int64(op.stepLimit))
	}
	all, err := r.readChunk(ctx, chunkName(op.ID, at/chunk))
	if err != nil || at%chunk >= int64(len(all)) {
		return nil, readyAt, err
	}
	next = all[at%chunk:]
	next = next[:min(n, int64(len(next)))]
	if readyAt = op.allows(now, len(next)); !readyAt.IsZero() {
		return nil, readyAt, nil
	}
	return next, readyAt, nil
}

// maxByRate is how many messages one step may process at its rate.
func (op *operation) maxByRate() int64 {
	if op.Rate <= 0 {
		return chunk
	}
	return max(1, int64(op.Rate/stepsASecond))
}

// allows takes n messages, at most maxByRate, out of its rate; otherwise it returns when there is room.
func (op *operation) allows(now time.Time, n int) (readyAt time.Time) {
	if op.limit == nil && op.Rate > 0 {
		op.limit = rate.NewLimiter(rate.Limit(op.Rate), int(op.maxByRate()))
	}
	if op.limit == nil || op.limit.AllowN(now, n) {
		return readyAt
	}
	reserved := op.limit.ReserveN(now, n)
	defer reserved.CancelAt(now)
	return now.Add(reserved.DelayFrom(now))
}

// wasDone reports whether a step that returned an error was done; op.uncertain stays true while
// that is not known.
func (r *Runner) wasDone(ctx context.Context, op *operation) bool {
	at := op.progress.processed()
	op.uncertain = true
	return r.reread(ctx, op) == nil && op.progress.processed() > at
}

// withOutcomes returns the progress of an operation with more outcomes, and what is
// written of it.
func (op *operation) withOutcomes(all []actions.Outcome, canaries []canary, now time.Time) (progress, []store.Entry) {
	p := op.progress
	at := p.processed()
	for _, o := range all {
		switch o.Outcome {
		case actions.Done:
			p.Done++
		case actions.Skipped:
			p.Skipped++
		default:
			p.Fails++
		}
	}
	first := int64(op.CanarySize)
	switch processed := p.processed(); {
	case op.progress.Done < first && (p.Done == first || processed == op.Count):
		p.State, p.Pending = Watching, p.Done
	case processed == op.Count:
		p.State, p.Ended = Finished, &now
	}
	entries := []store.Entry{p.entry(op.ID), entryOf(outcomeName(op.ID, at), all)}
	if len(canaries) > 0 {
		entries = append(entries, entryOf(fmt.Sprintf("%scanary/%012d", partsOf(op.ID), at), canaries))
	}
	return p, entries
}

func (r *Runner) saveState(ctx context.Context, op *operation, state, why string) (time.Time, error) {
	p := op.progress
	p.State, p.Why = state, why
	if state == Finished || state == Stopped {
		now := r.now()
		p.Ended = &now
	}
	return time.Now(), r.putProgress(ctx, op, p)
}

// putProgress writes an operation's progress, after other entries in the same step. The caller has op.stepping.
func (r *Runner) putProgress(ctx context.Context, op *operation, p progress, others ...store.Entry) error {
	if err := r.Store.PutEntries(ctx, append(others, p.entry(op.ID))); err != nil {
		op.uncertain = true
		return err
	}
	op.set(func() { op.progress = p })
	r.changed(op.ID)
	return nil
}

// missingTarget is why messages can no longer be published, or "". That RabbitMQ does not
// answer is no reason: the messages wait then.
func (r *Runner) missingTarget(ctx context.Context, op *operation, of []frozen) string {
	var queues []string
	switch {
	case op.Verb.Retries():
		for _, f := range of {
			queues = append(queues, op.Queues[f.Queue].Queue)
		}
		slices.Sort(queues)
		queues = slices.Compact(queues)
	case op.Verb.Info().ToQueue:
		queues = []string{op.To}
	}
	at := r.Inspect.LatelyAtBroker(ctx, queues)
	for _, queue := range queues {
		if op.Verb.Retries() && !r.Inspect.HasPolicy(queue) {
			return fmt.Sprintf("no policy allows the queue %q any more; what is left is as it was", queue)
		}
		if q, known := at[queue]; !known || q.Exists {
			continue
		}
		// It may have been declared since: that answer is some seconds old.
		if q, err := r.Inspect.AtBroker(ctx, queue); err == nil && !q.Exists {
			return fmt.Sprintf("the queue %q does not exist any more; what is left is as it was", queue)
		}
	}
	return ""
}

// outcome says for the audit log how an operation ended.
func (p *progress) outcome() string {
	how := p.State
	if how == Finished {
		how = "done"
	}
	switch {
	case strings.HasPrefix(p.Why, how): // canceled by somebody
		return p.Why
	case p.Why != "":
		return how + ": " + p.Why
	}
	return how
}

// logEnd writes the last line of an ended operation to the audit log. It stands
// there once or, when the service ends in between, twice. The caller has op.stepping.
func (r *Runner) logEnd(ctx context.Context, op *operation) error {
	p := op.progress
	if !p.counts() {
		r.canaryFailures.remove(op.ID)
	}
	op.walk.next = time.Time{} // its counts are read with its end
	end, err := r.Actions.BeginLine(op.StartedAs, "operation.end", op.audited(), op.Count, op.head.Reason,
		op.About)
	if err != nil {
		return err
	}
	end(p.outcome(), p.Done)
	p.Unlogged = false
	if err := r.putProgress(context.WithoutCancel(ctx), op, p); err != nil {
		return err
	}
	r.log.Info("an operation has ended", "operation", op.ID, "state", p.State, "done", p.Done, "skipped", p.Skipped,
		"of", op.Count)
	return nil
}
