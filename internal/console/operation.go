package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// PlanRequest asks what an action on all that a query finds would do.
type PlanRequest struct {
	Verb   Verb       `json:"verb" enum:"replay,discard,restore,copy"`
	Query  string     `json:"query" doc:"In the query language; it must not be empty."`
	At     *time.Time `json:"at,omitempty" doc:"Replay: when; left out: now."`
	To     string     `json:"to,omitempty" doc:"Copy: the queue."`
	Reason string     `json:"reason,omitempty" maxLength:"500"`
}

// Plan is an action on many messages before it begins. The messages are those that
// were found when it was made: what fails later is not among them.
type Plan struct {
	ID       string      `json:"id"`
	Verb     Verb        `json:"verb"`
	Query    string      `json:"query"`
	At       *time.Time  `json:"at,omitempty"`
	To       string      `json:"to,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	By       string      `json:"by"`
	Made     time.Time   `json:"made"`
	Expires  time.Time   `json:"expires" doc:"It must be started before."`
	Count    int64       `json:"count" doc:"Exactly how many messages it is about."`
	Oldest   *time.Time  `json:"oldest,omitempty" doc:"When the first of them failed."`
	Newest   *time.Time  `json:"newest,omitempty"`
	Queues   []PlanQueue `json:"queues" doc:"Split by work queue."`
	Skipped  []Skipped   `json:"skipped,omitempty" doc:"Found by the query, and not among them."`
	Samples  []Message   `json:"samples"`
	Blocked  []string    `json:"blocked,omitempty" doc:"Why it cannot start; empty when it can."`
	Warnings []string    `json:"warnings,omitempty"`
}

// PlanQueue is a plan's part for one queue.
type PlanQueue struct {
	Queue     string `json:"queue"`
	Count     int64  `json:"count"`
	Exists    bool   `json:"exists"`
	Consumers int    `json:"consumers"`
	Ready     int    `json:"ready" doc:"Messages in the queue now."`
	Held      bool   `json:"held"`
}

// Skipped is how many a plan leaves out, and why.
type Skipped struct {
	Why   string `json:"why"`
	Count int64  `json:"count"`
}

// Start begins a plan.
type Start struct {
	ExpectCount *int64  `json:"expect_count,omitempty" doc:"Refuse when the plan has another count."`
	Rate        float64 `json:"rate,omitempty" minimum:"0" doc:"At most so many a second; 0: as fast as RabbitMQ takes them."`
	Canary      int     `json:"canary,omitempty" minimum:"0" maximum:"10000" doc:"So many first; go on only if none of them comes back."`
	// CanaryWait is how long the first are watched.
	CanaryWait string `json:"canary_wait,omitempty" doc:"How long they are watched, such as 30s; left out: 1m."`
	Reason     string `json:"reason,omitempty" maxLength:"500"`
}

// States of an operation.
const (
	Running  = "running"
	Canary   = "canary" // the first are out; waiting whether they come back
	Paused   = "paused"
	Finished = "finished"
	Canceled = "canceled"
	Stopped  = "stopped" // by itself: see Why
)

// Operation is a plan that was started.
type Operation struct {
	Plan
	State     string     `json:"state" enum:"running,canary,paused,finished,canceled,stopped"`
	Why       string     `json:"why,omitempty" doc:"Why it is paused or stopped."`
	Rate      float64    `json:"rate"`
	Canary    int        `json:"canary"`
	Started   time.Time  `json:"started"`
	StartedBy string     `json:"started_by"`
	Ended     *time.Time `json:"ended,omitempty"`
	Done      int64      `json:"done"`
	SkippedN  int64      `json:"skipped_now" doc:"Were not there any more when their turn came."`
	Failed    int64      `json:"failed"`
	PerSecond float64    `json:"per_second" doc:"Lately."`
	Left      string     `json:"left,omitempty" doc:"About how long it will take still."`
}

// Order is what a person tells a running operation.
type Order string

// Orders.
const (
	Pause  Order = "pause"
	Resume Order = "resume"
	Cancel Order = "cancel"
)

// Outcomes is a piece of an operation's account.
type Outcomes struct {
	Outcomes []Outcome `json:"outcomes"`
	After    string    `json:"after,omitempty"`
}

// What is kept of a plan, and of the operation it becomes, is in the store's side
// table:
//
//	operations/<id>            the plan; once it is started, with how (head)
//	operation/<id>/progress    how far it is
//	operation/<id>/keys/<n>    the messages it is about, in order (frozen.go)
//	operation/<id>/run/<r>/<n> the same while they are brought in order
//	operation/<id>/outcome/<n> what came of those from the n-th on
//	operation/<id>/canary/<n>  of the first ones, how they were sent (canary.go)
//
// Progress and outcomes are written in the same step as the messages themselves, so
// that after a crash each message is done once and in the account once.
const (
	headPrefix = "operations/"
	partPrefix = "operation/"
)

func partsOf(id string) string { return partPrefix + id + "/" }

// head is what does not change while an operation runs.
type head struct {
	Operation  // its progress is elsewhere
	CanaryWait time.Duration
	StartedAs  auth.Caller // for the audit log's last line
}

// progress is what changes. Ended operations whose last line in the audit log is
// not written yet have Untold.
type progress struct {
	State                string
	Was                  string     `json:",omitempty"` // Paused: what it goes back to
	Why                  string     `json:",omitempty"`
	Done, Skipped, Fails int64      // together how many of the keys were dealt with
	Watched              time.Time  `json:",omitzero"` // Canary: since when all of them were out
	Ended                *time.Time `json:",omitempty"`
	Untold               bool       `json:",omitempty"`
}

func (p *progress) dealt() int64 { return p.Done + p.Skipped + p.Fails }

// active tells whether it has begun and not ended.
func (p *progress) active() bool { return p.State == Running || p.State == Canary || p.State == Paused }

// operation is a plan (State "") or what it became.
type operation struct {
	// turn is held during a step, so that an order falls between two. Who has it may
	// read all, and writes with mu held; who only looks needs mu alone, and so never
	// waits for a step.
	turn sync.Mutex
	mu   sync.Mutex
	head
	progress

	limit   *rate.Limiter
	next    time.Time // nothing to be done before
	tries   int       // steps that failed, one after another
	narrow  int       // not 0: no more at a time, since one of them may be what fails
	trouble string    // why the last one did
	canary  []sent    // what is watched, once read
	speed   []pace
	there   map[string]time.Time // queues, and when they were seen last
}

// pace is how many were dealt with at a time.
type pace struct {
	at time.Time
	n  int64
}

type operations struct {
	mu     sync.Mutex
	loaded bool
	all    map[string]*operation
	active map[string]bool // have begun, and not ended
	made   map[string]bool // plans that are being made
	wake   chan struct{}   // there is something to be done
}

func newOperations() operations {
	return operations{all: map[string]*operation{}, active: map[string]bool{}, made: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// making keeps what is written of a plan from being taken for a crash's.
func (o *operations) making(id string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.made) >= mostMade {
		return fmt.Errorf("%w: %d plans are being made just now: try again in a moment", ErrPrecondition, mostMade)
	}
	o.made[id] = true
	return nil
}

func (o *operations) isMade(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.made, id)
}

func (o *operations) running() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.active)
}

func (o *operations) began(id string) {
	o.mu.Lock()
	o.active[id] = true
	o.mu.Unlock()
	o.awake()
}

func (o *operations) ended(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.active, id)
}

func (o *operations) awake() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// operations are all plans and operations, by id; the first call reads them.
func (c *Console) operations(ctx context.Context) (map[string]*operation, error) {
	c.ops.mu.Lock()
	defer c.ops.mu.Unlock()
	if c.ops.loaded {
		return maps.Clone(c.ops.all), nil
	}
	all := map[string]*operation{}
	err := c.Store.Entries(ctx, headPrefix, "", func(e store.Entry) (bool, error) {
		op := &operation{}
		if err := json.Unmarshal(e.Value, &op.head); err != nil {
			return false, fmt.Errorf("%s: %w", e.Name, err)
		}
		p, err := c.Store.Entry(ctx, partsOf(op.ID)+"progress")
		if err == nil && p != nil {
			err = json.Unmarshal(p, &op.progress)
		}
		if all[op.ID] = op; op.progress.active() {
			c.ops.active[op.ID] = true
		}
		return true, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the operations: %w", err)
	}
	c.ops.all, c.ops.loaded = all, true
	return maps.Clone(all), nil
}

// operation finds one that the caller may see: they see all its queues.
func (c *Console) operation(ctx context.Context, by auth.Caller, id string) (*operation, error) {
	all, err := c.operations(ctx)
	if err != nil {
		return nil, err
	}
	if op := all[id]; op != nil && op.seenBy(by) {
		return op, nil
	}
	return nil, fmt.Errorf("%w: no plan or operation %.60q; plans are forgotten %s after they were made, operations after %d days", ErrNotFound, id, planLives, int(operationLives.Hours()/24))
}

func (op *operation) seenBy(by auth.Caller) bool {
	for _, q := range op.Queues { // never written after it was made
		if !by.Sees(q.Queue) {
			return false
		}
	}
	return len(op.Queues) > 0 || op.By == by.Name
}

// show is the operation as it is now. The caller holds mu.
func (op *operation) show(now time.Time) Operation {
	o := op.head.Operation
	p := &op.progress
	o.State, o.Why, o.Ended = p.State, p.Why, p.Ended
	o.Done, o.SkippedN, o.Failed = p.Done, p.Skipped, p.Fails
	if o.Why == "" {
		o.Why = op.trouble
	}
	if p.State == Running {
		op.forget(now)
		if len(op.speed) > 0 {
			if took := now.Sub(op.speed[0].at).Seconds(); took > 0 {
				o.PerSecond = float64(p.dealt()-op.speed[0].n) / took
			}
		}
		if left := float64(o.Count - p.dealt()); o.PerSecond > 0 {
			o.Left = time.Duration(left / o.PerSecond * float64(time.Second)).Round(time.Second).String()
		}
	}
	return o
}

// lately is what the speed is measured over.
const lately = 10 * time.Second

func (op *operation) forget(now time.Time) {
	for len(op.speed) > 1 && now.Sub(op.speed[1].at) > lately {
		op.speed = op.speed[1:]
	}
}

// Operations are those that were started, the newest first.
func (c *Console) Operations(ctx context.Context, by auth.Caller) ([]Operation, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	all, err := c.operations(ctx)
	if err != nil {
		return nil, err
	}
	list := []Operation{}
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(all))) {
		op := all[id]
		op.mu.Lock()
		if op.progress.State != "" && op.seenBy(by) {
			list = append(list, op.show(c.Now()))
		}
		op.mu.Unlock()
	}
	return list, nil
}

// Operation is one that was started.
func (c *Console) Operation(ctx context.Context, by auth.Caller, id string) (Operation, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return Operation{}, err
	}
	op, err := c.operation(ctx, by, id)
	if err != nil {
		return Operation{}, err
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.progress.State == "" {
		return Operation{}, fmt.Errorf("%w: %s is a plan that was not started", ErrNotFound, id)
	}
	return op.show(c.Now()), nil
}

// Order pauses an operation between two of its steps, lets it go on, or ends it.
func (c *Console) Order(ctx context.Context, by auth.Caller, id string, o Order) (Operation, error) {
	if o != Pause && o != Resume && o != Cancel {
		return Operation{}, fmt.Errorf("%w: the order %.40q: expected pause, resume or cancel", ErrInvalid, o)
	}
	if err := c.permit(by, auth.Operator, "operation."+string(o), id); err != nil {
		return Operation{}, err
	}
	op, err := c.operation(ctx, by, id)
	if err != nil {
		return Operation{}, err
	}
	if o == Resume { // others may stop a copy, but not start it
		if err := c.permit(by, verbs[op.Verb].role, "operation.resume", id, targetOf(op)...); err != nil {
			return Operation{}, err
		}
	}
	op.turn.Lock()
	defer op.turn.Unlock()
	p := op.progress
	active := p.State == Running || p.State == Canary
	switch {
	case o == Pause && active:
		p.Was, p.State, p.Why = p.State, Paused, "paused by "+by.Name
	case o == Resume && p.State == Paused:
		p.State, p.Was, p.Why = p.Was, "", ""
	case o == Cancel && (active || p.State == Paused):
		now := c.Now()
		c.ops.ended(id)
		p.State, p.Was, p.Why, p.Ended = Canceled, "", "canceled by "+by.Name, &now
	default:
		return Operation{}, fmt.Errorf("%w: operation %s cannot be told to %s: it is %s", ErrPrecondition, id, o, cmp.Or(p.State, "a plan"))
	}
	end, err := c.begin(by, "operation."+string(o), id, op.Count, "")
	if err != nil {
		return Operation{}, err
	}
	err = c.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{entryOf(partsOf(id)+"progress", p)})
	if err == nil {
		op.set(func() { op.progress, op.trouble, op.speed = p, "", nil })
		op.limit, op.next, op.tries = nil, time.Time{}, 0
		c.ops.awake()
	}
	end(err, p.dealt())
	return op.now(c.Now()), err
}

// set writes what others may look at.
func (op *operation) set(write func()) {
	op.mu.Lock()
	defer op.mu.Unlock()
	write()
}

// now is show for who does not hold mu.
func (op *operation) now(at time.Time) Operation {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.show(at)
}

// targetOf are the queues besides their own that messages go to.
func targetOf(op *operation) []string {
	if op.Verb == Copy {
		return []string{op.To}
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

// Outcomes is the account of an operation, in the order in which it was done.
func (c *Console) Outcomes(ctx context.Context, by auth.Caller, id, after string, limit int) (Outcomes, error) {
	out := Outcomes{Outcomes: []Outcome{}}
	if err := by.May(auth.Viewer, ""); err != nil {
		return out, err
	}
	if limit < 0 || limit > 1000 {
		return out, fmt.Errorf("%w: the limit is %d: expected 1 to 1000", ErrInvalid, limit)
	}
	if limit == 0 {
		limit = 100
	}
	if _, err := c.operation(ctx, by, id); err != nil {
		return out, err
	}
	prefix := partsOf(id) + "outcome/"
	// after is the entry that was begun and how many of it were shown.
	name, shown, _ := strings.Cut(after, ".")
	skip, err := strconv.Atoi(shown)
	if after != "" && (err != nil || skip < 0) {
		return out, fmt.Errorf("%w: %.60q is not where a page ended", ErrInvalid, after)
	}
	add := func(name string, value []byte) (more bool, err error) {
		var some []Outcome
		if err := json.Unmarshal(value, &some); err != nil {
			return false, fmt.Errorf("%s: %w", prefix+name, err)
		}
		for i := skip; i < len(some); i++ {
			if len(out.Outcomes) == limit {
				out.After = name + "." + strconv.Itoa(i)
				return false, nil
			}
			out.Outcomes = append(out.Outcomes, some[i])
		}
		skip = 0
		return true, nil
	}
	from := ""
	if after != "" {
		from = prefix + name
		value, err := c.Store.Entry(ctx, from)
		if err != nil {
			return out, err
		}
		if value == nil {
			return out, fmt.Errorf("%w: %.60q is not where a page ended", ErrInvalid, after)
		}
		if more, err := add(name, value); err != nil || !more {
			return out, err
		}
	}
	err = c.Store.Entries(ctx, prefix, from, func(e store.Entry) (bool, error) {
		return add(strings.TrimPrefix(e.Name, prefix), e.Value)
	})
	return out, err
}
