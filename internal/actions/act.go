package actions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// Act is an action on messages that are named.
type Act struct {
	Verb   Verb       `json:"verb" doc:"Not adopt or unadopt, which are operations on a queue."`
	IDs    []string   `json:"ids" minItems:"1" maxItems:"1000" doc:"Message ids, or keys where two share an id."`
	At     *time.Time `json:"at,omitempty" doc:"Replay: when; left out: now."`
	To     string     `json:"to,omitempty" doc:"Copy: the queue."`
	Reason string     `json:"reason,omitempty" maxLength:"500" doc:"Why, for the audit log."`
	DryRun bool       `json:"dry_run,omitempty" doc:"Only show what would be done."`
	// Seen, when not nil, receives each message that would be changed, before it is.
	Seen func(*store.Record) `json:"-"`
}

// Acted is the result of an Act.
type Acted struct {
	Done     int       `json:"done"`
	Outcomes []Outcome `json:"outcomes" doc:"One for each id, in their order."`
	Warnings []string  `json:"warnings,omitempty" doc:"Of a dry run: what to know before it is done."`
}

// Outcome is the result for one message.
type Outcome struct {
	ID      string    `json:"id"`
	Key     string    `json:"key,omitempty"`
	Queue   string    `json:"queue,omitempty"`
	Outcome string    `json:"outcome" enum:"done,skipped,failed"`
	Became  string    `json:"became,omitempty" enum:"made_due,sent,failed_again" doc:"Of a replay, when done."`
	Why     string    `json:"why,omitempty"`
	New     string    `json:"new,omitempty" doc:"The id of the message that was made of it."`
	At      time.Time `json:"at"`
	// Message is nil unless nothing was done yet.
	Message *inspect.Message `json:"message,omitempty" doc:"Of a dry run: the message itself."`
}

// Outcomes of a message.
const (
	Done    = "done"
	Skipped = "skipped"
	Failed  = "failed"
)

// What became of a message that an operation replayed, as far as it is known.
const (
	MadeDue     = "made_due"
	Sent        = "sent"
	FailedAgain = "failed_again"
)

// Says is the outcome for people.
func (o Outcome) Says() string { return strings.ReplaceAll(cmp.Or(o.Became, o.Outcome), "_", " ") }

const (
	// maxNamed bounds what one Act is about; for more there are operations.
	maxNamed = 1000
	// maxIDLen is more than any id or key has.
	maxIDLen = 100
)

// Act changes messages that are named, and returns the outcome of each. An error means that none
// is known to be changed: where the store fails after some are, the outcomes of the others are
// that error.
func (a *Actions) Act(ctx context.Context, by auth.Caller, act Act) (Acted, error) {
	c := a.prepare(RecordChange{Verb: act.Verb, By: by.Name, To: act.To, At: act.At})
	if err := c.Check(); err != nil {
		return Acted{}, err
	}
	if err := act.check(); err != nil {
		return Acted{}, err
	}
	to := ""
	var queues []string
	if act.To != "" {
		to, queues = " to "+act.To, []string{act.To}
	}
	if err := a.Permit(by, act.Verb.Info().Role, string(act.Verb), fmt.Sprintf("%d messages%s", len(act.IDs), to),
		queues...); err != nil {
		return Acted{}, err
	}
	if act.To != "" {
		if err := a.CheckCopyQueue(ctx, by, act.To); err != nil {
			return Acted{}, err
		}
	}
	acted, refs, at, err := a.findNamed(ctx, by, c, act)
	if err != nil {
		return Acted{}, err
	}
	if act.DryRun || len(refs) == 0 {
		acted.Done = len(succeeded(acted.Outcomes))
		return acted, nil
	}
	// Only messages that were found are logged: otherwise made-up ids would fill the log.
	found := make([]string, len(refs))
	var of []string
	for i := range refs {
		found[i] = act.IDs[at[i]]
		if !slices.Contains(of, refs[i].Queue) {
			of = append(of, refs[i].Queue)
		}
	}
	on := strings.Join(of, ", ") + ": " + strings.Join(found, " ") + to
	end, err := a.Begin(by, string(act.Verb), on, int64(len(refs)), act.Reason)
	if err != nil {
		return Acted{}, err
	}
	// From here on it is done whether or not the caller waits for it, so that the
	// audit log says what was.
	ctx = context.WithoutCancel(ctx)
	var all []Outcome
	for len(all) < len(refs) && err == nil {
		var some []Outcome
		some, err = a.Apply(ctx, c, refs[len(all):], nil)
		all = append(all, some...)
	}
	for _, t := range refs[len(all):] {
		all = append(all, Outcome{ID: t.ID, Key: string(t.Key), Queue: t.Queue, Outcome: Failed, Why: err.Error(),
			At: a.now()})
	}
	for i, o := range all {
		acted.Outcomes[at[i]] = o
	}
	acted.Done = len(succeeded(all))
	a.Announce(c, all)
	end(err, int64(acted.Done))
	if acted.Done > 0 {
		err = nil
	}
	return acted, err
}

// check refuses too many names, and texts that cannot be one.
func (a *Act) check() error {
	if len(a.IDs) == 0 || len(a.IDs) > maxNamed {
		return fmt.Errorf("%w: %d messages are named: expected 1 to %d; for more make a plan", inspect.ErrInvalid,
			len(a.IDs), maxNamed)
	}
	for _, id := range a.IDs {
		if len(id) > maxIDLen {
			return fmt.Errorf("%w: %.40q… is neither an id nor a key", inspect.ErrInvalid, id)
		}
	}
	return nil
}

// findNamed finds the messages that are named, and what the change would make of each. at is the
// index in IDs of each of refs.
func (a *Actions) findNamed(
	ctx context.Context, by auth.Caller, c RecordChange, act Act,
) (acted Acted, refs []MessageRef, at []int, err error) {
	acted = Acted{Outcomes: make([]Outcome, len(act.IDs))}
	seen := map[store.Key]bool{}
	for i, id := range act.IDs {
		l, why, err := a.find(ctx, by, id)
		if err != nil {
			return acted, nil, nil, err
		}
		if why == "" && seen[l.Key] {
			why = "it is named twice"
		}
		if why != "" {
			acted.Outcomes[i] = Outcome{ID: id, Outcome: Skipped, Why: why, At: a.now()}
			continue
		}
		seen[l.Key] = true
		t := MessageRef{ID: l.Record.ID.String(), Queue: l.Record.Queue, Key: l.Key}
		if act.Seen != nil && c.skip(l.Record) == "" {
			act.Seen(l.Record)
		}
		shown := a.Inspect.Shown(by, l)
		if acted.Outcomes[i], _ = c.outcome(t, l.Record, a.now()); !act.DryRun {
			refs, at = append(refs, t), append(at, i)
		} else {
			acted.Outcomes[i].Message = &shown
		}
		acted.Outcomes[i].New = "" // of a copy that is not made yet
	}
	return acted, refs, at, a.sayWhoWasFirst(ctx, by, acted.Outcomes)
}

// noSuch is why there is nothing to act on.
const noSuch = "there is no such message any more"

// A page that somebody still has open is seldom older; an audit log can be long.
const (
	firstWithin  = time.Hour
	maxFirst     = 1000 // entries
	maxFirstGone = 20   // messages
)

// sayWhoWasFirst adds to the outcomes of messages that are gone who acted on them last, if that was lately and in
// queues that the caller sees.
func (a *Actions) sayWhoWasFirst(ctx context.Context, by auth.Caller, all []Outcome) error {
	var missing []*Outcome
	for i := range all {
		if all[i].Why == noSuch {
			missing = append(missing, &all[i])
		}
	}
	if len(missing) == 0 || len(missing) > maxFirstGone || a.Inspect.Audit == nil {
		return nil
	}
	now, looked := a.now(), 0
	return a.Inspect.Audit.Before(ctx, math.MaxInt64, func(e audit.Entry) (bool, error) {
		queues, ids, _ := strings.Cut(e.On, ": ")
		seen := !slices.ContainsFunc(strings.Split(queues, ", "), func(q string) bool { return !by.Sees(q) })
		for _, o := range missing {
			if o.Why == noSuch && seen && slices.Contains(strings.Fields(ids), o.ID) {
				o.Why += fmt.Sprintf(": %s by %s at %s UTC", e.Did, e.Who, e.At.UTC().Format(time.TimeOnly))
			}
		}
		looked++
		return looked < maxFirst && now.Sub(e.At) < firstWithin, nil
	})
}

// find returns the message with an id or a key, or why there is none to act on. Messages in queues
// that the caller does not see are as if they did not exist.
func (a *Actions) find(ctx context.Context, by auth.Caller, name string) (l store.Listed, why string, err error) {
	all, err := a.Inspect.Named(ctx, by, name)
	switch {
	case errors.Is(err, store.ErrUnreadable):
		return l, err.Error(), nil
	case err != nil:
		return l, "", err
	case len(all) == 0:
		return l, noSuch, nil
	case len(all) == 1:
		return all[0], "", nil
	}
	var keys []string
	for _, l := range all {
		keys = append(keys, string(l.Key))
	}
	return l, "several messages carry this id: name one by its key: " + strings.Join(keys, ", "), nil
}

// Apply changes as many of the messages as the store takes in one step, from the first on, and
// returns their outcomes. alsoWrite, when not nil, returns entries to write in
// the same step.
func (a *Actions) Apply(
	ctx context.Context, c RecordChange, refs []MessageRef, alsoWrite func([]Outcome) []store.Entry,
) ([]Outcome, error) {
	c = a.prepare(c)
	keys := make([]store.Key, len(refs))
	for i, t := range refs {
		keys[i] = t.Key
	}
	now := a.now()
	notes, err := store.GroupNotes(ctx, a.Store)
	if err != nil {
		return nil, err
	}
	var outcomes []Outcome
	var carried [][]store.Entry
	edit := func(_ store.Key, r *store.Record) store.Edit {
		o, e := c.outcome(refs[len(outcomes)], r, now)
		outcomes, carried = append(outcomes, o), append(carried, carry(r, e, notes, now))
		return e
	}
	n, err := a.Store.Change(ctx, keys, edit, func(n int) []store.Entry {
		entries := slices.Concat(carried[:n]...)
		if alsoWrite != nil {
			entries = append(entries, alsoWrite(outcomes[:n])...)
		}
		return entries
	})
	if err != nil {
		return nil, err
	}
	return outcomes[:n], nil
}

// carry returns what the next failures of the messages that an edit leaves waiting learn of this one; notes are those
// on groups.
func carry(r *store.Record, e store.Edit, notes map[string]string, now time.Time) (all []store.Entry) {
	if e.Keep {
		e.Add = append([]*store.Record{r}, e.Add...)
	}
	for _, r := range e.Add {
		if r.State == store.Waiting {
			all = append(all, store.Carry(r, notes[r.Group().ID.String()] != "", now)...)
		}
	}
	return all
}

func (a *Actions) prepare(c RecordChange) RecordChange {
	c.restorable, c.refuses = a.Restorable, a.Inspect.RefusesReplay
	return c
}

func succeeded(all []Outcome) (some []Outcome) {
	for _, o := range all {
		if o.Outcome == Done {
			some = append(some, o)
		}
	}
	return some
}

// Announce sends one event for each queue.
func (a *Actions) Announce(c RecordChange, all []Outcome) {
	n := map[string]int{}
	for _, o := range succeeded(all) {
		n[o.Queue]++
	}
	for _, queue := range slices.Sorted(maps.Keys(n)) {
		a.event(retry.Event{Kind: c.Verb.Info().Event, Queue: queue, N: n[queue], By: c.By})
	}
}

// gone is why nothing is done to a message that is not where it was seen.
const gone = "it is not there any more: it is being retried, was retried, or was changed meanwhile"

// RecordChange is a verb with all it needs. What it makes of a record is the same for one
// message, a thousand that are named, and a million that a query finds.
type RecordChange struct {
	Verb Verb
	By   string
	To   string     // copy
	At   *time.Time // replay; nil: now
	// Changed, when not nil, receives each record as it is made: of a copy, the copy.
	Changed func(*store.Record)

	restorable time.Duration              // how long what is discarded can be restored
	refuses    func(*store.Record) string // why its policy keeps a parked one from being replayed, or ""
}

// Skip is why the change leaves a record as it is, or "".
func (a *Actions) Skip(c RecordChange, r *store.Record) string { return a.prepare(c).skip(r) }

// copyOf is a new message like r that is due at due, and starts again at attempt 1 of its first replay.
// It has no fingerprint: no message that RabbitMQ delivers again is this one.
func copyOf(r *store.Record, due time.Time) *store.Record {
	made, m := *r, retry.Unwrapped(r)
	made.ID, made.MadeFrom, made.MadeInto = headers.NewID(&m), r.ID, uuid.Nil
	made.Fingerprint, made.Replays = [16]byte{}, 0
	made.AdoptedFrom, made.HeldUntil = "", time.Time{}
	made.Replay(due)
	return &made
}

// dueAt returns at, or now if that is nil or past, rounded up to the microseconds that a store keeps: no message is
// retried early.
func dueAt(at *time.Time, now time.Time) time.Time {
	due := now
	if at != nil && at.After(now) {
		due = *at
	}
	if cut := due.Truncate(time.Microsecond); cut.Before(due) {
		return cut.Add(time.Microsecond)
	}
	return due
}

// outcome changes one record, or says why not.
func (c RecordChange) outcome(t MessageRef, r *store.Record, now time.Time) (Outcome, store.Edit) {
	o := Outcome{ID: t.ID, Key: string(t.Key), Queue: t.Queue, Outcome: Skipped, Why: c.skip(r), At: now}
	if r != nil && r.Unreadable != nil {
		o.Outcome, o.Why = Failed, r.Unreadable.Error()
	}
	if o.Why != "" {
		return o, store.Edit{}
	}
	if r.Held(now) {
		o.Why = fmt.Sprintf("it is being put back into the queue %q", r.AdoptedFrom)
		return o, store.Edit{}
	}
	if t.State != 0 && r.State != t.State {
		o.Why = fmt.Sprintf("it was %s when the plan was made, and is %s now", inspect.StateName(t.State),
			inspect.StateName(r.State))
		return o, store.Edit{}
	}
	e, made := c.do(r, now)
	o.Outcome = Done
	if made != nil {
		r = made
		o.New = made.ID.String()
	}
	if c.Changed != nil {
		c.Changed(r)
	}
	return o, e
}

// MessageRef names a message to change.
type MessageRef struct {
	ID, Queue string
	Key       store.Key
	// State, when not 0, is the state that it must still be in.
	State store.State
}
