package operations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// Where several replicas share the store, an operation runs at the replica that was last asked to
// start, pause or resume it, which its progress names. That replica takes the operation: it begins
// a new term of it in the store, so that a write of whoever had it before fails with
// store.ErrDeposed. When the replica's heartbeats end, the leader takes the operation and goes on
// where it was.

const (
	// termTTL is how long a term of an operation keeps others from beginning the next one, which
	// they may do at once: a replica has an operation for as long as its heartbeats go on.
	termTTL = time.Millisecond
	// aliveFor is how long after its latest heartbeat a replica keeps its operations.
	aliveFor = 3500 * time.Millisecond
)

// take makes this replica the one that changes an operation, and reads it as it was left. The
// caller has op.stepping.
func (r *Runner) take(ctx context.Context, op *operation) error {
	if !r.shared() {
		return nil
	}
	op.term = 0
	for {
		term, leads, err := r.Store.(store.Shared).Lead(ctx, partsOf(op.ID), r.Replica, termTTL)
		if err != nil {
			return err
		}
		if leads {
			if err := r.reread(ctx, op); err != nil {
				return err
			}
			op.term = term
			op.set(func() { op.progress.Replica = r.Replica })
			return nil
		}
		if sleep(ctx, 10*termTTL); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// lose forgets that this replica has an operation: who has it is read again. The caller has
// op.stepping.
func (op *operation) lose() {
	op.term, op.uncertain, op.window = 0, true, nil
	op.closeSource()
}

// inTerm returns a context for writes of an operation that this replica has taken.
func (r *Runner) inTerm(ctx context.Context, op *operation) context.Context {
	if !r.shared() {
		return ctx
	}
	return store.WithTerm(ctx, partsOf(op.ID), op.term)
}

// orphaned reports whether this replica is to take an operation: it had it, or it leads, and the
// one that had it is not alive.
func (r *Runner) orphaned(op *operation) bool {
	leads := false
	for _, one := range r.Inspect.Replicas() {
		if one.ID == op.progress.Replica && !one.Self && time.Since(one.Beat) < aliveFor {
			return false
		}
		leads = leads || one.Self && one.Leads
	}
	return leads || op.progress.Replica == r.Replica
}

// ChangedElsewhere has operations read again that another replica has changed.
func (r *Runner) ChangedElsewhere(ids ...string) {
	r.staleMu.Lock()
	defer r.staleMu.Unlock()
	for _, stale := range r.stale {
		for _, id := range ids {
			stale[id] = true
		}
	}
	r.Wake()
}

// Reread has all operations read again: the announcement of a change may have been lost.
func (r *Runner) Reread() { r.ChangedElsewhere("") }

func (r *Runner) readStale(ctx context.Context, of int) error {
	r.staleMu.Lock()
	stale := r.stale[of]
	r.stale[of] = map[string]bool{}
	r.staleMu.Unlock()
	err := r.readAgain(ctx, of, stale)
	if err != nil {
		r.ChangedElsewhere(slices.Collect(maps.Keys(stale))...)
	}
	return err
}

func (r *Runner) readAgain(ctx context.Context, of int, stale map[string]bool) error {
	all, err := r.operations(ctx)
	if err != nil || len(stale) == 0 {
		return err
	}
	if stale[""] {
		for id := range all {
			stale[id] = true
		}
		if err := r.Store.Entries(ctx, headPrefix, "", func(e store.Entry) (bool, error) {
			stale[e.Name[len(headPrefix):]] = true
			return true, nil
		}); err != nil {
			return err
		}
		delete(stale, "")
	}
	for id := range stale {
		op, err := r.byID(ctx, id)
		if err != nil {
			return err
		}
		if op == nil || all[id] == nil || op.loop() != of { // it is forgotten, or was read just now
			continue
		}
		if err := op.stepping.Acquire(ctx, 1); err != nil {
			return err
		}
		err = r.reread(ctx, op)
		op.stepping.Release(1)
		if err != nil && !errors.Is(err, inspect.ErrNotFound) {
			return err
		}
	}
	return nil
}

// reread reads an operation as it is in the store. The caller has op.stepping.
func (r *Runner) reread(ctx context.Context, op *operation) error {
	is, err := r.read(ctx, op.ID)
	if err != nil {
		return err
	}
	if is == nil {
		r.drop(op)
		return notFound(op.ID)
	}
	if err := r.announceLost(ctx, op, is); err != nil {
		return err
	}
	if is.progress.Replica != r.Replica {
		op.term = 0
		op.closeSource()
	}
	now := time.Now()
	op.set(func() {
		op.head.start(&is.head)
		op.progress = is.progress
		op.notePace(now)
	})
	return nil
}

// drop forgets an operation in memory. The caller has op.stepping.
func (r *Runner) drop(op *operation) {
	op.closeSource()
	r.canaryFailures.remove(op.ID)
	op.set(func() { op.progress.State = Canceled }) // a call that found it before can do nothing with it
	r.lock()
	defer r.mu.Release(1)
	delete(r.all, op.ID)
}

func notFound(id string) error {
	return fmt.Errorf("%w: no plan or operation %.60q; plans are forgotten %s after they were made, operations "+
		"after %d days", inspect.ErrNotFound, id, planLives, int(operationLives.Hours()/24))
}

// maxPlanning is longer than the making of a plan takes.
const maxPlanning = time.Hour

func createdAt(id string) time.Time {
	u, err := uuid.Parse(id)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(u.Time().UnixTime())
}

// deposed reports whether an error says that another replica has taken what is written, which is no
// failure.
func deposed(err error) bool { return errors.Is(err, store.ErrDeposed) }
