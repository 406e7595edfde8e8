package operations

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// forgetEvery is how often discarded messages that can no longer be restored, and old plans and
	// operations, are looked for.
	forgetEvery = time.Minute
	// operationLives is how long an ended operation is known, and mostOperations how
	// many are.
	operationLives = 30 * 24 * time.Hour
	mostOperations = 1000
)

// Lead deletes what is old until ctx ends: discarded messages whose time to be restored is over, plans
// and operations. Of several replicas the leader calls it.
func (r *Runner) Lead(ctx context.Context) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		if err := r.forget(ctx); err != nil && ctx.Err() == nil && !deposed(err) {
			r.log.Error("what is old cannot be forgotten; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *Runner) forget(ctx context.Context) error {
	now := r.now()
	if err := r.Actions.Forget(ctx, now); err != nil {
		return err
	}
	if err := r.forgetOld(ctx, now); err != nil {
		return err
	}
	return r.forgetOrphans(ctx, now)
}

// forgetOld forgets plans that were never started, and operations that ended long ago.
func (r *Runner) forgetOld(ctx context.Context, now time.Time) error {
	all, err := r.operations(ctx)
	if err != nil {
		return err
	}
	plans, operations := 0, 0
	own, ofQueue := map[string]int{}, map[string]int{}
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(all))) { // the newest first
		op := all[id]
		op.mu.Lock()
		p, old := op.progress, false
		switch {
		case p.State == "":
			plans++
			own[op.By]++
			old = plans > mostPlans || own[op.By] > mostOwnPlans || !now.Before(op.Expires)
			for _, q := range op.Queues {
				ofQueue[q.Queue]++
				old = old || ofQueue[q.Queue] > mostPlansOfQueue
			}
		case p.Ended != nil:
			operations++
			old = operations > mostOperations || now.Sub(*p.Ended) > operationLives
		}
		op.mu.Unlock()
		if !old {
			continue
		}
		if err := r.forgetOne(ctx, op, p.State); err != nil {
			return err
		}
	}
	return nil
}

// forgetOne deletes a plan or an operation, unless it has changed meanwhile. What a crash leaves of
// it has no head, and is deleted by forgetOrphans.
func (r *Runner) forgetOne(ctx context.Context, op *operation, state string) error {
	if err := op.stepping.Acquire(ctx, 1); err != nil {
		return err
	}
	defer op.stepping.Release(1)
	if err := r.take(ctx, op); err != nil {
		if errors.Is(err, inspect.ErrNotFound) {
			return nil
		}
		return err
	}
	if op.progress.State != state {
		op.lose()
		return nil
	}
	ctx = r.inTerm(ctx, op)
	if err := r.Store.PutEntries(ctx, []store.Entry{{Name: headPrefix + op.ID}}); err != nil {
		op.lose()
		return err
	}
	r.drop(op)
	r.changed(op.ID)
	return r.Store.DeleteEntries(ctx, partsOf(op.ID))
}

// forgetOrphans deletes the entries of plans that were never finished.
func (r *Runner) forgetOrphans(ctx context.Context, now time.Time) error {
	for after := ""; ; {
		id := ""
		err := r.Store.Entries(ctx, partPrefix, after, func(e store.Entry) (bool, error) {
			id, _, _ = strings.Cut(strings.TrimPrefix(e.Name, partPrefix), "/")
			return false, nil
		})
		if err != nil || id == "" {
			return err
		}
		r.lock()
		orphan := r.all[id] == nil && !r.planning[id]
		r.mu.Release(1)
		if orphan && r.shared() { // another replica may be making it, or just have made it
			head, err := r.Store.Entry(ctx, headPrefix+id)
			if err != nil {
				return err
			}
			orphan = head == nil && now.Sub(createdAt(id)) > maxPlanning
		}
		if orphan {
			if err := r.Store.DeleteEntries(ctx, partsOf(id)); err != nil {
				return err
			}
		}
		after = partsOf(id) + "\xff" // behind all of its parts
	}
}
