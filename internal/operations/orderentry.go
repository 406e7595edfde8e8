package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// With several replicas one does the operations, and no other writes how far they
// are. What a person says at any of them is an entry order/<id>; the leader does it
// between two steps, and in the same step of the store takes it away and writes
// answer/<id>. So it is done once, whichever replica ends when.
const (
	orderPrefix  = "order/"
	answerPrefix = "answer/"
	// answerWithin is how long a person waits: longer than it takes until another
	// replica leads. answersKept is how long an answer is there for them.
	answerWithin = 10 * time.Second
	answersKept  = time.Hour
	askEvery     = 50 * time.Millisecond
)

// ErrUnanswered: no replica leads just now, so no replica has taken an order yet.
var ErrUnanswered = errors.New("no replica leads just now")

// orderEntry is what a person orders.
type orderEntry struct {
	ID        string
	Operation string
	Order     Order  `json:",omitempty"`
	Start     *Start `json:",omitempty"` // or that: begin it
	By        auth.Caller
}

// orderAnswer is the result of an order, for the replica that gave it.
type orderAnswer struct {
	Error string `json:",omitempty"`
	Of    string `json:",omitempty"` // what kind of error it is
	Dealt int64  // how many messages were dealt with by then
}

// kinds are the errors that a caller tells apart.
var kinds = map[string]error{"not_found": inspect.ErrNotFound, "precondition": inspect.ErrPrecondition, "invalid": inspect.ErrInvalid, "full": store.ErrFull}

func answerOf(err error, dealt int64) orderAnswer {
	a := orderAnswer{Dealt: dealt}
	if err == nil {
		return a
	}
	a.Error = err.Error()
	for name, is := range kinds {
		if errors.Is(err, is) {
			a.Of = name
		}
	}
	return a
}

func (a orderAnswer) err() error {
	if a.Error == "" {
		return nil
	}
	is := kinds[a.Of]
	if is == nil {
		return errors.New(a.Error)
	}
	return fmt.Errorf("%w%s", is, strings.TrimPrefix(a.Error, is.Error()))
}

// give writes an order, and waits until the leader has done it.
func (r *Runner) give(ctx context.Context, by auth.Caller, did, on string, count int64, why string, g orderEntry) (Operation, error) {
	end, err := r.Actions.Begin(by, did, on, count, why)
	if err != nil {
		return Operation{}, err
	}
	g.ID = uuid.Must(uuid.NewV7()).String()
	a := orderAnswer{}
	if err = r.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{entryOf(orderPrefix+g.ID, g)}); err == nil {
		r.changed()
		a, err = r.answered(ctx, g.ID)
	}
	end(err, a.Dealt)
	if err != nil {
		return Operation{}, err
	}
	r.ChangedElsewhere(ctx, g.Operation)
	return r.Operation(ctx, by, g.Operation)
}

// answered waits for the answer to an order.
func (r *Runner) answered(ctx context.Context, id string) (a orderAnswer, err error) {
	timeout := time.NewTimer(answerWithin)
	defer timeout.Stop()
	again := time.NewTicker(askEvery)
	defer again.Stop()
	for {
		value, err := r.Store.Entry(ctx, answerPrefix+id)
		if err != nil {
			return a, err
		}
		if value != nil {
			if err := json.Unmarshal(value, &a); err != nil {
				return a, err
			}
			_ = r.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{{Name: answerPrefix + id}}) // or it is forgotten later
			return a, a.err()
		}
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-timeout.C:
			return a, fmt.Errorf("%w: the order is written down, and is done when one does", ErrUnanswered)
		case <-again.C:
		}
	}
}

// follow does what was ordered. It is called by the leader, between steps.
func (r *Runner) follow(ctx context.Context) error {
	var all []orderEntry
	err := r.Store.Entries(ctx, orderPrefix, "", func(e store.Entry) (bool, error) { // in the order they were given
		var g orderEntry
		if err := json.Unmarshal(e.Value, &g); err != nil {
			return false, fmt.Errorf("%s: %w", e.Name, err)
		}
		all = append(all, g)
		return true, nil
	})
	for i := 0; i < len(all) && err == nil; i++ {
		err = r.execute(ctx, all[i])
	}
	if len(all) > 0 {
		r.Wake() // what was started or resumed is ready at once
	}
	return err
}

// execute executes one order, and answers it.
func (r *Runner) execute(ctx context.Context, g orderEntry) error {
	op, err := r.lookUp(ctx, g.Operation)
	if err != nil {
		return err
	}
	if op == nil {
		return r.answer(ctx, g, nil, answerOf(fmt.Errorf("%w: no plan or operation %.60q", inspect.ErrNotFound, g.Operation), 0))
	}
	op.stepping.Lock()
	defer op.stepping.Unlock()
	if g.Start != nil {
		h, refused := r.started(op, *g.Start, g.By, r.now())
		if refused != nil {
			return r.answer(ctx, g, nil, answerOf(refused, 0))
		}
		entries, p := starting(h)
		if err := r.answer(ctx, g, entries, orderAnswer{}); err != nil {
			op.uncertain = true
			return err
		}
		op.start(h, p)
		r.began(op.ID)
		return nil
	}
	p, refused := op.ordered(g.Order, g.By, r.now())
	if refused != nil {
		return r.answer(ctx, g, nil, answerOf(refused, p.dealt()))
	}
	if err := r.answer(ctx, g, []store.Entry{entryOf(partsOf(op.ID)+"progress", p)}, answerOf(nil, p.dealt())); err != nil {
		op.uncertain = true
		return err
	}
	op.apply(p)
	return nil
}

// answer writes what an order has changed, and that it is done.
func (r *Runner) answer(ctx context.Context, g orderEntry, changed []store.Entry, a orderAnswer) error {
	err := r.Store.PutEntries(ctx, append(changed, store.Entry{Name: orderPrefix + g.ID}, entryOf(answerPrefix+g.ID, a)))
	if err == nil {
		r.changed(g.Operation)
	}
	return err
}

// forgetAnswers deletes those that no caller waited for.
func (r *Runner) forgetAnswers(ctx context.Context, now time.Time) error {
	if !r.shared() {
		return nil
	}
	var old []store.Entry
	err := r.Store.Entries(ctx, answerPrefix, "", func(e store.Entry) (bool, error) {
		if now.Sub(madeAt(strings.TrimPrefix(e.Name, answerPrefix))) > answersKept {
			old = append(old, store.Entry{Name: e.Name})
		}
		return len(old) < 1000, nil
	})
	if err != nil || len(old) == 0 {
		return err
	}
	return r.Store.PutEntries(ctx, old)
}
