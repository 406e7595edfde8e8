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
	if r.shared() {
		return r.sendOrder(ctx, by, "operation."+string(o), id, op.Count, "", orderEntry{Operation: id, Order: o, By: by})
	}
	op.stepping.Lock()
	defer op.stepping.Unlock()
	p, err := op.afterOrder(o, by, r.now())
	if err != nil {
		return Operation{}, err
	}
	end, err := r.Actions.Begin(by, "operation."+string(o), id, op.Count, "")
	if err != nil {
		return Operation{}, err
	}
	err = r.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{entryOf(partsOf(id)+"progress", p)})
	if op.uncertain = op.uncertain || err != nil; err == nil {
		op.applyOrder(p)
		r.Wake()
	}
	end(err, p.processed())
	return op.snapshot(r.now()), err
}

// afterOrder is what an order makes of an operation. The caller has op.stepping.
func (op *operation) afterOrder(o Order, by auth.Caller, now time.Time) (progress, error) {
	p := op.progress
	active := p.State == Running || p.State == Canary
	switch {
	case o == Pause && active:
		p.Was, p.State, p.Why = p.State, Paused, "paused by "+by.Name
	case o == Resume && p.State == Paused:
		p.State, p.Was, p.Why = p.Was, "", ""
	case o == Cancel && (active || p.State == Paused):
		p.State, p.Was, p.Why, p.Ended = Canceled, "", "canceled by "+by.Name, &now
	default:
		return p, fmt.Errorf("%w: operation %s cannot be asked to %s: it is %s", inspect.ErrPrecondition, op.ID, o, cmp.Or(p.State, "a plan"))
	}
	return p, nil
}

// applyOrder applies an order that is written. The caller has op.stepping.
func (op *operation) applyOrder(p progress) {
	op.set(func() { op.progress, op.trouble, op.speed = p, "", nil })
	op.limit, op.next, op.tries = nil, time.Time{}, 0
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
