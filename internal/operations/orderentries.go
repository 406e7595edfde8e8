package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// With several replicas the leader runs the operations, and only it writes their progress.
// What a person orders at any replica is an entry order/<id>. The leader executes it between
// two steps, and in one step of the store removes it and writes answer/<id>. So it is done
// once, whichever replica ends when. The replicas need no way to reach each other, and an order
// that finds no leader is executed by the next one.
const (
	orderPrefix  = "order/"
	answerPrefix = "answer/"
	// answerWithin is how long a person waits: longer than it takes until another
	// replica leads. answersKept is how long an answer is kept for them.
	answerWithin = 10 * time.Second
	answersKept  = time.Hour
	askEvery     = 50 * time.Millisecond
)

// ErrNoLeader: no replica leads just now, so none has executed an order yet.
var ErrNoLeader = hint.New("unanswered", "no replica leads just now")

// orderEntry is what a person orders at some replica, an Order or the Start of a plan, for the leader. Its names in JSON are stored.
type orderEntry struct {
	ID        string
	Operation string
	Order     Order  `json:",omitempty"`
	Start     *Start `json:",omitempty"` // of a plan
	By        auth.Caller
}

// orderAnswer is the result of an order, for the replica that gave it.
type orderAnswer struct {
	Error string `json:",omitempty"`
	Of    string `json:",omitempty"` // what kind of error it is
}

func answerOf(err error) orderAnswer {
	if err == nil {
		return orderAnswer{}
	}
	return orderAnswer{err.Error(), hint.HTTP(err).Code}
}

func (a orderAnswer) err() error {
	if a.Error == "" {
		return nil
	}
	return hint.Told{Code: a.Of, Text: a.Error}
}

// send writes an order, and waits until the leader has executed it.
func (r *Runner) send(ctx context.Context, q orderEntry, did, on string, count int64, why string) (Operation, error) {
	end, err := r.Actions.Begin(q.By, did, on, count, why)
	if err != nil {
		return Operation{}, err
	}
	q.ID = uuid.Must(uuid.NewV7()).String()
	if err = r.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{entryOf(orderPrefix+q.ID, q)}); err == nil {
		r.changed()
		err = r.awaitAnswer(ctx, q.ID)
	}
	end(err, count)
	if err != nil {
		return Operation{}, err
	}
	r.ChangedElsewhere(ctx, q.Operation)
	return r.Operation(ctx, q.By, q.Operation)
}

// awaitAnswer waits for the answer to an order.
func (r *Runner) awaitAnswer(ctx context.Context, id string) error {
	timeout := time.NewTimer(answerWithin)
	defer timeout.Stop()
	again := time.NewTicker(askEvery)
	defer again.Stop()
	for {
		value, err := r.Store.Entry(ctx, answerPrefix+id)
		if err != nil {
			return err
		}
		if value != nil {
			var a orderAnswer
			if err := json.Unmarshal(value, &a); err != nil {
				return err
			}
			_ = r.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{{Name: answerPrefix + id}}) // otherwise it is deleted later
			return a.err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return fmt.Errorf("%w: the order is written down, and is done when one does", ErrNoLeader)
		case <-again.C:
		}
	}
}

// executeOrders executes the orders of other replicas. It is called by the leader, between steps.
func (r *Runner) executeOrders(ctx context.Context) error {
	var all []orderEntry
	err := r.Store.Entries(ctx, orderPrefix, "", func(e store.Entry) (bool, error) { // in the order they were given
		var q orderEntry
		if err := json.Unmarshal(e.Value, &q); err != nil {
			return false, fmt.Errorf("%s: %w", e.Name, err)
		}
		all = append(all, q)
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
func (r *Runner) execute(ctx context.Context, q orderEntry) error {
	op, err := r.byID(ctx, q.Operation)
	if err != nil {
		return err
	}
	if op == nil {
		return r.answer(ctx, q, nil, answerOf(fmt.Errorf("%w: no plan or operation %.60q", inspect.ErrNotFound, q.Operation)))
	}
	if err := op.stepping.Acquire(ctx, 1); err != nil {
		return err
	}
	defer op.stepping.Release(1)
	c, refused := r.changeOf(op, q)
	if refused != nil {
		return r.answer(ctx, q, nil, answerOf(refused))
	}
	return op.apply(c, func(entries []store.Entry) error { return r.answer(ctx, q, entries, answerOf(nil)) })
}

// answer writes what an order has changed, and that it was executed.
func (r *Runner) answer(ctx context.Context, q orderEntry, changed []store.Entry, a orderAnswer) error {
	err := r.Store.PutEntries(ctx, append(changed, store.Entry{Name: orderPrefix + q.ID}, entryOf(answerPrefix+q.ID, a)))
	if err == nil {
		r.changed(q.Operation)
	}
	return err
}

// forgetAnswers deletes answers that no caller waited for.
func (r *Runner) forgetAnswers(ctx context.Context, now time.Time) error {
	if !r.shared() {
		return nil
	}
	var old []store.Entry
	err := r.Store.Entries(ctx, answerPrefix, "", func(e store.Entry) (bool, error) {
		if now.Sub(createdAt(strings.TrimPrefix(e.Name, answerPrefix))) > answersKept {
			old = append(old, store.Entry{Name: e.Name})
		}
		return len(old) < 1000, nil
	})
	if err != nil || len(old) == 0 {
		return err
	}
	return r.Store.PutEntries(ctx, old)
}
