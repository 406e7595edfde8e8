package operations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// DeadLetters are queues of the virtual host with dead letters that are not Redrive's.
type DeadLetters interface {
	// List returns those that are known to be dead-letter queues, by name.
	List(ctx context.Context) ([]DeadLetterQueue, error)
	// Look returns what is known of a queue that may not be one; its error says that it does not exist
	// or that RabbitMQ does not answer.
	Look(ctx context.Context, queue string) (DeadLetterQueue, error)
	// Open begins to take messages from a queue.
	Open(ctx context.Context, a retry.Adoption) (Source, error)
}

// Source takes messages from a queue, and parks them. Its methods are called from one goroutine.
type Source interface {
	// Park takes up to n messages, and parks them; fewer where they are large, and none where there are
	// none. n are parked, also after an error, and may be parked twice then, with the same id.
	Park(ctx context.Context, most int) (n int, err error)
	// Ready returns how many messages are left.
	Ready() (int, error)
	Close()
}

// DeadLetterQueue is a queue with dead letters that could be adopted.
type DeadLetterQueue struct {
	Queue      string   `json:"queue"`
	Kind       string   `json:"type" doc:"classic, quorum or stream; left empty where it is not known."`
	Ready      int64    `json:"ready" doc:"Messages that could be adopted now."`
	Consumers  int      `json:"consumers"`
	WorkQueues []string `json:"work_queues" doc:"Queues that dead-letter to it."`
	Why        string   `json:"why" doc:"Why it is taken for a dead-letter queue."`
	Refused    string   `json:"refused,omitempty" doc:"Why it cannot be adopted."`
	Doubt      string   `json:"doubt,omitempty" doc:"Why it is adopted only with even_with_consumers."`
	Unknown    string   `json:"unknown,omitempty" doc:"What is not known of it, and why."`
}

// DeadLetterQueues lists the dead-letter queues that could be adopted and that the caller sees.
func (r *Runner) DeadLetterQueues(ctx context.Context, by auth.Caller) ([]DeadLetterQueue, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	all, err := r.DeadLetters.List(ctx)
	return slices.DeleteFunc(all, func(q DeadLetterQueue) bool { return !by.Sees(q.Queue) }), err
}

// planAdoption plans the adoption of what is in a queue now. It touches nothing.
func (r *Runner) planAdoption(ctx context.Context, by auth.Caller, q PlanRequest) (Plan, error) {
	queues := append([]string{q.From}, q.WorkQueues...)
	for _, name := range queues {
		if name == "" || len(name) > 255 || wire.OwnQueue(name) {
			return Plan{}, fmt.Errorf("%w: %.300q is neither a dead-letter queue of others nor a work queue", inspect.ErrInvalid, name)
		}
	}
	switch {
	case q.Query != "" || q.At != nil || q.To != "":
		return Plan{}, fmt.Errorf("%w: an adoption is of one queue (from): it has no query, time or target", inspect.ErrInvalid)
	case q.Limit < 0 || len(q.WorkQueues) > mostPlanQueues:
		return Plan{}, fmt.Errorf("%w: limit is %d, and there are %d work queues: expected 0 (no limit) or more, and at most %d",
			inspect.ErrInvalid, q.Limit, len(q.WorkQueues), mostPlanQueues)
	}
	if err := actions.CheckReason(q.Reason); err != nil {
		return Plan{}, err
	}
	if err := r.Actions.Permit(by, q.Verb.Role(), "plan.adopt", q.From, queues...); err != nil {
		return Plan{}, err
	}
	is, err := r.DeadLetters.Look(ctx, q.From)
	if err != nil {
		return Plan{}, err
	}
	now := r.now()
	op := newOperation()
	op.Operation.Plan = Plan{ID: uuid.Must(uuid.NewV7()).String(), Verb: q.Verb, From: q.From, WorkQueues: q.WorkQueues, Leads: is.WorkQueues,
		Reason: q.Reason, By: by.Name, Made: now, Expires: now.Add(planLives), Count: min(is.Ready, limitOf(q.Limit)), Samples: []inspect.Message{},
		Queues: []PlanQueue{{Queue: q.From, Count: is.Ready, Known: true, Exists: true, Consumers: is.Consumers, Ready: int(is.Ready)}}}
	p := &op.Operation.Plan
	switch {
	case is.Refused != "":
		p.Blocked = append(p.Blocked, is.Refused)
	case is.Doubt != "" && !q.EvenWithConsumers:
		p.Blocked = append(p.Blocked, is.Doubt+": say so (even_with_consumers) if it is meant all the same")
	case is.Ready == 0:
		p.Blocked = append(p.Blocked, fmt.Sprintf("the queue %q has no messages that are ready", q.From))
	case is.Doubt != "":
		p.Warnings = append(p.Warnings, is.Doubt)
	}
	if is.Unknown != "" {
		p.Warnings = append(p.Warnings, is.Unknown)
	}
	for _, queue := range q.WorkQueues {
		if len(is.WorkQueues) > 0 && !slices.Contains(is.WorkQueues, queue) {
			p.Warnings = append(p.Warnings, fmt.Sprintf("the queue %q does not dead-letter to it; these do: %s", queue, strings.Join(is.WorkQueues, ", ")))
		}
	}
	return op.Operation.Plan, r.keepPlan(ctx, op, now)
}

func limitOf(n int64) int64 {
	if n == 0 {
		return math.MaxInt64
	}
	return n
}

// maxParkErrors is how often in a row the connection of an adoption may end before it stops: each time
// RabbitMQ may count a failed delivery of the next message.
const maxParkErrors = 3

// adoptNext parks the next messages of a queue that is adopted.
func (r *Runner) adoptNext(ctx context.Context, op *operation) (next time.Time, err error) {
	left := op.Count - op.processed()
	if left == 0 {
		return r.endAdoption(ctx, op)
	}
	now := time.Now()
	n := min(chunk, left, op.mostByRate())
	if readyAt := op.allows(now, int(n)); !readyAt.IsZero() {
		return readyAt, nil
	}
	if op.source == nil {
		a := retry.Adoption{From: op.From, By: op.StartedBy, Named: op.WorkQueues}
		if len(op.Leads) == 1 {
			a.Leads = op.Leads[0]
		}
		if op.source, err = r.DeadLetters.Open(ctx, a); err != nil {
			op.source = nil
			return r.adoptionFailed(ctx, op, err)
		}
	}
	parked, err := op.source.Park(ctx, int(n))
	if parked > 0 {
		p := op.progress
		p.Done += int64(parked)
		if err := r.Store.PutEntries(ctx, []store.Entry{entryOf(partsOf(op.ID)+"progress", p)}); err != nil {
			op.uncertain = true
			return next, err
		}
		r.noteProgress(op, p, now)
	}
	switch {
	case err != nil:
		op.parkErrors++
		return r.adoptionFailed(ctx, op, err)
	case parked == 0:
		return r.endAdoption(ctx, op)
	}
	op.parkErrors = 0
	return now, nil
}

// adoptionFailed stops an adoption where trying again could harm, or cannot succeed.
func (r *Runner) adoptionFailed(ctx context.Context, op *operation, err error) (time.Time, error) {
	op.closeSource()
	left := "what is left is in RabbitMQ as it was"
	switch {
	case ctx.Err() != nil || deposed(err):
		return time.Time{}, err
	case errors.Is(err, store.ErrFull): // each try would count as a failed delivery
		return r.saveState(ctx, op, Stopped, err.Error()+"; "+left)
	case errors.Is(err, wire.ErrQueueGone), errors.Is(err, wire.ErrExclusive), errors.Is(err, wire.ErrForbidden):
		return r.saveState(ctx, op, Stopped, err.Error())
	case op.parkErrors >= maxParkErrors:
		return r.saveState(ctx, op, Stopped, fmt.Sprintf("it failed %d times at the next message: %v; %s", maxParkErrors, err, left))
	}
	return time.Time{}, err
}

// endAdoption ends an adoption, and says how many messages came since it was planned.
func (r *Runner) endAdoption(ctx context.Context, op *operation) (time.Time, error) {
	why := ""
	if op.source != nil {
		if n, err := op.source.Ready(); err == nil && n > 0 {
			why = fmt.Sprintf("%d more messages are in the queue now", n)
		}
	}
	if left := op.Count - op.processed(); left > 0 {
		why = fmt.Sprintf("%d of the messages were not there any more: they expired, or others took them", left)
	}
	op.closeSource()
	return r.saveState(ctx, op, Finished, why)
}

// closeSource puts back what is not acknowledged. The caller has op.stepping.
func (op *operation) closeSource() {
	if op.source != nil {
		op.source.Close()
		op.source = nil
	}
}

// closeSources ends what adoptions have open, when the service ends.
func (r *Runner) closeSources() {
	r.lock()
	all := slices.Collect(maps.Values(r.all))
	r.mu.Release(1)
	for _, op := range all {
		_ = op.stepping.Acquire(context.Background(), 1) // it never fails
		op.closeSource()
		op.stepping.Release(1)
	}
}
