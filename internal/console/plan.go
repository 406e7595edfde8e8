package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// planLives is how long a plan can be started.
	planLives = 15 * time.Minute
	// mostPlans bounds those that were never started; the oldest goes first.
	mostPlans = 100
	// mostMade bounds those that are being made at once.
	mostMade = 8
	// mostPlanQueues bounds the queues of one plan.
	mostPlanQueues = 1000
	samples        = 5
)

// Plan finds what an action would be about, and keeps that set: what fails later,
// or is changed, is not in it. It changes no message.
func (c *Console) Plan(ctx context.Context, by auth.Caller, r PlanRequest) (Plan, error) {
	d := recordChange{verb: r.Verb, by: by.Name, to: r.To, at: r.At}
	if err := d.check(); err != nil {
		return Plan{}, err
	}
	if strings.TrimSpace(r.Query) == "" {
		return Plan{}, fmt.Errorf("%w: the query is empty: say which messages, such as queue:orders", ErrInvalid)
	}
	if utf8.RuneCountInString(r.Reason) > longestReason {
		return Plan{}, fmt.Errorf("%w: the reason has more than %d characters", ErrInvalid, longestReason)
	}
	if err := c.permit(by, verbs[r.Verb].role, "plan."+string(r.Verb), r.Query, targetOf(&operation{head: head{Operation: Operation{Plan: Plan{Verb: r.Verb, To: r.To}}}})...); err != nil {
		return Plan{}, err
	}
	if _, err := c.operations(ctx); err != nil { // or Run would take its keys for a crash's
		return Plan{}, err
	}
	now := c.Now()
	op := &operation{}
	op.Operation.Plan = Plan{ID: uuid.Must(uuid.NewV7()).String(), Verb: r.Verb, Query: r.Query, At: r.At, To: r.To, Reason: r.Reason,
		By: by.Name, Made: now, Expires: now.Add(planLives), Queues: []PlanQueue{}, Samples: []Message{}}
	if err := c.ops.making(op.ID); err != nil {
		return Plan{}, err
	}
	defer c.ops.isMade(op.ID)
	err := c.freeze(ctx, by, d, &op.Operation.Plan)
	if err == nil {
		err = c.survey(ctx, &op.Operation.Plan)
	}
	if err == nil {
		err = c.Store.PutEntries(ctx, []store.Entry{entryOf(headPrefix+op.ID, op.head)})
	}
	if err != nil {
		// What is written is of no use; when this fails too, Run takes it away.
		_ = c.Store.DeleteEntries(context.WithoutCancel(ctx), partsOf(op.ID))
		return Plan{}, err
	}
	c.ops.mu.Lock()
	c.ops.all[op.ID] = op
	c.ops.mu.Unlock()
	if c.Replicas != nil {
		c.changed(op.ID) // the leader forgets those that are too many
	} else if err := c.forgetOld(ctx, now); err != nil { // or plans would fill the disk
		c.Log.Error("old plans cannot be forgotten; trying again", "error", err)
	}
	return op.Operation.Plan, nil
}

// freeze writes down the messages, and counts them.
func (c *Console) freeze(ctx context.Context, by auth.Caller, d recordChange, p *Plan) error {
	upto, err := c.Store.NewestKey(ctx)
	if err != nil {
		return err
	}
	f := freezer{c: c, plan: p.ID}
	index, skips := map[string]int{}, map[string]int64{}
	err = c.find(ctx, by, p.Query, &upto, false, func(l store.Listed) (bool, error) {
		r := l.Record
		if why := d.skip(r); why != "" {
			skips[why]++
			return true, nil
		}
		i, ok := index[r.Queue]
		if !ok {
			if i = len(p.Queues); i == mostPlanQueues {
				return false, fmt.Errorf("%w: the query finds messages of more than %d queues: narrow it", ErrInvalid, mostPlanQueues)
			}
			index[r.Queue] = i
			p.Queues = append(p.Queues, PlanQueue{Queue: r.Queue})
		}
		p.Queues[i].Count++
		p.Count++
		failed := r.FailedAt
		if p.Oldest == nil || failed.Before(*p.Oldest) {
			p.Oldest = &failed
		}
		if p.Newest == nil || failed.After(*p.Newest) {
			p.Newest = &failed
		}
		if len(p.Samples) < samples {
			m := c.shown(l)
			m.Error = short(m.Error) // it is kept in memory
			p.Samples = append(p.Samples, m)
		}
		return true, f.add(ctx, frozen{l.Key, i, r.State})
	})
	if err != nil {
		return err
	}
	for _, why := range slices.Sorted(maps.Keys(skips)) {
		p.Skipped = append(p.Skipped, Skipped{Why: why, Count: skips[why]})
	}
	return f.flush(ctx)
}

// survey asks about the queues, and says what stands in the way of the plan.
func (c *Console) survey(ctx context.Context, p *Plan) error {
	pauses, err := c.pauses(ctx)
	if err != nil {
		return err
	}
	if p.Count == 0 {
		p.Blocked = append(p.Blocked, "there is nothing to "+string(p.Verb))
	}
	silent := "" // why RabbitMQ says nothing
	for i := range p.Queues {
		q := &p.Queues[i]
		_, q.Paused = pauses[q.Queue]
		if silent != "" {
			continue
		}
		at, err := c.atBroker(ctx, q.Queue)
		if err != nil {
			silent = err.Error()
			continue
		}
		q.Known, q.Exists, q.Consumers, q.Ready = true, at.Exists, at.Consumers, at.Ready
	}
	switch p.Verb {
	case Replay:
		for _, q := range p.Queues {
			p.destined(c, q, silent)
		}
	case Copy:
		to := PlanQueue{Queue: p.To}
		_, to.Paused = pauses[p.To]
		if err := c.destination(ctx, p.To); err != nil {
			p.Blocked = append(p.Blocked, err.Error())
		} else if at, err := c.atBroker(ctx, p.To); err == nil {
			to.Consumers = at.Consumers
			p.warn(to)
		}
	}
	if silent != "" && len(p.Queues) > 0 && p.Verb == Replay {
		p.Warnings = append(p.Warnings, "RabbitMQ does not say whether the queues exist and have consumers: "+silent)
	}
	return nil
}

// destined says what stands against a queue as the place to retry to.
func (p *Plan) destined(c *Console, q PlanQueue, silent string) {
	if c.Config.Policies != nil {
		if _, ok := c.policies().Match(q.Queue); !ok {
			p.Blocked = append(p.Blocked, fmt.Sprintf("no policy allows the queue %q: its messages would be parked again", q.Queue))
			return
		}
	}
	switch {
	case silent != "":
	case !q.Exists:
		p.Blocked = append(p.Blocked, fmt.Sprintf("the queue %q does not exist", q.Queue))
	default:
		p.warn(q)
	}
}

func (p *Plan) warn(q PlanQueue) {
	if q.Consumers == 0 {
		p.Warnings = append(p.Warnings, fmt.Sprintf("nothing consumes from the queue %q", q.Queue))
	}
	if q.Paused {
		p.Warnings = append(p.Warnings, fmt.Sprintf("the retries of the queue %q are paused: its messages wait until you resume it", q.Queue))
	}
}

// GetPlan is a plan that was made lately, or that became an operation.
func (c *Console) GetPlan(ctx context.Context, by auth.Caller, id string) (Plan, error) {
	if err := by.May(auth.Viewer, ""); err != nil { // as an operation: it shows only queues that they see
		return Plan{}, err
	}
	op, err := c.operation(ctx, by, id)
	if err != nil {
		return Plan{}, err
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.Operation.Plan, nil
}

const (
	// mostRunning bounds the operations that have begun and not ended.
	mostRunning   = 16
	canaryWait    = time.Minute
	longestCanary = 24 * time.Hour
	mostCanary    = 10_000
)

// Start begins a plan. From then on it goes on by itself, whoever leaves and
// whatever ends, until it is done or somebody says otherwise.
func (c *Console) Start(ctx context.Context, by auth.Caller, planID string, s Start) (Operation, error) {
	if err := c.permit(by, auth.Operator, "operation.start", planID); err != nil {
		return Operation{}, err
	}
	op, err := c.operation(ctx, by, planID)
	if err != nil {
		return Operation{}, err
	}
	if err := c.permit(by, verbs[op.Verb].role, "operation.start", planID, targetOf(op)...); err != nil {
		return Operation{}, err
	}
	if c.Replicas != nil {
		return c.give(ctx, by, "operation.start", startOf(&op.head), op.Count, cmp.Or(s.Reason, op.head.Reason), orderEntry{Operation: planID, Start: &s, By: by})
	}
	op.turn.Lock()
	defer op.turn.Unlock()
	now := c.Now()
	h, err := c.started(op, s, by, now)
	if err != nil {
		return Operation{}, err
	}
	end, err := c.begin(by, "operation.start", startOf(&h), h.Count, h.Reason)
	if err != nil {
		return Operation{}, err
	}
	entries, p := starting(h)
	err = c.Store.PutEntries(context.WithoutCancel(ctx), entries)
	end(err, 0)
	if err != nil {
		return Operation{}, err
	}
	op.start(h, p)
	c.ops.began(op.ID)
	return op.now(now), nil
}

// startOf is what the audit log says is started.
func startOf(h *head) string { return fmt.Sprintf("%s: %s %s", h.ID, h.Verb, h.Query) }

// started is what a start makes of a plan. The caller has op.turn.
func (c *Console) started(op *operation, s Start, by auth.Caller, now time.Time) (h head, err error) {
	h = op.head
	if h.CanaryWait, err = s.check(h.Verb); err != nil {
		return h, err
	}
	switch {
	case op.progress.State != "":
		err = fmt.Errorf("it was started already, and is %s", op.progress.State)
	case !now.Before(h.Expires):
		err = hint.Errorf("make a new one", "it is older than %s", planLives)
	case len(h.Blocked) > 0:
		err = fmt.Errorf("%s", strings.Join(h.Blocked, "; "))
	case s.ExpectCount != nil && *s.ExpectCount != h.Count:
		err = fmt.Errorf("it is about %d messages, and %d were expected", h.Count, *s.ExpectCount)
	case c.ops.running() >= mostRunning:
		err = fmt.Errorf("%d operations have not ended: wait for one, or cancel one", mostRunning)
	}
	if err != nil {
		return h, fmt.Errorf("%w: plan %s: %w", ErrPrecondition, h.ID, err)
	}
	if s.Reason != "" {
		h.Reason = s.Reason
	}
	h.Rate, h.Canary, h.Started, h.StartedBy, h.StartedAs = s.Rate, s.Canary, now, by.Name, by
	return h, nil
}

// starting is what is written when an operation begins.
func starting(h head) ([]store.Entry, progress) {
	p := progress{State: Running, Untold: true}
	return []store.Entry{entryOf(headPrefix+h.ID, h), entryOf(partsOf(h.ID)+"progress", p)}, p
}

// start goes on as is written.
func (op *operation) start(h head, p progress) {
	op.set(func() {
		op.Reason, op.Rate, op.head.Operation.Canary, op.CanaryWait = h.Reason, h.Rate, h.Canary, h.CanaryWait
		op.Started, op.StartedBy, op.StartedAs, op.progress = h.Started, h.StartedBy, h.StartedAs, p
	})
}

// check reads how an operation is to run.
func (s Start) check(v Verb) (wait time.Duration, err error) {
	wait = canaryWait
	if s.CanaryWait != "" {
		if wait, err = time.ParseDuration(s.CanaryWait); err != nil || wait <= 0 || wait > longestCanary {
			return 0, fmt.Errorf("%w: canary_wait is %.40q: expected a duration such as 30s, at most %s", ErrInvalid, s.CanaryWait, longestCanary)
		}
	}
	switch {
	case !(s.Rate >= 0) || s.Rate > 1e9: // a NaN is neither
		return 0, fmt.Errorf("%w: the rate is %v: expected messages per second, or 0 for unlimited", ErrInvalid, s.Rate)
	case s.Canary < 0 || s.Canary > mostCanary:
		return 0, fmt.Errorf("%w: canary is %d: expected 0 to %d", ErrInvalid, s.Canary, mostCanary)
	case s.Canary > 0 && verbs[v].kind != retry.Replayed && verbs[v].kind != retry.Copied:
		return 0, fmt.Errorf("%w: nothing that is %sed can come back, so there is nothing to watch: leave canary out", ErrInvalid, v)
	}
	return wait, nil
}
