package operations

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	minBackoff = 250 * time.Millisecond
	maxBackoff = 15 * time.Second
	// stepsASecond is the least number of steps per second of an operation with a rate, so
	// that its messages are not retried in bursts.
	stepsASecond = 10
)

// Run is Lead where the store cannot be shared. Where it can, Run does nothing: the cluster calls
// Lead.
func (r *Runner) Run(ctx context.Context) {
	if !r.shared() {
		r.Lead(ctx)
	}
}

// Lead runs operations until ctx ends, also those that were running when the service, or the
// leader before, ended; and deletes discarded messages whose time to be restored is over, and old
// plans and operations. What is still running when ctx
// ends continues at the next start, or at the next leader.
//
// One goroutine runs all operations, a step of each in turn: one of a million messages
// delays another by no more than a step, and together they use the store no more than one
// goroutine can.
func (r *Runner) Lead(ctx context.Context) {
	var forgetting sync.WaitGroup
	defer forgetting.Wait()
	if r.shared() {
		r.setLeads(true)
		defer r.setLeads(false)
	}
	forgetting.Go(func() { r.forgetting(ctx) })
	for failing := false; ctx.Err() == nil; {
		var ready <-chan time.Time // nil: not before Wake
		if r.shared() {
			err := r.executeOrders(ctx)
			if err != nil && !failing && ctx.Err() == nil && !deposed(err) {
				r.log.Error("what was ordered at another replica is not done yet; trying again", "error", err)
			}
			failing = err != nil
		}
		at := r.round(ctx)
		if !at.IsZero() {
			ready = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
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

// round does a step of each operation that is ready for one, and returns when the next
// operation is; the zero time: not before Wake.
func (r *Runner) round(ctx context.Context) (next time.Time) {
	all, err := r.operations(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.log.Error("operations cannot continue; trying again", "error", err)
		}
		return time.Now().Add(maxBackoff)
	}
	r.watchFailures(all)
	for _, id := range slices.Sorted(maps.Keys(all)) {
		op := all[id]
		if op.stepping.Acquire(ctx, 1) != nil {
			return next // ctx has ended
		}
		var at time.Time
		if !r.Inspect.ReadOnly {
			at = r.step(ctx, op)
			if again := r.checkAgain(ctx, op); !again.IsZero() {
				at = sooner(at, again)
			}
		} else if op.active() {
			op.set(func() { op.trouble = "this service is read-only now; the operation continues when it is not" })
		}
		op.stepping.Release(1)
		if !at.IsZero() {
			next = sooner(next, at)
		}
	}
	return next
}
