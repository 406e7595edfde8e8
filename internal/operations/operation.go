package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// A plan, and the operation that it becomes, are entries of the store's side table:
//
//	operations/<id>            (with an s) the plan and, once it is started, its settings (head)
//	operation/<id>/progress    its progress
//	operation/<id>/keys/<n>    its messages, in order (plan.go)
//	operation/<id>/outcome/<n> the results of those from the n-th on
//	operation/<id>/canary/<n>  its canaries: the first messages (canary.go)
//	operation/<id>/again/<n>   which of those of outcome/<n> failed again (again.go)
//
// Progress and outcomes are written in the same step as the messages themselves, so
// that after a crash each message is processed once, and has one outcome.
const (
	headPrefix = "operations/"
	partPrefix = "operation/"
)

func partsOf(id string) string { return partPrefix + id + "/" }

// head is the part of an operation that never changes.
type head struct {
	Operation  // its progress is elsewhere
	CanaryWait time.Duration
	StartedAs  auth.Caller // for the audit log's last line
	Lead       string      `json:",omitempty"` // the only queue that leads to the one that is adopted
	Upto       uint64      `json:",omitempty"` // the newest number in the store before the plan was made
}

// progress is the part that changes.
type progress struct {
	State                string
	Was                  string     `json:",omitempty"` // Paused: what it goes back to
	Why                  string     `json:",omitempty"`
	Done, Skipped, Fails int64      // together: how many of the keys were processed
	Watched              time.Time  `json:",omitzero"`  // Watching: since when all canaries have been retried
	Pending              int64      `json:",omitempty"` // Watching: canaries that are not yet retried
	Ended                *time.Time `json:",omitempty"`
	Again                *again     `json:",omitempty"`       // of a replay; replaced, never written to
	Reopened             int64      `json:",omitempty"`       // of an adoption: how often it got ErrNewEpoch
	Epoch                int64      `json:",omitempty"`       // of an adoption: Done when its epoch began
	Replica              string     `json:",omitempty"`       // that has it, of several that share the store
	Unlogged             bool       `json:"Untold,omitempty"` // its last line in the audit log is still to be written
}

func (p progress) entry(id string) store.Entry { return entryOf(partsOf(id)+"progress", p) }

func (p *progress) processed() int64 { return p.Done + p.Skipped + p.Fails }

func (p *progress) active() bool {
	return p.State == Running || p.State == Watching || p.State == Paused
}

// operation is a plan (State ""), or the operation that it became.
type operation struct {
	// stepping is held during a step, so that an order is handled between two. Its holder may
	// read all fields, and locks mu to write. Others lock mu only, and so never wait for a step.
	// A step asks the store, so a caller can stop waiting for it.
	stepping *semaphore.Weighted
	mu       sync.Mutex
	head
	progress

	source     Source // of an adoption, while it runs
	sink       Sink   // of an unadoption, while it runs
	window     []putBack
	parkErrors int // of it, one after another
	emptySince time.Time
	unsaved    *progress          // that could not be written
	interrupt  context.CancelFunc // ends the step under way
	limit      *rate.Limiter
	term       uint64    // in which this replica has it; 0: it has not
	next       time.Time // the next step is not before
	tries      int       // steps that failed, one after another
	uncertain  bool      // a write of its progress failed, and may have happened all the same
	stepLimit  int       // at most so many keys in a step, since one of them may be what fails; 0: no limit
	trouble    string    // why the last step failed
	canaries   []canary  // once read
	speed      []pace
	walk       walk
}

func newOperation() *operation { return &operation{stepping: semaphore.NewWeighted(1)} }

// pace is how many messages were processed by a moment.
type pace struct {
	at time.Time
	n  int64
}

// operations are all plans and operations, by id; the first call reads them.
func (r *Runner) operations(ctx context.Context) (map[string]*operation, error) {
	if err := r.mu.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer r.mu.Release(1)
	if r.loaded {
		return maps.Clone(r.all), nil
	}
	all := map[string]*operation{}
	err := r.Store.Entries(ctx, headPrefix, "", func(e store.Entry) (bool, error) {
		op, err := r.readOperation(ctx, e)
		if err == nil {
			all[op.ID] = op
		}
		return true, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the operations: %w", err)
	}
	r.all, r.loaded = all, true
	return maps.Clone(all), nil
}

func (r *Runner) readOperation(ctx context.Context, e store.Entry) (*operation, error) {
	op := newOperation()
	if err := json.Unmarshal(e.Value, &op.head); err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name, err)
	}
	p, err := r.Store.Entry(ctx, partsOf(op.ID)+"progress")
	if err == nil && p != nil {
		err = json.Unmarshal(p, &op.progress)
	}
	return op, err
}

// read reads a plan or an operation; nil when there is none.
func (r *Runner) read(ctx context.Context, id string) (*operation, error) {
	value, err := r.Store.Entry(ctx, headPrefix+id)
	if err != nil || value == nil {
		return nil, err
	}
	return r.readOperation(ctx, store.Entry{Name: headPrefix + id, Value: value})
}

// byID finds a plan or an operation; nil when there is none.
func (r *Runner) byID(ctx context.Context, id string) (*operation, error) {
	all, err := r.operations(ctx)
	if err != nil || all[id] != nil || !r.shared() {
		return all[id], err
	}
	op, err := r.read(ctx, id) // it may have been made at another replica, a moment ago
	if err != nil || op == nil {
		return nil, err
	}
	r.lock()
	defer r.mu.Release(1)
	if known := r.all[id]; known != nil {
		return known, nil
	}
	r.all[id] = op
	return op, nil
}

// operation finds one that the caller may see: they see all its queues.
func (r *Runner) operation(ctx context.Context, by auth.Caller, id string) (*operation, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	op, err := r.byID(ctx, id)
	if err != nil {
		return nil, err
	}
	if op != nil && op.seenBy(by) {
		return op, nil
	}
	return nil, notFound(id)
}

func (op *operation) seenBy(by auth.Caller) bool {
	for _, q := range op.Queues { // never written after it was made
		if !by.Sees(q.Queue) {
			return false
		}
	}
	return len(op.Queues) > 0 || op.By == by.Name
}

// show returns the operation as it is now. The caller holds mu.
func (op *operation) show(now time.Time) Operation {
	o := op.head.Operation
	p := &op.progress
	o.State, o.Why, o.Ended = p.State, p.Why, p.Ended
	o.Done, o.SkippedN, o.Failed = p.Done, p.Skipped, p.Fails
	if o.Why == "" {
		o.Why = op.trouble
	}
	if p.Again != nil {
		o.Replayed = p.Again.show(p.Done)
	}
	if p.State == Watching || p.State == Paused && p.Was == Watching {
		o.CanarySent = p.Done - p.Pending
	}
	if p.State == Watching && !p.Watched.IsZero() {
		until := p.Watched.Add(op.CanaryWait)
		o.CanaryUntil = &until
		o.Left = max(0, op.CanaryWait-now.Sub(p.Watched)).Round(time.Second).String()
	}
	if p.State == Running {
		op.dropOldSpeed(now)
		if len(op.speed) > 0 {
			if took := now.Sub(op.speed[0].at).Seconds(); took > 0 {
				o.PerSecond = float64(p.processed()-op.speed[0].n) / took
			}
		}
		if left := float64(o.Count - p.processed()); o.PerSecond > 0 {
			o.Left = time.Duration(left / o.PerSecond * float64(time.Second)).Round(time.Second).String()
		}
	}
	return o
}

// speedWindow is how long the speed is averaged over.
const speedWindow = 10 * time.Second

// notePace notes how far it is now, unless it only watches its canaries. The caller holds mu.
func (op *operation) notePace(now time.Time) {
	if op.progress.State == Watching {
		op.speed = nil
		return
	}
	op.dropOldSpeed(now)
	op.speed = append(op.speed, pace{now, op.processed()})
}

func (op *operation) dropOldSpeed(now time.Time) {
	for len(op.speed) > 1 && now.Sub(op.speed[1].at) > speedWindow {
		op.speed = op.speed[1:]
	}
}

// Operations are those that were started, the newest first.
func (r *Runner) Operations(ctx context.Context, by auth.Caller) ([]Operation, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	all, err := r.operations(ctx)
	if err != nil {
		return nil, err
	}
	list := []Operation{}
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(all))) {
		op := all[id]
		op.mu.Lock()
		if op.progress.State != "" && op.seenBy(by) {
			list = append(list, op.show(r.now()))
		}
		op.mu.Unlock()
	}
	return list, nil
}

// Operation is one that was started.
func (r *Runner) Operation(ctx context.Context, by auth.Caller, id string) (Operation, error) {
	op, err := r.operation(ctx, by, id)
	if err != nil {
		return Operation{}, err
	}
	o := op.snapshot(r.now())
	if o.State == "" {
		return Operation{}, fmt.Errorf("%w: %s is a plan that was not started", inspect.ErrNotFound, id)
	}
	return o, nil
}

// Outcomes returns the results of an operation's messages, in the order in which they were processed.
func (r *Runner) Outcomes(ctx context.Context, by auth.Caller, id, after string, limit int) (Outcomes, error) {
	page := Outcomes{Outcomes: []actions.Outcome{}}
	op, err := r.operation(ctx, by, id)
	if err != nil {
		return page, err
	}
	op.mu.Lock()
	replays := op.progress.Again != nil
	op.mu.Unlock()
	if limit, err = inspect.PageSize(limit); err != nil {
		return page, err
	}
	prefix := partsOf(id) + "outcome/"
	// after is the last entry that was shown, and how many of its outcomes were.
	name, shown, _ := strings.Cut(after, ".")
	skip, err := strconv.Atoi(shown)
	if after != "" && (err != nil || skip < 0) {
		return page, fmt.Errorf("%w: %.60q is not where a page ended", inspect.ErrInvalid, after)
	}
	add := func(name string, value []byte) (more bool, err error) {
		var part []actions.Outcome
		if err := json.Unmarshal(value, &part); err != nil {
			return false, fmt.Errorf("%s: %w", prefix+name, err)
		}
		var mark againMark
		if replays {
			if mark, err = r.readMark(ctx, partsOf(id)+"again/"+name); err != nil {
				return false, err
			}
		}
		for i := skip; i < len(part); i++ {
			if len(page.Outcomes) == limit {
				page.After = name + "." + strconv.Itoa(i)
				return false, nil
			}
			if replays && part[i].Outcome == actions.Done {
				part[i].Became = mark.became(i)
			}
			page.Outcomes = append(page.Outcomes, part[i])
		}
		skip = 0
		return true, nil
	}
	from := ""
	if after != "" {
		from = prefix + name
		value, err := r.Store.Entry(ctx, from)
		if err != nil {
			return page, err
		}
		if value == nil {
			return page, fmt.Errorf("%w: %.60q is not where a page ended", inspect.ErrInvalid, after)
		}
		if more, err := add(name, value); err != nil || !more {
			return page, err
		}
	}
	err = r.Store.Entries(ctx, prefix, from, func(e store.Entry) (bool, error) {
		return add(strings.TrimPrefix(e.Name, prefix), e.Value)
	})
	return page, err
}
