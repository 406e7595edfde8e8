package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// sent is one of the first messages of an operation, as it was sent. A record with the
// same id, and another attempt or failure, is of a message that failed again.
type sent struct {
	ID      uuid.UUID
	Attempt int
	Failed  int64 // microseconds
}

func sentAs(r *store.Record) sent { return sent{r.ID, r.Failures, r.FailedAt.UnixMicro()} }

// canaryChecks is how often the first messages are looked for while they are
// watched, minCheck and maxCheck how far apart.
const (
	canaryChecks = 20
	minCheck     = 100 * time.Millisecond
	maxCheck     = 5 * time.Second
)

// checkCanary looks whether any of the first messages failed again. It asks the store, not
// only memory, so the result is the same after a restart. The wait begins when all of them
// have been retried.
func (r *Runner) checkCanary(ctx context.Context, op *operation) (next time.Time, err error) {
	if op.firstSent == nil {
		if op.firstSent, err = r.readCanary(ctx, op.ID); err != nil {
			return next, err
		}
	}
	r.canaries.add(op.ID, op.firstSent)
	failed, unsent, first := 0, 0, ""
	p, now := op.progress, r.now()
	last := !p.Watched.IsZero() && now.Sub(p.Watched) >= op.CanaryWait
	for _, s := range op.firstSent {
		how, why, err := r.whereIs(ctx, s, last)
		if err != nil {
			return next, err
		}
		switch how {
		case hasFailed:
			if failed++; first == "" {
				first = fmt.Sprintf("message %s: %s", s.ID, why)
			}
		case notYetSent:
			unsent++
		}
	}
	switch every := min(max(op.CanaryWait/canaryChecks, minCheck), maxCheck); {
	case len(op.firstSent) == 0: // none of the messages existed any more
		return r.saveState(ctx, op, Running, "")
	case failed > 0:
		return r.saveState(ctx, op, Stopped, fmt.Sprintf("of the first %d messages %d failed again (%s); what is left is as it was", len(op.firstSent), failed, first))
	case unsent > 0:
		if p.Watched.IsZero() {
			return time.Now().Add(every), nil
		}
		op.set(func() { op.progress.Watched = time.Time{} })
		return r.saveState(ctx, op, Canary, "")
	case p.Watched.IsZero():
		op.set(func() { op.progress.Watched = now })
		return r.saveState(ctx, op, Canary, "")
	case now.Sub(p.Watched) < op.CanaryWait:
		return time.Now().Add(min(every, op.CanaryWait-now.Sub(p.Watched))), nil
	}
	return r.saveState(ctx, op, Running, "")
}

// whereIs looks for a message in the store, among the failures since it was sent, and at
// the last check also among earlier attempts: one that failed again and was retried since is
// not in the store, nor is one that waits in RabbitMQ or that its policy discards.
func (r *Runner) whereIs(ctx context.Context, s sent, last bool) (how whereabouts, why string, err error) {
	kept, err := r.Store.Find(ctx, s.ID)
	if err != nil {
		return notKept, "", err
	}
	if how, why = s.among(kept); how != notKept {
		return how, why, nil
	}
	if why, failed := r.canaries.failed(s); failed {
		return hasFailed, why, nil
	}
	if !last {
		return notKept, "", nil
	}
	past, err := r.Store.PastFailures(ctx, s.ID)
	for _, p := range past {
		if p.FailedAt.UnixMicro() > s.Failed {
			return hasFailed, failedAgain(p.Reason, p.Error), err
		}
	}
	return notKept, "", err
}

// failedAgain says how a message failed again.
func failedAgain(reason, problem string) string {
	if problem != "" {
		return actions.Short(problem)
	}
	return "it failed again: " + reason
}

// canaries are the messages that are watched, and how those failed that did.
type canaries struct {
	mu      sync.Mutex
	watched map[uuid.UUID]*failure
}

type failure struct {
	of  string // the operation that watches it
	at  int64  // microseconds; 0: it has not failed
	why string
}

// add begins to watch messages; those that are watched already stay so.
func (w *canaries) add(operation string, all []sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range all {
		if w.watched == nil {
			w.watched = map[uuid.UUID]*failure{}
		}
		if w.watched[s.ID] == nil {
			w.watched[s.ID] = &failure{of: operation}
		}
	}
}

// remove ends that for all messages of an operation.
func (w *canaries) remove(operation string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.watched, func(_ uuid.UUID, f *failure) bool { return f.of == operation })
}

func (w *canaries) failed(s sent) (why string, failed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.watched[s.ID]
	if f == nil || f.at <= s.Failed {
		return "", false
	}
	return f.why, true
}

// Failed receives each message that fails; it may be called by several goroutines.
func (r *Runner) Failed(e retry.Event) {
	r.canaries.mu.Lock()
	defer r.canaries.mu.Unlock()
	if f := r.canaries.watched[e.ID]; f != nil {
		f.at, f.why = e.At.UnixMicro(), failedAgain(e.Reason, e.Error)
	}
}

type whereabouts int

const (
	notKept whereabouts = iota
	notYetSent
	hasFailed
)

// among looks for a message in the records of its id.
func (s sent) among(kept []store.Listed) (how whereabouts, why string) {
	for _, l := range kept {
		r := l.Record
		switch same := r.Failures == s.Attempt && r.FailedAt.UnixMicro() == s.Failed; {
		case !same:
			return hasFailed, failedAgain(r.Reason, r.Error)
		case r.State == store.Parked: // it could not be retried
			return hasFailed, r.ParkedFor
		case r.State == store.Waiting:
			how = notYetSent
		}
	}
	return how, ""
}

func (r *Runner) readCanary(ctx context.Context, id string) ([]sent, error) {
	all := []sent{}
	err := r.Store.Entries(ctx, partsOf(id)+"canary/", "", func(e store.Entry) (bool, error) {
		var part []sent
		if err := json.Unmarshal(e.Value, &part); err != nil {
			return false, fmt.Errorf("%s: %w", e.Name, err)
		}
		all = append(all, part...)
		return true, nil
	})
	return all, err
}
