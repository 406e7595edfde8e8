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
	return r.give(ctx, op, orderEntry{Operation: id, Order: o, By: by}, "operation."+string(o), id, "")
}

// give executes an order or, where the store can be shared, sends it to the leader.
func (r *Runner) give(ctx context.Context, op *operation, q orderEntry, did, on, why string) (Operation, error) {
	if r.shared() {
		return r.send(ctx, q, did, on, op.Count, why)
	}
	if err := op.stepping.Acquire(ctx, 1); err != nil {
		return Operation{}, err
	}
	defer op.stepping.Release(1)
	c, err := r.changeOf(op, q)
	if err != nil {
		return Operation{}, err
	}
	end, err := r.Actions.Begin(q.By, did, on, op.Count, why)
	if err != nil {
		return Operation{}, err
	}
	err = op.apply(c, func(entries []store.Entry) error { return r.Store.PutEntries(context.WithoutCancel(ctx), entries) })
	end(err, op.Count)
	return op.snapshot(r.now()), err
}

// change is what an order makes of a plan or an operation.
type change struct {
	entries []store.Entry
	made    func() // makes it in memory, once the entries are written
}

// changeOf returns the change, or why the order is refused. The caller has op.stepping.
func (r *Runner) changeOf(op *operation, q orderEntry) (change, error) {
	now := r.now()
	if q.Start != nil {
		h, err := r.checkStart(op, *q.Start, q.By, now)
		p := progress{State: Running, Unlogged: true}
		return change{entries: []store.Entry{entryOf(headPrefix+h.ID, h), entryOf(partsOf(h.ID)+"progress", p)}, made: func() {
			op.applyStart(h, p)
			r.setActive(op.ID)
		}}, err
	}
	p, err := op.afterOrder(q.Order, q.By, now)
	return change{entries: []store.Entry{entryOf(partsOf(op.ID)+"progress", p)}, made: func() {
		op.set(func() { op.progress, op.trouble, op.speed = p, "", nil })
		op.limit, op.next, op.tries = nil, time.Time{}, 0
		r.Wake()
	}}, err
}

// apply writes a change and makes it. The caller has op.stepping.
func (op *operation) apply(c change, write func([]store.Entry) error) error {
	if err := write(c.entries); err != nil {
		op.uncertain = true
		return err
	}
	c.made()
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
