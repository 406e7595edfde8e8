package operations

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// A replay counts how many of its messages failed again. It walks over their results repeatedly, a batch at
// a time, and looks each message up by its id. It marks a message that failed again and looks it up no more, so
// that it counts once, whoever replays it next.
//
// The walks end once all messages are sent and CanaryWait has passed, but at most maxCanaryWait after the
// replay. The counts are part of the progress; the marks are written in the same step:
//
//	operation/<id>/again/<n>   of outcome/<n>: how many were sent, which were not, and which failed again

const (
	// lookUps is how many messages one step of a walk looks up, roughly.
	lookUps = 500
	// lookPause times as long as a step took, a walk rests after it: other work goes first.
	lookPause = 9
	// maxLook is the longest time between two walks.
	maxLook = time.Minute
	// maxPasts bounds the messages that are searched among past failures, which is slow.
	maxPasts = 1000
	// maxAgainErrors is how many errors are counted, and shownErrors how many are shown.
	maxAgainErrors = 30
	shownErrors    = 10
	// maxAgainWatched is how many messages of one operation are watched for failures.
	maxAgainWatched = 10_000
)

// again is the counts as they are stored.
type again struct {
	Sent, Failed int64
	Errors       []AgainError `json:",omitempty"`
	Watched      time.Time    `json:",omitzero"` // since when all are sent and the operation has ended
	Settled      time.Time    `json:",omitzero"` // when the counting ended
}

// againMark says which messages of one entry of outcomes failed again.
type againMark struct {
	Sent   int64 `json:"s"`
	Failed bits  `json:"f"`
	Here   bits  `json:"h,omitempty"` // not sent
}

// bits is a set of messages by index.
type bits []byte

func (b bits) has(i int) bool { return i/8 < len(b) && b[i/8]&(1<<(i%8)) != 0 }

func (b *bits) set(i int) {
	for len(*b) <= i/8 {
		*b = append(*b, 0)
	}
	(*b)[i/8] |= 1 << (i % 8)
}

// became returns what became of the i-th message.
func (m *againMark) became(i int) string {
	switch {
	case m.Failed.has(i):
		return actions.FailedAgain
	case m.Sent == 0 || m.Here.has(i):
		return actions.MadeDue
	}
	return actions.Sent
}

// walk is the state of a walk over an operation's messages.
type walk struct {
	next    time.Time // the next step is not before
	after   string    // the last entry of outcomes that was walked; "": none
	last    bool      // the last walk
	pasts   int       // how many were searched among past failures
	changed time.Time // when the counts last changed
	failing bool
}

// counts reports whether the operation still counts what fails again.
func (p *progress) counts() bool { return p.Again != nil && p.Again.Settled.IsZero() }

// show returns the counts for people. done is how many messages the operation has changed.
func (a *again) show(done int64) *Replayed {
	s := &Replayed{
		Sent: a.Sent, StillHere: done - a.Sent, FailedAgain: a.Failed, NotSeenSince: a.Sent - a.Failed,
		Errors: a.Errors[:min(len(a.Errors), shownErrors)],
	}
	s.OtherErrors = a.Failed
	for _, e := range s.Errors {
		s.OtherErrors -= e.Count
	}
	if !a.Settled.IsZero() {
		until := a.Settled
		s.Until = &until
	}
	return s
}

func (a *again) add(e AgainError) {
	a.Failed++
	i := slices.IndexFunc(a.Errors, func(is AgainError) bool {
		is.Count = 0
		return is == e
	})
	switch {
	case i >= 0:
		a.Errors[i].Count++
	case len(a.Errors) < maxAgainErrors:
		e.Count = 1
		a.Errors = append(a.Errors, e)
	}
}

// countAgain does a step of the walk over the messages of a replay, if one is due, and returns when the
// next is; the zero time: never by itself. The caller has op.stepping.
func (r *Runner) countAgain(ctx context.Context, op *operation) (next time.Time) {
	if op.uncertain || !op.progress.counts() {
		return next
	}
	began := time.Now()
	if began.Before(op.walk.next) {
		return op.walk.next
	}
	var err error
	over := false
	if r.shared() && op.term == 0 {
		if !r.orphaned(op) {
			return next
		}
		err = r.take(ctx, op)
	} else {
		over, err = r.walkOn(r.inTerm(ctx, op), op)
	}
	now := time.Now()
	switch {
	case ctx.Err() != nil:
		return next
	case deposed(err):
		op.lose()
		return now
	case err != nil:
		if !op.walk.failing {
			r.log.Warn("what failed again cannot be counted for now; trying again", "operation", op.ID, "error", err)
		}
		op.walk.next = now.Add(maxBackoff)
	case over:
		op.walk.next = now.Add(op.untilNextWalk(r.now()))
	default:
		op.walk.next = now.Add(lookPause * now.Sub(began))
	}
	op.walk.failing = err != nil
	return op.walk.next
}

// untilNextWalk is how long after a walk the next one begins.
func (op *operation) untilNextWalk(now time.Time) time.Duration {
	every := min(max(op.CanaryWait/canaryChecks, minCheck), maxCheck)
	if ended := op.progress.Ended; ended != nil { // now people look
		every = min(every, max(now.Sub(*ended)/4, minCheck))
	}
	if since := op.progress.Again.Watched; !since.IsZero() {
		return min(every, max(0, op.CanaryWait-now.Sub(since)))
	}
	return max(every, min(now.Sub(op.walk.changed)/canaryChecks, maxLook))
}

// walkOn does a step of a walk. over is true at the end of a walk.
func (r *Runner) walkOn(ctx context.Context, op *operation) (over bool, err error) {
	w, now := &op.walk, r.now()
	if w.changed.IsZero() {
		w.changed = now
	}
	if w.after == "" {
		w.last, w.pasts = op.lastWalk(now), 0
	}
	prefix := partsOf(op.ID) + "outcome/"
	var batch []store.Entry
	var all [][]actions.Outcome
	n, after := 0, w.after
	err = r.Store.Entries(ctx, prefix, after, func(e store.Entry) (bool, error) {
		var part []actions.Outcome
		if err := json.Unmarshal(e.Value, &part); err != nil {
			return false, fmt.Errorf("%s: %w", e.Name, err)
		}
		all = append(all, part)
		n, after = n+len(part), e.Name
		batch = append(batch, store.Entry{Name: partsOf(op.ID) + "again/" + strings.TrimPrefix(e.Name, prefix)})
		return n < lookUps, nil
	})
	if err != nil {
		return false, err
	}
	p, is := op.progress, *op.progress.Again
	is.Errors = slices.Clone(is.Errors)
	var entries []store.Entry
	for i, part := range all {
		mark, changed, err := r.lookUp(ctx, op, batch[i].Name, part, &is)
		if err != nil {
			return false, err
		}
		if changed {
			entries = append(entries, entryOf(batch[i].Name, mark))
		}
	}
	over = n < lookUps
	switch {
	case !over:
	case w.last:
		is.Settled = now
	case p.Ended != nil && is.Sent == p.Done && is.Watched.IsZero():
		is.Watched = now
	}
	if was := p.Again; len(entries) > 0 || is.Settled != was.Settled || is.Watched != was.Watched {
		slices.SortStableFunc(is.Errors, func(a, b AgainError) int { return cmp.Compare(b.Count, a.Count) })
		p.Again = &is
		if err := r.putProgress(ctx, op, p, entries...); err != nil {
			return false, err
		}
		w.changed = now
	}
	if w.after = after; over {
		w.after = ""
	}
	if !is.Settled.IsZero() {
		r.canaryFailures.remove(op.ID)
	}
	return over, nil
}

// lastWalk reports whether a walk that begins now is the last one.
func (op *operation) lastWalk(now time.Time) bool {
	p := op.progress
	if p.Ended == nil {
		return false
	}
	from := *p.Ended
	if op.At != nil && op.At.After(from) {
		from = *op.At
	}
	watched := p.Again.Watched
	return now.Sub(from) >= maxCanaryWait || !watched.IsZero() && now.Sub(watched) >= op.CanaryWait
}

// lookUp looks up the messages of one entry of outcomes that are not known to have failed again.
func (r *Runner) lookUp(
	ctx context.Context, op *operation, name string, part []actions.Outcome, is *again,
) (mark againMark, changed bool, err error) {
	if mark, err = r.readMark(ctx, name); err != nil {
		return mark, false, err
	}
	sent, here := int64(0), bits(nil)
	for i, o := range part {
		if o.Outcome != actions.Done {
			continue
		}
		if mark.Failed.has(i) {
			sent++
			continue
		}
		how, e, err := r.becameOf(ctx, op, o)
		if err != nil {
			return mark, false, err
		}
		if how == notYetRetried {
			here.set(i)
			continue
		}
		if sent++; how == hasFailed {
			mark.Failed.set(i)
			is.add(e)
			changed = true
		}
	}
	if sent != mark.Sent || sent > 0 && !bytes.Equal(here, mark.Here) {
		is.Sent += sent - mark.Sent
		mark.Sent, mark.Here, changed = sent, here, true
	}
	return mark, changed, nil
}

func (r *Runner) readMark(ctx context.Context, name string) (mark againMark, err error) {
	value, err := r.Store.Entry(ctx, name)
	if err == nil && value != nil {
		err = json.Unmarshal(value, &mark)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return mark, err
}

// becameOf looks up what became of a message that an operation has replayed: in the store, among the
// failures that were noted as they happened and, in the last walk, among past failures.
func (r *Runner) becameOf(
	ctx context.Context, op *operation, o actions.Outcome,
) (how whereabouts, e AgainError, err error) {
	key := store.Key(o.Key)
	id, own, ok := key.Parts()
	if !ok {
		return notKept, e, nil
	}
	kept, err := r.Store.Find(ctx, id)
	if errors.Is(err, store.ErrUnreadable) {
		return notYetRetried, e, nil
	}
	if err != nil {
		return notKept, e, err
	}
	for _, l := range kept {
		m := l.Record
		// A record that was added after the plan was made is of a failure since then: of two with one id
		// that were there before, neither is the other's.
		switch _, number, _ := l.Key.Parts(); {
		case l.Key == key && m.State == store.Parked: // it could not be retried
			why := actions.Short(r.Inspect.ForAll(m.Queue, m.ParkedFor))
			return hasFailed, AgainError{Queue: m.Queue, Error: why}, nil
		case l.Key == key:
			how = notYetRetried
		case number > max(own, op.Upto) && m.Queue == o.Queue: // ids can be forged, in other queues too
			return hasFailed, r.againErrorOf(m.Group()), nil
		}
	}
	if how != notKept {
		return how, e, nil
	}
	if f, ok := r.canaryFailures.after(id, o.At.UnixMicro()); ok && f.group.Queue == o.Queue {
		return hasFailed, r.againErrorOf(f.group), nil
	}
	r.canaryFailures.watch(op.ID, id)
	if op.walk.pasts++; !op.walk.last || op.walk.pasts > maxPasts {
		return notKept, e, nil
	}
	past, err := r.Store.PastFailures(ctx, id)
	for replayed := false; len(past) > 0; past = past[1:] {
		switch p := past[0]; {
		case !p.Ended.After(o.At): // before it was replayed
		case !replayed:
			replayed = true // this is what was replayed
		case p.FailedAt.After(o.At) && p.Queue == o.Queue:
			return hasFailed, r.againErrorOf(errorgroup.Of(p.Queue, p.Reason, p.Error, "")), err
		}
	}
	return notKept, e, err
}

func (r *Runner) againErrorOf(g errorgroup.Group) AgainError {
	return AgainError{Group: g.ID.String(), Queue: g.Queue, Error: r.Inspect.ForAll(g.Queue, g.Pattern),
		Reason: g.Reason}
}

// watchReplayed begins to note the failures of messages that are about to be replayed.
func (r *Runner) watchReplayed(op *operation, all []actions.Outcome) {
	if op.progress.Again == nil {
		return
	}
	for _, o := range all {
		if id, err := uuid.Parse(o.ID); err == nil && o.Outcome == actions.Done {
			r.canaryFailures.watch(op.ID, id)
		}
	}
}

// planAfter plans to replay the messages that a replay did not reach before it ended, or to restore those that a
// discard reached. It leaves out what failed again: a plan names messages by key, and each failure has a new key.
func (r *Runner) planAfter(ctx context.Context, by auth.Caller, c actions.RecordChange, q PlanRequest) (Plan, error) {
	field, verb, of, id, on := "rest_of", actions.Replay, actions.Replay, q.RestOf, "the rest of "
	if q.DiscardedBy != "" {
		field, verb, of, id, on = "discarded_by", actions.Restore, actions.Discard, q.DiscardedBy, "discarded by "
	}
	if q.Verb != verb || q.RestOf != "" && q.DiscardedBy != "" || strings.TrimSpace(q.Query) != "" {
		return Plan{}, fmt.Errorf("%w: %s is of a %s without a query", inspect.ErrInvalid, field, verb)
	}
	if err := r.Actions.Permit(by, q.Verb.Info().Role, "plan."+string(q.Verb), on+id); err != nil {
		return Plan{}, err
	}
	op, err := r.operation(ctx, by, id)
	if err != nil {
		return Plan{}, err
	}
	op.mu.Lock()
	h, p := op.head, op.progress
	op.mu.Unlock()
	refuse := func(why string) (Plan, error) {
		return Plan{}, fmt.Errorf("%w: operation %s %s", inspect.ErrPrecondition, h.ID, why)
	}
	switch {
	case h.Verb != of:
		return refuse(fmt.Sprintf("is no %s: its verb is %s", of, h.Verb))
	case p.State == "":
		return refuse("is a plan that was not started: start it")
	case p.Ended == nil:
		return refuse(fmt.Sprintf("is %s: resume it, or cancel it first", p.State))
	}
	q.Query = h.Query
	return r.planOf(ctx, by, c, q, func(*Plan) {}, func(_ uint64, visit func(store.Listed) (bool, error)) error {
		if of == actions.Discard {
			return r.eachIn(ctx, &h, 0, p.processed(), store.Discarded, visit)
		}
		return r.eachIn(ctx, &h, p.processed(), h.Count, 0, visit)
	})
}

// eachIn visits a plan's messages from at up to end that are in a state; 0: in the planned one.
func (r *Runner) eachIn(
	ctx context.Context, h *head, at, end int64, in store.State, visit func(store.Listed) (more bool, err error),
) error {
	for at < end {
		all, err := r.readChunk(ctx, chunkName(h.ID, at/chunk))
		if err == nil && at%chunk >= int64(len(all)) {
			err = fmt.Errorf("%w: operation %s: %s", inspect.ErrPrecondition, h.ID, listDamaged)
		}
		if err != nil {
			return err
		}
		all = all[at%chunk:]
		for _, f := range all[:min(int64(len(all)), end-at)] {
			at++
			l, err := r.Store.Get(ctx, f.Key)
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnreadable) {
				continue
			}
			if err == nil && l.Record.State == cmp.Or(in, f.State) {
				_, err = visit(l)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
