package operations

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// againWithin is how long after its retry a failure of a replayed message counts as its
	// replay's.
	againWithin = 10 * time.Minute
	// againGiveUp is how long a replayed message is looked for that is not retried, since its
	// queue is paused or slow.
	againGiveUp = 24 * time.Hour
	// All messages that can still fail in time are looked for one after another, at most every
	// againEvery, and less often the longer that takes.
	againEvery   = 5 * time.Second
	againSeldom  = 5 * time.Minute
	againPause   = 20 // times as long as it took
	mostAgain    = 10_000
	longestAgain = 200 // bytes of an error
	// mostRecent is how many of the latest failures are kept in memory.
	mostRecent = 20_000
)

// recentFailures are the latest failures here, by message, while they may be of replayed messages.
// The store lacks those of messages that wait in RabbitMQ or that their policy discards.
type recentFailures struct {
	mu     sync.Mutex
	byID   map[uuid.UUID]recentFailure
	oldest []uuid.UUID // in the order in which they came, from next on
	next   int
}

type recentFailure struct {
	at  time.Time
	why string
}

func (f *recentFailures) add(id uuid.UUID, at time.Time, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byID == nil {
		f.byID = map[uuid.UUID]recentFailure{}
	}
	if _, known := f.byID[id]; !known {
		if len(f.oldest) < mostRecent {
			f.oldest = append(f.oldest, id)
		} else {
			delete(f.byID, f.oldest[f.next])
			f.oldest[f.next] = id
			f.next = (f.next + 1) % mostRecent
		}
	}
	f.byID[id] = recentFailure{at, strings.Clone(cutError(why))}
}

func (f *recentFailures) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byID, f.oldest, f.next = nil, nil, 0
}

// since is a message's last failure, if it was after a time.
func (f *recentFailures) since(id uuid.UUID, after time.Time) (recentFailure, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	is, ok := f.byID[id]
	return is, ok && is.at.After(after)
}

func cutError(s string) string { return strings.ToValidUTF8(s[:min(len(s), longestAgain)], "") }

// againCheck is how far an operation's replayed messages are looked for, in rounds. The store has
// all that it takes: the outcomes, the records and the past failures. So the result is the same
// after a restart, and whichever replica a message failed at.
type againCheck struct {
	next     time.Time
	at       string // the last outcomes that this round has looked at
	began    time.Time
	took     time.Duration // this round, so far
	pending  bool          // this round has found a message that can fail in time
	failures uint64        // Runner.failures when this round began
}

// checkAgain looks for the messages of an operation's next outcomes, and notes those that were
// replayed and failed again. It returns when it is to be called again; the zero time: never. The
// caller has op.stepping.
func (r *Runner) checkAgain(ctx context.Context, op *operation) (next time.Time) {
	p, c, now := &op.progress, &op.again, time.Now()
	switch {
	case !op.awaitsFailures() || op.uncertain:
		return time.Time{}
	case now.Before(c.next):
		return c.next
	case c.at == "":
		idle := !r.shared() && c.failures == r.failures.Load() && now.Sub(c.began) < againSeldom
		if idle { // nothing has failed since the last round began
			c.next = now.Add(againEvery)
			return c.next
		}
		*c = againCheck{at: p.Checked, began: now, failures: r.failures.Load()}
	}
	name, value, err := r.outcomesAfter(ctx, op.ID, c.at)
	switch {
	case err == nil && name == "":
		err = r.endRound(ctx, op)
	case err == nil:
		err = r.checkOutcomes(ctx, op, name, value)
		c.took += time.Since(now)
		c.at, c.next = name, time.Now()
	}
	if err != nil && ctx.Err() == nil && !deposed(err) {
		r.log.Warn("whether replayed messages failed again is not known; looking again later", "operation", op.ID, "error", err)
		*c = againCheck{next: time.Now().Add(maxBackoff)}
	}
	if p.Settled {
		return time.Time{}
	}
	return c.next
}

// awaitsFailures tells whether messages that it replayed may still fail in time.
func (op *operation) awaitsFailures() bool {
	return op.Verb == actions.Replay && op.progress.State != "" && !op.progress.Settled
}

// watchFailures keeps the latest failures in memory while any operation awaits some.
func (r *Runner) watchFailures(all map[string]*operation) {
	awaited := false
	for _, op := range all {
		op.mu.Lock()
		awaited = awaited || op.awaitsFailures()
		op.mu.Unlock()
	}
	if r.watching.Store(awaited); !awaited {
		r.recent.clear()
	}
}

// endRound ends looking for good once no message can fail in time.
func (r *Runner) endRound(ctx context.Context, op *operation) error {
	c := &op.again
	*c = againCheck{next: time.Now().Add(min(max(againPause*c.took, againEvery), againSeldom)), began: c.began, failures: c.failures, pending: c.pending}
	if c.pending || op.progress.Ended == nil {
		return nil
	}
	p := op.progress
	p.Settled = true
	return r.saveAgain(ctx, op, p)
}

// outcomesAfter returns the first entry of outcomes behind one; its name is "" at the end.
func (r *Runner) outcomesAfter(ctx context.Context, id, after string) (name string, value []byte, err error) {
	prefix := partsOf(id) + "outcome/"
	if after != "" {
		after = prefix + after
	}
	err = r.Store.Entries(ctx, prefix, after, func(e store.Entry) (bool, error) {
		name, value = strings.TrimPrefix(e.Name, prefix), e.Value
		return false, nil
	})
	return name, value, err
}

// checkOutcomes looks for the messages of one entry of outcomes, and writes which failed again.
func (r *Runner) checkOutcomes(ctx context.Context, op *operation, name string, value []byte) error {
	var all []actions.Outcome
	if err := json.Unmarshal(value, &all); err != nil {
		return err
	}
	p, now := op.progress, r.now()
	pending, found := false, false
	for i := range all {
		o := &all[i]
		if o.Outcome != actions.Done || o.Again != nil {
			continue
		}
		again, later, err := r.failedSince(ctx, o, op.At, now)
		if err != nil {
			return err
		}
		pending = pending || later
		if again != nil {
			if p.Again++; p.Again > mostAgain {
				again.Error = ""
			}
			o.Again, found = again, true
		}
	}
	checked := !op.again.pending && !pending
	op.again.pending = op.again.pending || pending
	if checked {
		p.Checked = name
	}
	if !found {
		if checked {
			op.set(func() { op.progress.Checked = name }) // written with what is written next
		}
		return nil
	}
	return r.saveAgain(ctx, op, p, entryOf(partsOf(op.ID)+"outcome/"+name, all))
}

func (r *Runner) saveAgain(ctx context.Context, op *operation, p progress, more ...store.Entry) error {
	if err := r.Store.PutEntries(ctx, append(more, entryOf(partsOf(op.ID)+"progress", p))); err != nil {
		op.uncertain = true
		return err
	}
	op.set(func() { op.progress = p })
	r.changed(op.ID)
	return nil
}

// failedSince tells how a replayed message failed again; later: it has not, and still can in time.
// at is when it was to be retried, nil: at once.
func (r *Runner) failedSince(ctx context.Context, o *actions.Outcome, at *time.Time, now time.Time) (again *actions.FailedAgain, later bool, err error) {
	id, err := uuid.Parse(o.ID)
	if err != nil {
		return nil, false, nil
	}
	due := o.At
	if at != nil && at.After(due) {
		due = *at
	}
	kept, err := r.Store.Find(ctx, id)
	if err != nil {
		return nil, false, err
	}
	past, err := r.Store.PastFailures(ctx, id)
	if err != nil {
		return nil, false, err
	}
	var retried time.Time // for the first time since the replay
	for _, f := range past {
		switch {
		case f.Ended.Before(o.At) || f.Ending == store.EndedDiscarded:
		case retried.IsZero():
			retried = f.Ended
		default: // a later failure, and its own retry
			return againOf(f.FailedAt, retried, failedAgain(f.Reason, f.Error)), false, nil
		}
	}
	waits := false
	_, replayed, _ := store.Key(o.Key).Parts()
	for _, l := range kept {
		_, number, _ := l.Key.Parts()
		switch m := l.Record; {
		case number > replayed: // a record of its own, made by a later failure
			return againOf(m.FailedAt, retried, failedAgain(m.Reason, m.Error)), false, nil
		case m.State == store.Parked && string(l.Key) == o.Key && m.ParkedFor != "": // it could not be retried
			return againOf(m.Due, m.Due, actions.Short(m.ParkedFor)), false, nil
		case m.State == store.Waiting:
			waits = true
		}
	}
	if f, ok := r.recent.since(id, o.At); ok {
		return againOf(f.at, retried, f.why), false, nil
	}
	switch {
	case waits:
		later = now.Before(due.Add(againGiveUp))
	case !retried.IsZero():
		later = now.Before(retried.Add(againWithin))
	}
	return nil, later, nil
}

// againOf is nil for a failure that is too late to be the replay's.
func againOf(at, retried time.Time, why string) *actions.FailedAgain {
	if !retried.IsZero() && at.Sub(retried) > againWithin {
		return nil
	}
	return &actions.FailedAgain{At: at, Error: cutError(why)}
}
