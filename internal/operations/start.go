package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// maxRunning bounds the operations that have begun and not ended, maxOwn those that one caller
	// started, and maxOfQueue those with messages of one queue, so that the others' can begin.
	maxRunning    = 16
	maxOwn        = 4
	maxOfQueue    = 4
	canaryWait    = time.Minute
	maxCanaryWait = 24 * time.Hour
	maxCanarySize = 10_000
)

// Start begins a plan. From then on it continues by itself, also after a restart, until it is
// done, stops by itself (see Stopped), or a person pauses or cancels it.
func (r *Runner) Start(ctx context.Context, by auth.Caller, planID string, s Start) (Operation, error) {
	if err := r.Actions.Permit(by, auth.Operator, "operation.start", planID); err != nil {
		return Operation{}, err
	}
	op, err := r.operation(ctx, by, planID)
	if err != nil {
		return Operation{}, err
	}
	if err := r.Actions.Permit(by, op.Verb.Info().Role, "operation.start", planID, targetOf(&op.Plan)...); err != nil {
		return Operation{}, err
	}
	why := cmp.Or(s.Reason, op.head.Reason)
	becomes := func(now time.Time) (*head, progress, error) {
		h, err := r.checkStart(op, s, by, now)
		p := progress{State: Running, Unlogged: true}
		if h.Verb.Retries() {
			p.Again = &again{}
		}
		return &h, p, err
	}
	return r.change(ctx, op, by, "operation.start", op.audited(), why, becomes)
}

// maxAudited is how many queues the audit log names of an operation.
const maxAudited = 100

// audited is what the audit log says of an operation: its id, what it does on what, and in which queues.
func (op *operation) audited() string {
	text := fmt.Sprintf("%s: %s %s", op.ID, op.Verb, cmp.Or(op.From, op.Query))
	for i, q := range op.Queues[:min(maxAudited, len(op.Queues))] {
		text += []string{", ", " in "}[max(0, 1-i)] + q.Queue
	}
	return text
}

// checkStart returns what a start makes of a plan. The caller has op.stepping.
func (r *Runner) checkStart(op *operation, s Start, by auth.Caller, now time.Time) (h head, err error) {
	h = op.head
	if h.CanaryWait, err = s.check(h.Verb); err != nil {
		return h, err
	}
	switch {
	case op.progress.State != "":
		err = fmt.Errorf("it was started already, by %s at %s, and is %s", h.StartedBy,
			h.Started.UTC().Format(time.RFC3339), op.progress.State)
	case !now.Before(h.Expires):
		err = hint.Errorf("make a new one", "it is older than %s", planLives)
	case len(h.Blocked) > 0:
		err = fmt.Errorf("%s", strings.Join(h.Blocked, "; "))
	case s.ExpectCount != nil && *s.ExpectCount != h.Count:
		err = fmt.Errorf("it is about %d messages, and %d were expected", h.Count, *s.ExpectCount)
	default:
		err = r.checkActive(&h, by)
	}
	if err != nil {
		return h, fmt.Errorf("%w: plan %s: %w", inspect.ErrPrecondition, h.ID, err)
	}
	if s.Reason != "" {
		h.Reason = s.Reason
	}
	h.Rate, h.CanarySize, h.Started, h.StartedBy, h.StartedAs = s.Rate, s.CanarySize, now, by.Name, by
	return h, nil
}

// checkActive refuses a start while too many operations have not ended.
func (r *Runner) checkActive(h *head, by auth.Caller) error {
	r.lock()
	all := maps.Clone(r.all)
	r.mu.Release(1)
	const ask = "wait for one, or cancel one"
	active, own, ofQueue := 0, 0, map[string]int{}
	for _, op := range all {
		op.mu.Lock()
		if op.active() {
			if queue := h.meets(op); queue != "" {
				op.mu.Unlock()
				return hint.Errorf(ask, "operation %s on the queue %q has not ended", op.ID, queue)
			}
			active++
			if op.StartedAs.ID() == by.ID() {
				own++
			}
			for _, q := range op.Queues {
				ofQueue[q.Queue]++
			}
		}
		op.mu.Unlock()
	}
	if active >= maxRunning {
		return hint.Errorf(ask, "%d operations have not ended", maxRunning)
	}
	if by.ID() != "" && own >= maxOwn {
		return hint.Errorf(ask, "%d operations that you started have not ended", maxOwn)
	}
	for _, q := range h.Queues {
		if ofQueue[q.Queue] >= maxOfQueue {
			return hint.Errorf(ask, "%d operations on the queue %q have not ended", maxOfQueue, q.Queue)
		}
	}
	return nil
}

// start takes over from of what a start changes.
func (h *head) start(of *head) {
	h.Reason, h.Rate, h.CanarySize, h.CanaryWait = of.Reason, of.Rate, of.CanarySize, of.CanaryWait
	h.Started, h.StartedBy, h.StartedAs = of.Started, of.StartedBy, of.StartedAs
}

// check returns how long the first messages are watched, or an error.
func (s Start) check(v actions.Verb) (wait time.Duration, err error) {
	wait = canaryWait
	if s.CanaryWait != "" {
		if wait, err = time.ParseDuration(s.CanaryWait); err != nil || wait <= 0 || wait > maxCanaryWait {
			return 0, fmt.Errorf("%w: canary_wait is %.40q: expected a duration such as 30s, at most %s",
				inspect.ErrInvalid, s.CanaryWait, maxCanaryWait)
		}
	}
	switch {
	case !(s.Rate >= 0) || s.Rate > 1e9: // a NaN is neither
		return 0, fmt.Errorf("%w: the rate is %v: expected messages per second, or 0 for unlimited",
			inspect.ErrInvalid, s.Rate)
	case s.CanarySize < 0 || s.CanarySize > maxCanarySize:
		return 0, fmt.Errorf("%w: canary is %d: expected 0 to %d", inspect.ErrInvalid, s.CanarySize, maxCanarySize)
	case s.CanarySize > 0 && !v.Info().Publishes:
		return 0, fmt.Errorf("%w: %s publishes nothing that could fail again, so there is nothing to watch: leave "+
			"canary out", inspect.ErrInvalid, v)
	}
	return wait, nil
}

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
		if err := r.Actions.Permit(by, op.Verb.Info().Role, "operation.resume", id, targetOf(&op.Plan)...); err != nil {
			return Operation{}, err
		}
	}
	did := "operation." + string(o)
	return r.change(ctx, op, by, did, op.audited(), "", func(now time.Time) (*head, progress, error) {
		p, err := op.afterOrder(o, by, now)
		return nil, p, err
	})
}

// change changes an operation between two of its steps, or a plan, to what becomes returns: a
// progress and, unless nil, a head. Where others share the store, it runs here from then on.
func (r *Runner) change(ctx context.Context, op *operation, by auth.Caller, did, on, why string,
	becomes func(now time.Time) (*head, progress, error)) (Operation, error) {
	if err := op.acquire(ctx); err != nil {
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
			end, err = r.Actions.Begin(by, did, on, op.Count, why, op.About)
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

// interruptAfter is how long an order waits for the step under way, before it ends that.
const interruptAfter = 2 * time.Second

// acquire takes op.stepping, from an adoption that waits for RabbitMQ too.
func (op *operation) acquire(ctx context.Context) error {
	late := time.AfterFunc(interruptAfter, func() {
		op.set(func() {
			if op.interrupt != nil {
				op.interrupt()
			}
		})
	})
	defer late.Stop()
	return op.stepping.Acquire(ctx, 1)
}

// save writes an operation that was changed. The caller has op.stepping.
func (r *Runner) save(ctx context.Context, op *operation, h *head, p progress) error {
	p.Replica = r.Replica
	entries := []store.Entry{p.entry(op.ID)}
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
	op.limit, op.next, op.tries, op.parkErrors, op.emptySince, op.unsaved = nil, time.Time{}, 0, 0, time.Time{}, nil
	op.closeSource()
	r.changed(op.ID)
	r.Wake()
	return nil
}

// afterOrder returns an operation's state after an order. The caller has op.stepping.
func (op *operation) afterOrder(o Order, by auth.Caller, now time.Time) (progress, error) {
	p := op.progress
	if op.unsaved != nil {
		p = *op.unsaved
	}
	works := p.State == Running || p.State == Watching
	switch {
	case o == Pause && works:
		p.Was, p.State, p.Why = p.State, Paused, "paused by "+by.Name
	case o == Resume && p.State == Paused:
		p.State, p.Was, p.Why = p.Was, "", ""
	case o == Cancel && (works || p.State == Paused):
		p.State, p.Was, p.Why, p.Ended = Canceled, "", "canceled by "+by.Name, &now
	default:
		is := cmp.Or(p.State, "a plan")
		if p.Why != "" {
			is += ": " + p.Why
		}
		return p, fmt.Errorf("%w: operation %s cannot be asked to %s: it is %s", inspect.ErrPrecondition, op.ID, o, is)
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

// targetOf are the queues, besides their own, to which a plan's messages are published, or that are
// adopted.
func targetOf(p *Plan) []string {
	switch p.Verb {
	case actions.Copy:
		return []string{p.To}
	case actions.Adopt:
		return append([]string{p.From}, p.WorkQueues...)
	case actions.Unadopt:
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
