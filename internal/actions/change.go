package actions

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

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

	restorable time.Duration // how long what is discarded can be restored; Apply sets it
}

// verbs are all verbs, in the words of the command line and the page.
var verbs = map[Verb]struct {
	title     string
	one, more string    // what became of one message, and of several
	publishes bool      // to a queue, from which they can fail again
	role      auth.Role // the permission that it needs
	kind      retry.Kind
}{
	Replay:  {"Replay", "message is retried", "messages are retried", true, auth.Operator, retry.Replayed},
	Discard: {"Discard", "message is discarded; it can be restored for a set time", "messages are discarded; they can be restored for a set time", false, auth.Operator, retry.Discarded},
	Restore: {"Restore", "message is parked again", "messages are parked again", false, auth.Operator, retry.Restored},
	Copy:    {"Copy", "copy is published", "copies are published", true, auth.Editor, retry.Copied},
}

// Role is the permission that it needs.
func (v Verb) Role() auth.Role { return verbs[v].role }

// Publishes tells whether messages go to a queue with it, from which they can fail again.
func (v Verb) Publishes() bool { return verbs[v].publishes }

// Title is the verb as headings and buttons have it.
func (v Verb) Title() string { return verbs[v].title }

// Result is, after a number, what became of one message, and of several; "" for a verb that is none.
func (v Verb) Result() (one, more string) { return verbs[v].one, verbs[v].more }

// Skip is why the verb leaves a record as it is, or "".
func (c RecordChange) Skip(r *store.Record) string {
	switch {
	case r == nil:
		return gone
	case c.Verb == Replay && r.State == store.Discarded:
		return "it is discarded: restore it first"
	case c.Verb == Discard && r.State == store.Discarded:
		return "it is discarded already"
	case c.Verb == Restore && r.State != store.Discarded:
		return "it is not discarded"
	}
	return ""
}

// do does the verb to a record that Skip does not leave out.
func (c RecordChange) do(r *store.Record, now time.Time) (e store.Edit, made *store.Record) {
	due := now
	if c.At != nil && c.At.After(now) {
		due = *c.At
	}
	due = notBefore(due)
	switch c.Verb {
	case Replay:
		if r.State == store.Waiting {
			r.Due = due
		} else {
			r.Replay(due)
		}
	case Discard:
		r.State, r.Due = store.Discarded, now.Add(c.restorable)
	case Restore:
		if r.ParkedFor == "" {
			r.ParkedFor = "it was discarded while it waited, and restored by " + c.By
		}
		r.State, r.Due = store.Parked, now
	case Copy:
		made = copyOf(r, due)
		made.Queue, made.Forward = c.To, &store.Destination{RoutingKey: c.To}
		made.Proven = false // RabbitMQ never dead-lettered it from there
		e.Add = []*store.Record{made}
		if r.MadeInto != uuid.Nil { // of an edited one the link stays what it was
			return e, made
		}
		r.MadeInto = made.ID
	}
	e.Keep = true
	return e, made
}

// copyOf is a new message like r that is due at due, and starts again at attempt 1.
// It has no fingerprint: no message that RabbitMQ delivers again is this one.
func copyOf(r *store.Record, due time.Time) *store.Record {
	made := *r
	made.ID, made.MadeFrom, made.MadeInto = headers.NewID(&r.Message), r.ID, uuid.Nil
	made.Fingerprint = [16]byte{}
	made.Replay(due)
	return &made
}

// notBefore rounds up to the microseconds that a store keeps: no message is retried early.
func notBefore(t time.Time) time.Time {
	if cut := t.Truncate(time.Microsecond); cut.Before(t) {
		return cut.Add(time.Microsecond)
	}
	return t
}

// outcome changes one record, or says why not.
func (c RecordChange) outcome(t MessageRef, r *store.Record, now time.Time) (Outcome, store.Edit) {
	o := Outcome{ID: t.ID, Key: string(t.Key), Queue: t.Queue, Outcome: Skipped, Why: c.Skip(r), At: now}
	if r != nil && r.Unreadable != nil {
		o.Outcome, o.Why = Failed, r.Unreadable.Error()
	}
	if o.Why != "" {
		return o, store.Edit{}
	}
	if t.State != 0 && r.State != t.State {
		o.Why = fmt.Sprintf("it was %s when the plan was made, and is %s now", inspect.StateName(t.State), inspect.StateName(r.State))
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

// Check refuses an unknown verb, and fields that do not belong to the verb.
func (c RecordChange) Check() error {
	switch _, known := verbs[c.Verb]; {
	case !known:
		return fmt.Errorf("%w: the verb %.40q: expected replay, discard, restore or copy", inspect.ErrInvalid, c.Verb)
	case c.Verb == Copy && c.To == "":
		return fmt.Errorf("%w: a copy needs a queue to go to", inspect.ErrInvalid)
	case c.Verb != Copy && c.To != "":
		return fmt.Errorf("%w: only a copy goes to another queue; this is %s", inspect.ErrInvalid, c.Verb)
	case c.Verb != Replay && c.At != nil:
		return fmt.Errorf("%w: only a replay has a time; this is %s", inspect.ErrInvalid, c.Verb)
	}
	return nil
}
