package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
)

// operation is one that a person has started, as the ledger knows it.
type operation struct {
	count   int64             // of its plan
	asked   bool              // a person asked for its start, and the answer was lost
	changed map[store.Key]int // how often it has changed each message
}

// drawBulk has people do something with all messages of a queue that are in a state. It is slow, so
// that what happens to the service happens in its middle too.
func (s *scenario) drawBulk(r *rand.Rand) {
	for range max(0, r.IntN(6)-2) {
		at := between(r, time.Minute, faultsEnd)
		if s.inRedis && r.IntN(2) == 0 {
			s.faults = append(s.faults, fault{at: at + between(r, 0, 5*time.Second), kind: storeTrouble, away: 20 * time.Second, percent: pick(r, 30, 60)})
		}
		s.actions = append(s.actions, s.newBulk(r, at))
	}
}

func (s *scenario) newBulk(r *rand.Rand, at time.Duration) action {
	return action{at: at, verb: bulk, queue: s.queues[r.IntN(len(s.queues))],
		of: pick(r, actions.Replay, actions.Replay, actions.Discard, actions.Restore), rate: pick(r, 0, 0.5, 3), canary: pick(r, 0, 0, 2)}
}

func (a action) query() string {
	state := map[actions.Verb]string{actions.Replay: "parked", actions.Discard: "waiting", actions.Restore: "discarded"}[a.of]
	return fmt.Sprintf("queue:%s state:%s", a.queue.name, state)
}

// bulk makes a plan and starts it.
func (w *World) bulk(ctx context.Context, a action) error {
	by := w.used(a.replica).operations
	p, err := by.Plan(ctx, ann, operations.PlanRequest{Verb: a.of, Query: a.query()})
	if err != nil {
		return w.refused(err)
	}
	w.say("%d messages", p.Count)
	if len(p.Blocked) > 0 {
		return nil
	}
	start := operations.Start{Rate: a.rate, CanaryWait: "30s"}
	if a.of.Publishes() {
		start.CanarySize = a.canary
	}
	w.ledger.started(p.ID, p.Count)
	_, err = w.used(a.replica+1).operations.Start(ctx, ann, p.ID, start) // at another replica
	var u *unanswered
	switch {
	case err == nil || doneUnanswered(err) && !w.scenario.inRedis:
	case errors.Is(err, operations.ErrNoLeader): // the next one carries it out
	case w.crashed(err), errors.As(err, &u) && w.scenario.inRedis:
		w.ledger.asked(p.ID)
	default:
		w.ledger.notStarted(p.ID)
	}
	return w.refused(err)
}

func (l *ledger) asked(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.operations[id].asked = true
}

func (l *ledger) started(id string, count int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.operations[id] = &operation{count: count, changed: map[store.Key]int{}}
}

func (l *ledger) notStarted(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.operations, id)
}

// runningOperations are those that have not ended, as the leader or any other replica has them.
func (w *World) runningOperations(ctx context.Context) (all []string, err error) {
	leader, err := w.leader()
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(w.ledger.operations)) {
		of := w.ledger.operations[id]
		if _, err := leader.operations.Operation(ctx, ann, id); of.asked && errors.Is(err, inspect.ErrNotFound) && len(of.changed) == 0 {
			w.ledger.notStarted(id)
			continue
		}
		for _, p := range w.replicas.running() {
			var o operations.Operation
			err := w.repeat(func() (err error) { o, err = p.operations.Operation(ctx, ann, id); return err })
			if err != nil && p == leader {
				return nil, fmt.Errorf("operation %s: %w", id, err)
			}
			if err != nil || o.Ended == nil {
				all = append(all, fmt.Sprintf("at replica %d operation %s (%s %s) is %s: %d of %d, %s (%v)", p.place, id, o.Verb, o.Query, o.State, o.Done, o.Count, o.Why, err))
			}
		}
	}
	return all, nil
}

// checkOperations compares what each operation says that it has done with what it did in the store.
func (w *World) checkOperations(ctx context.Context) error {
	for id, of := range w.ledger.operations {
		o, err := w.used(0).operations.Operation(ctx, ann, id)
		if err != nil {
			return err
		}
		page, err := w.used(0).operations.Outcomes(ctx, ann, id, "", "", 1000)
		if err != nil {
			return err
		}
		if n := int64(len(page.Outcomes)); n != o.Done+o.SkippedN+o.Failed || o.State == operations.Finished && n != of.count {
			return fmt.Errorf("operation %s has %d outcomes of %d messages, and says %d done, %d skipped, %d failed", id, n, of.count, o.Done, o.SkippedN, o.Failed)
		}
		done := map[store.Key]int{}
		for _, m := range page.Outcomes {
			key := store.Key(m.Key)
			if _, twice := done[key]; twice {
				return fmt.Errorf("operation %s has two outcomes of %s", id, key)
			}
			if done[key] = 0; m.Outcome == actions.Done {
				done[key] = 1
			}
		}
		for key, n := range done {
			if of.changed[key] != n {
				return fmt.Errorf("operation %s (%s %s) says that it has done %s %d times, and has done so %d times", id, o.Verb, o.Query, key, n, of.changed[key])
			}
		}
		for key, n := range of.changed {
			if done[key] != n {
				return fmt.Errorf("operation %s (%s %s) has changed %s %d times, and says %d times", id, o.Verb, o.Query, key, n, done[key])
			}
		}
	}
	return nil
}
