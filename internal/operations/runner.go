// Package operations acts on all messages that a query finds. A query becomes
// a plan, whose messages are fixed at that moment; once it is started, it is an operation.
// Read it in this order:
//
//	shown.go        plans and operations as they are shown
//	plan.go         what an action would do to all that a query finds, and that selection
//	runner.go       the Runner and its parts, and what page and API call; it deletes old operations
//	operation.go    plans and operations in memory and in the store, and their results
//	start.go        a plan becomes an operation, and is paused, resumed or canceled
//	step.go         all operations in turn, a step of each; canary.go: whether its first
//	                messages fail again; again.go: how many of all fail again
//	adopt.go        the plan and the steps of an adoption, whose messages are in RabbitMQ
//	unadopt.go      the plan and the steps of what puts adopted messages back
//	replicas.go     which of several replicas runs an operation
//	live.go         what has changed since a moment ago
package operations

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// Store is the part of a store that operations need; Actions changes messages.
type Store interface {
	store.Searcher
	store.SideTable
	NewestNumber(ctx context.Context) (uint64, error)
}

// Config has the parts of a Runner.
type Config struct {
	// Inspect finds the messages of a plan. Its log, clock and replicas are used, too.
	Inspect *inspect.Inspector
	// Actions changes the messages.
	Actions *actions.Actions
	Store   Store
	// DeadLetters adopts queues; nil: it cannot.
	DeadLetters DeadLetters
	// Replica is the id of this replica where others can share the store, which is a store.Shared
	// then; "" where none can.
	Replica string
}

// Runner makes plans and runs operations. Its methods may be called at once from many
// goroutines, and each checks its caller.
type Runner struct {
	Config
	log *slog.Logger

	// mu is held while the operations are read, so a caller can stop waiting for it.
	mu       *semaphore.Weighted
	loaded   bool
	all      map[string]*operation
	planning sync.Map // ids of plans that are being made, whose entries are not a crash's
	planners background.Places
	wake     [2]chan struct{} // by loop: there is work

	staleMu sync.Mutex
	stale   [2]map[string]bool // by loop, operations that other replicas have changed; "": perhaps all

	// canaryFailures are noted as they happen: no record shows those of messages that are not stored.
	canaryFailures canaryFailures
}

// New makes a Runner.
func New(c Config) *Runner {
	return &Runner{Config: c, log: c.Inspect.Log, mu: semaphore.NewWeighted(1), all: map[string]*operation{},
		stale:          [2]map[string]bool{{}, {}},
		planners:       background.Places{What: "plans that are being made", All: 8, Own: 2},
		wake:           [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)},
		canaryFailures: canaryFailures{byID: map[uuid.UUID]*canaryFailure{}, more: map[string]int{}}}
}

func (r *Runner) now() time.Time { return r.Inspect.Now() }

// lock takes mu where there is nothing to be done without it.
func (r *Runner) lock() { _ = r.mu.Acquire(context.Background(), 1) } // it never fails

// shared reports whether several replicas can share the store.
func (r *Runner) shared() bool { return r.Replica != "" }

// changed announces changed operations to the other replicas.
func (r *Runner) changed(ids ...string) {
	if r.shared() {
		r.Inspect.Changed(ids...)
	}
}

// Wake has the Runner look for work now.
func (r *Runner) Wake() {
	for _, wake := range r.wake {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

const (
	// forgetEvery is how often discarded messages that can no longer be restored, and old plans and
	// operations, are looked for.
	forgetEvery = time.Minute
	// operationLives is how long an ended operation is known, and maxOperations how
	// many are.
	operationLives = 30 * 24 * time.Hour
	maxOperations  = 1000
)

// Lead deletes what is old until ctx ends: discarded messages whose time to be restored is over, plans
// and operations. Of several replicas the leader calls it.
func (r *Runner) Lead(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.forget(ctx); err != nil && ctx.Err() == nil && !deposed(err) {
			r.log.Error("what is old cannot be forgotten; trying again", "error", err)
		}
		sleep(ctx, forgetEvery)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (r *Runner) forget(ctx context.Context) error {
	now := r.now()
	if err := r.Actions.Forget(ctx, now); err != nil {
		return err
	}
	if err := r.forgetOld(ctx, now); err != nil {
		return err
	}
	return r.forgetOrphans(ctx, now)
}

// forgetOld forgets plans that were never started, and operations that ended long ago.
func (r *Runner) forgetOld(ctx context.Context, now time.Time) error {
	all, err := r.operations(ctx)
	if err != nil {
		return err
	}
	plans, operations := 0, 0
	own, ofQueue := map[string]int{}, map[string]int{}
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(all))) { // the newest first
		op := all[id]
		op.mu.Lock()
		p, old := op.progress, false
		switch {
		case p.State == "":
			plans++
			own[op.By]++
			old = plans > maxPlans || own[op.By] > maxOwnPlans || !now.Before(op.Expires)
			for _, q := range op.Queues {
				ofQueue[q.Queue]++
				old = old || ofQueue[q.Queue] > maxPlansOfQueue
			}
		case p.Ended != nil:
			operations++
			old = operations > maxOperations || now.Sub(*p.Ended) > operationLives
		}
		op.mu.Unlock()
		if !old {
			continue
		}
		if err := r.forgetOne(ctx, op, p.State); err != nil {
			return err
		}
	}
	return nil
}

// forgetOne deletes a plan or an operation, unless it has changed meanwhile. What a crash leaves of
// it has no head, and is deleted by forgetOrphans.
func (r *Runner) forgetOne(ctx context.Context, op *operation, state string) error {
	if err := op.stepping.Acquire(ctx, 1); err != nil {
		return err
	}
	defer op.stepping.Release(1)
	if err := r.take(ctx, op); err != nil {
		if errors.Is(err, inspect.ErrNotFound) {
			return nil
		}
		return err
	}
	if op.progress.State != state {
		op.lose()
		return nil
	}
	ctx = r.inTerm(ctx, op)
	if err := r.Store.PutEntries(ctx, []store.Entry{{Name: headPrefix + op.ID}}); err != nil {
		op.lose()
		return err
	}
	r.drop(op)
	r.changed(op.ID)
	return r.Store.DeleteEntries(ctx, partsOf(op.ID))
}

// forgetOrphans deletes the entries of plans that were never finished.
func (r *Runner) forgetOrphans(ctx context.Context, now time.Time) error {
	for after := ""; ; {
		id := ""
		err := r.Store.Entries(ctx, partPrefix, after, func(e store.Entry) (bool, error) {
			id, _, _ = strings.Cut(strings.TrimPrefix(e.Name, partPrefix), "/")
			return false, nil
		})
		if err != nil || id == "" {
			return err
		}
		_, planning := r.planning.Load(id) // before all, where the plan is by the end of planning
		r.lock()
		orphan := r.all[id] == nil && !planning
		r.mu.Release(1)
		if orphan && r.shared() { // another replica may be making it, or just have made it
			head, err := r.Store.Entry(ctx, headPrefix+id)
			if err != nil {
				return err
			}
			orphan = head == nil && now.Sub(createdAt(id)) > maxPlanning
		}
		if orphan {
			if err := r.Store.DeleteEntries(ctx, partsOf(id)); err != nil {
				return err
			}
		}
		after = partsOf(id) + "\xff" // behind all of its parts
	}
}

// Console serves the page and the API: an inspect.Inspector, actions.Actions and a Runner.
// Each method checks its caller.
type Console interface {
	Overview(ctx context.Context, c auth.Caller) (inspect.Overview, error)
	Search(ctx context.Context, c auth.Caller, query, after string, limit int, columns ...string) (inspect.Page, error)
	Count(ctx context.Context, c auth.Caller, query string) (n int64, exact bool, err error)
	CountStates(ctx context.Context, c auth.Caller, query string) (n inspect.StateCounts, known bool, err error)
	Message(ctx context.Context, c auth.Caller, id string) (inspect.Detail, error)
	Show(ctx context.Context, c auth.Caller, id, reason string) (inspect.Detail, error)
	Body(ctx context.Context, c auth.Caller, id string) ([]byte, error)
	Groups(ctx context.Context, c auth.Caller, query, state, after string, limit int) (inspect.GroupPage, error)
	Errors(ctx context.Context, c auth.Caller, query, state, after string, limit int) (inspect.GroupPage, error)
	Group(ctx context.Context, c auth.Caller, id string) (inspect.GroupDetail, error)
	Queues(ctx context.Context, c auth.Caller, after string, limit int) ([]inspect.Queue, string, error)
	Queue(ctx context.Context, c auth.Caller, name string) (inspect.QueueDetail, error)
	LastCheckup(ctx context.Context, c auth.Caller) (inspect.Checkup, error)
	Ledger(ctx context.Context, c auth.Caller, recount bool, after string, limit int) (inspect.Ledger, error)
	Policies(ctx context.Context, c auth.Caller) ([]inspect.PolicyInForce, error)
	AuditLog(ctx context.Context, c auth.Caller, f inspect.AuditFilter, after string, limit int) (
		[]audit.Entry, string, error)

	Act(ctx context.Context, c auth.Caller, a actions.Act) (actions.Acted, error)
	Edit(ctx context.Context, c auth.Caller, e actions.EditRequest) (actions.Edited, error)
	NoteGroup(ctx context.Context, c auth.Caller, group, note string) error
	SetGroupState(ctx context.Context, c auth.Caller, group, state, note string) error
	Breaker(ctx context.Context, c auth.Caller, queue, to, reason string) error
	AllowReplays(ctx context.Context, c auth.Caller, queue, reason string) error
	PauseQueue(ctx context.Context, c auth.Caller, queue, reason string) error
	ResumeQueue(ctx context.Context, c auth.Caller, queue, reason string) error
	Export(ctx context.Context, c auth.Caller, query string, w io.Writer) (n int64, err error)
	Import(ctx context.Context, c auth.Caller, r io.Reader, o actions.ImportOptions) (actions.Imported, error)
	Report(ctx context.Context, c auth.Caller, r actions.Report) error
	Snapshot(ctx context.Context, c auth.Caller, folder string) (actions.SnapshotMade, error)

	Plan(ctx context.Context, c auth.Caller, r PlanRequest) (Plan, error)
	GetPlan(ctx context.Context, c auth.Caller, id string) (Plan, error)
	Start(ctx context.Context, c auth.Caller, plan string, s Start) (Operation, error)
	DeadLetterQueues(ctx context.Context, c auth.Caller) ([]DeadLetterQueue, error)
	Follow(ctx context.Context, c auth.Caller, queue string, q FollowRequest) error
	Unfollow(ctx context.Context, c auth.Caller, queue, reason string) error
	Operations(ctx context.Context, c auth.Caller) ([]Operation, error)
	Operation(ctx context.Context, c auth.Caller, id string) (Operation, error)
	Order(ctx context.Context, c auth.Caller, id string, o Order) (Operation, error)
	Outcomes(ctx context.Context, c auth.Caller, id, after string, limit int) (Outcomes, error)
	Watch(ctx context.Context, c auth.Caller) <-chan Tick
}
