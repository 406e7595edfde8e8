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

// Run runs operations until ctx ends, also those that were running when the service ended. What is
// still running then continues at the next start, or at another replica.
//
// One goroutine runs all operations, a step of each in turn: one of a million messages
// delays another by no more than a step, and together they use the store no more than one
// goroutine can.
func (r *Runner) Run(ctx context.Context) {
	var leading sync.WaitGroup
	defer leading.Wait()
	if !r.shared() {
		leading.Go(func() { r.Lead(ctx) })
	}
	for failing := false; ctx.Err() == nil; {
		at, err := r.round(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			r.log.Error("operations cannot continue; trying again", "error", err)
		}
		failing = err != nil
		var ready <-chan time.Time // nil: not before Wake
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
func (r *Runner) round(ctx context.Context) (next time.Time, err error) {
	if err := r.readStale(ctx); err != nil {
		return time.Now().Add(maxBackoff), err
	}
	all, err := r.operations(ctx)
	if err != nil {
		return time.Now().Add(maxBackoff), err
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		op := all[id]
		if op.stepping.Acquire(ctx, 1) != nil {
			return next, nil // ctx has ended
		}
		var at time.Time
		if !r.Inspect.ReadOnly {
			at = r.step(ctx, op)
		} else if op.active() {
			op.set(func() { op.trouble = "this service is read-only now; the operation continues when it is not" })
		}
		op.stepping.Release(1)
		if !at.IsZero() {
			next = sooner(next, at)
		}
	}
	return next, nil
}
