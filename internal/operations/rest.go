package operations

import (
	"context"
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// checkSelection refuses a request that does not say which messages, or says it twice.
func (q *PlanRequest) checkSelection() error {
	switch asks := strings.TrimSpace(q.Query) != ""; {
	case asks && q.RestOf != "":
		return fmt.Errorf("%w: give a query or rest_of, not both", inspect.ErrInvalid)
	case !asks && q.RestOf == "":
		return fmt.Errorf("%w: the query is empty: say which messages, such as queue:orders", inspect.ErrInvalid)
	case q.RestOf != "" && q.Verb != actions.Replay && q.Verb != actions.Discard:
		return fmt.Errorf("%w: the rest of an operation can be replayed or discarded; this is %s", inspect.ErrInvalid, q.Verb)
	}
	return nil
}

// find visits the messages of a plan.
func (r *Runner) find(ctx context.Context, by auth.Caller, p *Plan, visit func(store.Listed) (bool, error)) error {
	if p.RestOf != "" {
		return r.findRest(ctx, by, p.RestOf, visit)
	}
	upto, err := r.Store.NewestNumber(ctx)
	if err != nil {
		return err
	}
	return r.Inspect.Find(ctx, by, p.Query, &upto, false, visit)
}

// findRest visits the messages of an operation that were not done or, in whatever state they are
// now, failed again. They are found by their ids, since each failure makes another record.
func (r *Runner) findRest(ctx context.Context, by auth.Caller, id string, visit func(store.Listed) (bool, error)) error {
	op, err := r.operation(ctx, by, id)
	if err != nil {
		return err
	}
	op.mu.Lock()
	processed, ended, count := op.progress.processed(), op.progress.Ended != nil, op.Count
	op.mu.Unlock()
	if !ended {
		return fmt.Errorf("%w: operation %s has not ended: what is left of it is not known yet", inspect.ErrPrecondition, id)
	}
	for at := int64(0); at < count; {
		part, err := r.readChunk(ctx, chunkName(id, at/chunk))
		if err != nil {
			return err
		}
		if len(part) == 0 {
			return fmt.Errorf("%w: the list of the messages of operation %s is damaged", inspect.ErrPrecondition, id)
		}
		for _, f := range part {
			more, err := r.visitRest(ctx, f, at >= processed, visit)
			if err != nil || !more {
				return err
			}
			at++
		}
	}
	return nil
}

// visitRest visits what is left of one message of an operation.
func (r *Runner) visitRest(ctx context.Context, f frozen, undone bool, visit func(store.Listed) (bool, error)) (more bool, err error) {
	id, _, _ := f.Key.Parts()
	kept, err := r.Store.Find(ctx, id)
	if err != nil {
		return false, err
	}
	for _, l := range kept {
		if failed := l.Key != f.Key; !failed && !undone && l.Record.State != store.Parked {
			continue // it waits for the retry that the operation made of it
		}
		l.Record.Message.Body = nil // a plan shows none
		if more, err := visit(l); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}
