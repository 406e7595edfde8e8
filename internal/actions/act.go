package actions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// Verb is what is done to messages.
type Verb string

// What can be done.
const (
	// Replay: a parked message is retried, and starts again at attempt 1; a waiting one gets
	// another due time, and keeps its attempts.
	Replay Verb = "replay"
	// Discard: a message is removed; it can be restored for a set time.
	Discard Verb = "discard"
	// Restore: a discarded message is parked again.
	Restore Verb = "restore"
	// Copy: a new message with the same content goes to another queue.
	Copy Verb = "copy"
)

// Act is an action on messages that are named.
type Act struct {
	Verb   Verb       `json:"verb" enum:"replay,discard,restore,copy"`
	IDs    []string   `json:"ids" minItems:"1" maxItems:"1000" doc:"Message ids, or keys where two share an id."`
	At     *time.Time `json:"at,omitempty" doc:"Replay: when; left out: now."`
	To     string     `json:"to,omitempty" doc:"Copy: the queue."`
	Reason string     `json:"reason,omitempty" maxLength:"500" doc:"Why, for the audit log."`
	DryRun bool       `json:"dry_run,omitempty" doc:"Only show what would be done."`
}

// Acted is the result of an Act.
type Acted struct {
	Done     int       `json:"done"`
	Outcomes []Outcome `json:"outcomes" doc:"One for each id, in their order."`
}

// Outcome is the result for one message.
type Outcome struct {
	ID      string    `json:"id"`
	Key     string    `json:"key,omitempty"`
	Queue   string    `json:"queue,omitempty"`
	Outcome string    `json:"outcome" enum:"done,skipped,failed"`
	Why     string    `json:"why,omitempty"`
	New     string    `json:"new,omitempty" doc:"The id of the message that was made of it."`
	At      time.Time `json:"at"`
}

// Outcomes of a message.
const (
	Done    = "done"
	Skipped = "skipped"
	Failed  = "failed"
)

const (
	// mostNamed bounds what one Act is about; for more there are operations.
	mostNamed = 1000
	// longestID is more than any id or key has.
	longestID = 100
)

// Act changes messages that are named, and returns the outcome of each. An error means that none
// is known to be changed: where the store fails after some are, the outcomes of the others are
// that error.
func (a *Actions) Act(ctx context.Context, by auth.Caller, act Act) (Acted, error) {
	c := RecordChange{Verb: act.Verb, By: by.Name, To: act.To, At: act.At}
	if err := c.Check(); err != nil {
		return Acted{}, err
	}
	if err := act.check(); err != nil {
		return Acted{}, err
	}
	to := ""
	var queues []string
	if act.To != "" {
		to = " to " + act.To
		queues = append(queues, act.To)
	}
	if err := a.Permit(by, act.Verb.Role(), string(act.Verb), fmt.Sprintf("%d messages%s", len(act.IDs), to), queues...); err != nil {
		return Acted{}, err
	}
	if act.Verb == Copy {
		if err := a.CheckCopyQueue(ctx, act.To); err != nil {
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
	for i := range refs {
		found[i] = act.IDs[at[i]]
	}
	end, err := a.Begin(by, string(act.Verb), strings.Join(found, " ")+to, int64(len(refs)), act.Reason)
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
	for i, t := range refs {
		switch {
		case i < len(all):
			acted.Outcomes[at[i]] = all[i]
		default:
			acted.Outcomes[at[i]] = Outcome{ID: t.ID, Key: string(t.Key), Queue: t.Queue, Outcome: Failed, Why: err.Error(), At: a.now()}
		}
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
	if len(a.IDs) == 0 || len(a.IDs) > mostNamed {
		return fmt.Errorf("%w: %d messages are named: expected 1 to %d; for more make a plan", inspect.ErrInvalid, len(a.IDs), mostNamed)
	}
	for _, id := range a.IDs {
		if len(id) > longestID {
			return fmt.Errorf("%w: %.40q… is neither an id nor a key", inspect.ErrInvalid, id)
		}
	}
	return nil
}

// findNamed finds the messages that are named, and what the change would make of each. at is the
// index in IDs of each of refs.
func (a *Actions) findNamed(ctx context.Context, by auth.Caller, c RecordChange, act Act) (acted Acted, refs []MessageRef, at []int, err error) {
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
		if acted.Outcomes[i], _ = c.outcome(t, l.Record, a.now()); !act.DryRun {
			refs, at = append(refs, t), append(at, i)
		}
		acted.Outcomes[i].New = "" // of a copy that is not made yet
	}
	return acted, refs, at, nil
}

// find returns the message with an id or a key, or why there is none to act on. Messages in queues
// that the caller does not see are as if they did not exist.
func (a *Actions) find(ctx context.Context, by auth.Caller, name string) (l store.Listed, why string, err error) {
	all, err := a.Inspect.Named(ctx, by, name)
	if errors.Is(err, store.ErrUnreadable) {
		return l, err.Error(), nil
	}
	if err != nil {
		return l, "", err
	}
	switch len(all) {
	case 0:
		return l, "there is no such message any more", nil
	case 1:
		return all[0], "", nil
	}
	keys := make([]string, 0, len(all))
	for _, l := range all {
		keys = append(keys, string(l.Key))
	}
	return l, "several messages carry this id: name one by its key: " + strings.Join(keys, ", "), nil
}

// Apply changes as many of the messages as the store takes in one step, from the first on, and
// returns their outcomes. alsoWrite, when not nil, returns entries to write in
// the same step.
func (a *Actions) Apply(ctx context.Context, c RecordChange, refs []MessageRef, alsoWrite func([]Outcome) []store.Entry) ([]Outcome, error) {
	c.restorable = a.Restorable
	keys := make([]store.Key, len(refs))
	for i, t := range refs {
		keys[i] = t.Key
	}
	now := a.now()
	var outcomes []Outcome
	edit := func(_ store.Key, r *store.Record) store.Edit {
		o, e := c.outcome(refs[len(outcomes)], r, now)
		outcomes = append(outcomes, o)
		return e
	}
	var entries func(n int) []store.Entry
	if alsoWrite != nil {
		entries = func(n int) []store.Entry { return alsoWrite(outcomes[:n]) }
	}
	n, err := a.Store.Change(ctx, keys, edit, entries)
	if err != nil {
		return nil, err
	}
	return outcomes[:n], nil
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
		a.event(retry.Event{Kind: verbs[c.Verb].kind, Queue: queue, N: n[queue], By: c.By})
	}
}
