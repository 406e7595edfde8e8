package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// Order pauses, resumes or cancels an operation, between two of its steps.
func (r *Runner) Order(ctx context.Context, by auth.Caller, id string, o Order) (Operation, error) {
	if o != Pause && o != Resume && o != Cancel {
		return Operation{}, fmt.Errorf("%w: the order %.40q: expected pause, resume or cancel", inspect.ErrInvalid, o)
	}
	if err := r.Actions.Permit(by, auth.Operator, "operation."+string(o), id); err != nil {
		return Operation{}, err
	}
	op, err := r.operation(ctx, by, id)
	if err != nil {
		return Operation{}, err
	}
	if o == Resume { // others may stop a copy, but not start it
		if err := r.Actions.Permit(by, op.Verb.Role(), "operation.resume", id, targetOf(&op.Plan)...); err != nil {
			return Operation{}, err
		}
	}
	return r.change(ctx, op, by, "operation."+string(o), id, "", func(now time.Time) (*head, progress, error) {
		p, err := op.afterOrder(o, by, now)
		return nil, p, err
	})
}

// change changes an operation between two of its steps, or a plan, to what becomes returns: a
// progress and, unless nil, a head. Where others share the store, it runs here from then on.
func (r *Runner) change(ctx context.Context, op *operation, by auth.Caller, did, on, why string,
	becomes func(now time.Time) (*head, progress, error)) (Operation, error) {
	if err := op.stepping.Acquire(ctx, 1); err != nil {
		return Operation{}, err
	}
	defer op.stepping.Release(1)
	var end func(error, int64)
	for {
		var h *head
		var p progress
		err := r.take(ctx, op)
		if err == nil {
			h, p, err = becomes(r.now())
		}
		if err == nil && end == nil {
			end, err = r.Actions.Begin(by, did, on, op.Count, why)
		}
		if err == nil {
			err = r.save(context.WithoutCancel(ctx), op, h, p)
		}
		if err != nil {
			op.lose()
		}
		if deposed(err) { // somebody asked another replica for something at the same time
			continue
		}
		if end != nil {
			end(err, op.Count)
		}
		return op.snapshot(r.now()), err
	}
}

// save writes an operation that was changed. The caller has op.stepping.
func (r *Runner) save(ctx context.Context, op *operation, h *head, p progress) error {
	p.Replica = r.Replica
	entries := []store.Entry{entryOf(partsOf(op.ID)+"progress", p)}
	if h != nil {
		entries = append(entries, entryOf(headPrefix+op.ID, h))
	}
	if err := r.Store.PutEntries(r.inTerm(ctx, op), entries); err != nil {
		return err
	}
	op.set(func() {
		if h != nil {
			op.head.start(h)
		}
		op.progress, op.trouble, op.speed = p, "", nil
	})
	op.limit, op.next, op.tries = nil, time.Time{}, 0
	r.changed(op.ID)
	r.Wake()
	return nil
}

// afterOrder is what an order makes of an operation. The caller has op.stepping.
func (op *operation) afterOrder(o Order, by auth.Caller, now time.Time) (progress, error) {
	p := op.progress
	works := p.State == Running || p.State == Watching
	switch {
	case o == Pause && works:
		p.Was, p.State, p.Why = p.State, Paused, "paused by "+by.Name
	case o == Resume && p.State == Paused:
		p.State, p.Was, p.Why = p.Was, "", ""
	case o == Cancel && (works || p.State == Paused):
		p.State, p.Was, p.Why, p.Ended = Canceled, "", "canceled by "+by.Name, &now
	default:
		return p, fmt.Errorf("%w: operation %s cannot be asked to %s: it is %s", inspect.ErrPrecondition, op.ID, o, cmp.Or(p.State, "a plan"))
	}
	return p, nil
}

// set changes what others may read.
func (op *operation) set(write func()) {
	op.mu.Lock()
	defer op.mu.Unlock()
	write()
}

// snapshot is show for callers who do not hold mu.
func (op *operation) snapshot(at time.Time) Operation {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.show(at)
}

// targetOf are the queues, besides their own, to which a plan's messages are published.
func targetOf(p *Plan) []string {
	if p.Verb == actions.Copy {
		return []string{p.To}
	}
	return nil
}

func entryOf(name string, v any) store.Entry {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err)) // types of ours, which have no such values
	}
	return store.Entry{Name: name, Value: b}
}
