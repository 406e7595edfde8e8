package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// canary is one of the first messages of an operation, as the operation changed it. A record
// with the same id, and other failures, is of a message that failed again. Its names in JSON are
// stored.
type canary struct {
	ID      uuid.UUID
	Attempt int
	Failed  int64 // microseconds
}

func canaryOf(r *store.Record) canary { return canary{r.ID, r.Failures, r.FailedAt.UnixMicro()} }

// canaryChecks is how often the canaries are looked for while they are watched, minCheck and
// maxCheck how far apart.
const (
	canaryChecks = 20
	minCheck     = 100 * time.Millisecond
	maxCheck     = 5 * time.Second
)

// checkCanaries looks whether any canary failed again. It asks the store, not only memory, so
// the result is the same after a restart. The wait begins when all of them have been retried.
func (r *Runner) checkCanaries(ctx context.Context, op *operation) (next time.Time, err error) {
	if op.canaries == nil {
		if op.canaries, err = r.readCanaries(ctx, op.ID); err != nil {
			return next, err
		}
	}
	r.canaryFailures.add(op.ID, op.canaries)
	failed := ""
	var pending []string // their queues
	p, now := op.progress, r.now()
	last := !p.Watched.IsZero() && now.Sub(p.Watched) >= op.CanaryWait
	for _, c := range op.canaries {
		how, why, queue, err := r.whereIs(ctx, c, last)
		if err != nil {
			return next, err
		}
		switch how {
		case hasFailed:
			failed = cmp.Or(failed, fmt.Sprintf("message %s: %s", c.ID, why))
		case notYetRetried:
			pending = append(pending, queue)
		}
	}
	switch every := min(max(op.CanaryWait/canaryChecks, minCheck), maxCheck); {
	case len(op.canaries) == 0: // none of the messages existed any more
		return r.saveState(ctx, op, Running, "")
	case failed != "": // how many is counted on
		return r.saveState(ctx, op, Stopped, "the canary failed again ("+failed+"); what is left is as it was")
	case len(pending) > 0:
		next := time.Now().Add(every)
		p.Watched, p.Pending = time.Time{}, int64(len(pending))
		if p.Why, err = r.whyPending(ctx, op, pending); err != nil || op.Watched.IsZero() &&
			op.Pending == p.Pending && op.progress.Why == p.Why {
			return next, err
		}
		return next, r.putProgress(ctx, op, p)
	case p.Watched.IsZero():
		op.set(func() { op.progress.Watched, op.progress.Pending = now, 0 })
		return r.saveState(ctx, op, Watching, "")
	case now.Sub(p.Watched) < op.CanaryWait:
		return time.Now().Add(min(every, op.CanaryWait-now.Sub(p.Watched))), nil
	}
	return r.saveState(ctx, op, Running, "")
}

// maxPendingShown is of how many queues whyPending speaks.
const maxPendingShown = 3

// whyPending says why canaries in these queues are not retried, or "". No pause stops a copy.
func (r *Runner) whyPending(ctx context.Context, op *operation, queues []string) (string, error) {
	switch {
	case !op.Verb.Retries():
		return "", nil
	case op.At != nil && op.At.After(r.now()):
		return "its messages are due at " + op.At.UTC().Format(time.RFC3339), nil
	}
	slices.Sort(queues)
	all, err := r.Inspect.HeldBack(ctx, slices.Compact(queues))
	if more := len(all) - maxPendingShown; more > 0 {
		all = append(all[:maxPendingShown], fmt.Sprintf("and more queues: %d", more))
	}
	return strings.Join(all, "; "), err
}

// whereIs looks for a canary in the store, among the failures since it was retried, and at
// the last check also among past failures: one that failed again and was retried since is
// not in the store, nor is one that waits in RabbitMQ or that its policy discards.
func (r *Runner) whereIs(ctx context.Context, c canary, last bool) (how whereabouts, why, queue string, err error) {
	kept, err := r.Store.Find(ctx, c.ID)
	if err != nil {
		return notKept, "", "", err
	}
	if how, why = r.among(c, kept); how != notKept {
		return how, why, kept[0].Record.Queue, nil
	}
	if f, failed := r.canaryFailures.after(c.ID, c.Failed); failed {
		return hasFailed, f.why, "", nil
	}
	if !last {
		return notKept, "", "", nil
	}
	past, err := r.Store.PastFailures(ctx, c.ID)
	for _, p := range past {
		if p.FailedAt.UnixMicro() > c.Failed {
			return hasFailed, r.failedAgain(p.Queue, p.Reason, p.Error), "", err
		}
	}
	return notKept, "", "", err
}

// failedAgain says how a message failed again.
func (r *Runner) failedAgain(queue, reason, problem string) string {
	if problem != "" {
		return actions.Short(r.Inspect.ForAll(queue, problem))
	}
	return "it failed again: " + reason
}

// canaryFailures are the failures of all operations' canaries, and of some other messages that they replayed.
type canaryFailures struct {
	mu   sync.Mutex
	byID map[uuid.UUID]*canaryFailure
	more map[string]int // by operation, how many besides its canaries
}

type canaryFailure struct {
	operation string
	at        int64 // microseconds; 0: it has not failed
	why       string
	group     errorgroup.Group
}

// add begins to watch canaries; those that are watched already stay so.
func (w *canaryFailures) add(operation string, all []canary) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range all {
		if w.byID[c.ID] == nil {
			w.byID[c.ID] = &canaryFailure{operation: operation}
		}
	}
}

// watch begins to watch a message of an operation, unless it has too many.
func (w *canaryFailures) watch(operation string, id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byID[id] != nil || w.more[operation] >= maxAgainWatched {
		return
	}
	w.more[operation]++
	w.byID[id] = &canaryFailure{operation: operation}
}

// after returns the failure of a message if it came after at, in microseconds.
func (w *canaryFailures) after(id uuid.UUID, at int64) (canaryFailure, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.byID[id]; f != nil && f.at > at {
		return *f, true
	}
	return canaryFailure{}, false
}

func (w *canaryFailures) remove(operation string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.more, operation)
	maps.DeleteFunc(w.byID, func(_ uuid.UUID, f *canaryFailure) bool { return f.operation == operation })
}

// Failed receives each message that fails; it may be called by several goroutines.
func (r *Runner) Failed(e retry.Event) {
	r.canaryFailures.mu.Lock()
	defer r.canaryFailures.mu.Unlock()
	if f := r.canaryFailures.byID[e.ID]; f != nil {
		f.at, f.why = e.At.UnixMicro(), r.failedAgain(e.Queue, e.Reason, e.Error)
		f.group = errorgroup.Of(e.Queue, e.Reason, e.Error, "")
	}
}

type whereabouts int

const (
	notKept whereabouts = iota
	notYetRetried
	hasFailed
)

// among looks for a canary in the records of its id.
func (r *Runner) among(c canary, kept []store.Listed) (how whereabouts, why string) {
	for _, l := range kept {
		m := l.Record
		switch same := m.Failures == c.Attempt && m.FailedAt.UnixMicro() == c.Failed; {
		case !same:
			return hasFailed, r.failedAgain(m.Queue, m.Reason, m.Error)
		case m.State == store.Parked: // it could not be retried
			return hasFailed, r.Inspect.ForAll(m.Queue, m.ParkedFor)
		case m.State == store.Waiting:
			how = notYetRetried
		}
	}
	return how, ""
}

func (r *Runner) readCanaries(ctx context.Context, id string) ([]canary, error) {
	all := []canary{}
	err := r.Store.Entries(ctx, partsOf(id)+"canary/", "", func(e store.Entry) (bool, error) {
		var part []canary
		if err := json.Unmarshal(e.Value, &part); err != nil {
			return false, fmt.Errorf("%s: %w", e.Name, err)
		}
		all = append(all, part...)
		return true, nil
	})
	return all, err
}
