package operations

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// setLeads begins or ends leading: all operations are read again.
func (r *Runner) setLeads(leads bool) {
	r.lock()
	defer r.mu.Release(1)
	r.leads, r.loaded = leads, false
}

// Reread has all operations read again, since an announcement of a change may have been lost. It
// does nothing at the leader, which makes the changes.
func (r *Runner) Reread() {
	r.lock()
	defer r.mu.Release(1)
	if !r.leads {
		r.loaded = false
	}
}

// ChangedElsewhere reads an operation again that another replica has changed. The leader ignores
// it for operations that it runs.
func (r *Runner) ChangedElsewhere(ctx context.Context, id string) {
	r.lock()
	op, skip := r.all[id], !r.loaded || r.leads && r.all[id] != nil
	r.mu.Release(1)
	if skip {
		return
	}
	if err := r.refresh(ctx, id, op); err != nil {
		r.Reread() // the next call reads them
	}
}

// refresh reads one operation again; op is what is known of it, or nil.
func (r *Runner) refresh(ctx context.Context, id string, op *operation) error {
	value, err := r.Store.Entry(ctx, headPrefix+id)
	if err != nil {
		return err
	}
	var is *operation
	if value != nil {
		if is, err = r.readOperation(ctx, store.Entry{Name: headPrefix + id, Value: value}); err != nil {
			return err
		}
	}
	r.lock()
	defer r.mu.Release(1)
	switch {
	case !r.loaded || r.leads && r.all[id] != nil: // it changed meanwhile
	case is == nil:
		delete(r.all, id)
		delete(r.active, id)
	case op == nil:
		r.all[id] = is
	default: // a new value replaces it: others may be reading the old one
		now := time.Now()
		op.mu.Lock()
		is.speed = append(slices.Clone(op.speed), pace{now, is.processed()})
		op.mu.Unlock()
		is.dropOldSpeed(now)
		r.all[id] = is
	}
	if is != nil && is.active() {
		r.active[id] = true
	} else {
		delete(r.active, id)
	}
	return nil
}

// longestPlanning is longer than the making of a plan takes.
const longestPlanning = time.Hour

// createdAt is when an id was created.
func createdAt(id string) time.Time {
	u, err := uuid.Parse(id)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(u.Time().UnixTime())
}

// deposed tells whether an error says that another replica leads now, which is no failure.
func deposed(err error) bool { return errors.Is(err, store.ErrDeposed) }
