package console

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// gone is why nothing is done to a message that is not where it was seen.
const gone = "it is not there any more: it is being retried, was retried, or was changed meanwhile"

// recordChange is a verb with all it needs. What it makes of a record is the same for one
// message, a thousand that are named, and a million that a query finds.
type recordChange struct {
	verb Verb
	by   string
	to   string     // copy
	at   *time.Time // replay; nil: now
	// restorable is how long what is discarded can be restored.
	restorable time.Duration
	// sent, when not nil, receives each message that is on its way now.
	sent func(*store.Record)
}

// verbs are what can be done: the permission that it needs, and its event.
var verbs = map[Verb]struct {
	role auth.Role
	kind retry.Kind
}{
	Replay:  {auth.Operator, retry.Replayed},
	Discard: {auth.Operator, retry.Discarded},
	Restore: {auth.Operator, retry.Restored},
	Copy:    {auth.Editor, retry.Copied},
}

// skip is why the verb leaves a record as it is, or "".
func (d recordChange) skip(r *store.Record) string {
	switch {
	case r == nil:
		return gone
	case d.verb == Replay && r.State == store.Discarded:
		return "it is discarded: restore it first"
	case d.verb == Discard && r.State == store.Discarded:
		return "it is discarded already"
	case d.verb == Restore && r.State != store.Discarded:
		return "it is not discarded"
	}
	return ""
}

// do changes a record that skip lets pass.
func (d recordChange) do(r *store.Record, now time.Time) (e store.Edit, made *store.Record) {
	due := now
	if d.at != nil && d.at.After(now) {
		due = *d.at
	}
	due = notBefore(due)
	switch d.verb {
	case Replay:
		if r.State == store.Waiting {
			r.Due = due
		} else {
			r.Replay(due)
		}
	case Discard:
		r.State, r.Due = store.Discarded, now.Add(d.restorable)
	case Restore:
		if r.ParkedFor == "" {
			r.ParkedFor = "it was discarded while it waited, and restored by " + d.by
		}
		r.State, r.Due = store.Parked, now
	case Copy:
		made = madeOf(r, due)
		made.Queue, made.Forward = d.to, &store.Destination{RoutingKey: d.to}
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

// madeOf is a new message like r that is due at due, with all attempts before it.
// It has no fingerprint: nothing that RabbitMQ delivers again is this one.
func madeOf(r *store.Record, due time.Time) *store.Record {
	made := *r
	made.ID, made.MadeFrom, made.MadeInto = uuid.Must(uuid.NewV7()), r.ID, uuid.Nil
	made.Fingerprint = [16]byte{}
	made.Replay(due)
	return &made
}

// notBefore rounds up to what a store keeps: early is never.
func notBefore(t time.Time) time.Time {
	if cut := t.Truncate(time.Microsecond); cut.Before(t) {
		return cut.Add(time.Microsecond)
	}
	return t
}

// outcome is what came of one record.
func (d recordChange) outcome(t target, r *store.Record, now time.Time) (Outcome, store.Edit) {
	o := Outcome{ID: t.id, Key: string(t.key), Queue: t.queue, Outcome: skipped, Why: d.skip(r), At: now}
	if r != nil && r.Unreadable != nil {
		o.Outcome, o.Why = failed, r.Unreadable.Error()
	}
	if o.Why != "" {
		return o, store.Edit{}
	}
	if t.state != 0 && r.State != t.state {
		o.Why = fmt.Sprintf("it was %s when the plan was made, and is %s now", stateNames[t.state], stateNames[r.State])
		return o, store.Edit{}
	}
	e, made := d.do(r, now)
	o.Outcome = done
	if made != nil {
		r = made
		o.New = made.ID.String()
	}
	if d.sent != nil {
		d.sent(r)
	}
	return o, e
}

// Outcomes of one message.
const (
	done    = "done"
	skipped = "skipped"
	failed  = "failed"
)

// target is a message that something is to be done to.
type target struct {
	id, queue string
	key       store.Key
	// state, when not 0, is what it must be in still.
	state store.State
}

func (d recordChange) check() error {
	switch _, known := verbs[d.verb]; {
	case !known:
		return fmt.Errorf("%w: the verb %.40q: expected replay, discard, restore or copy", ErrInvalid, d.verb)
	case d.verb == Copy && d.to == "":
		return fmt.Errorf("%w: a copy needs a queue to go to", ErrInvalid)
	case d.verb != Copy && d.to != "":
		return fmt.Errorf("%w: only a copy goes to another queue; this is %s", ErrInvalid, d.verb)
	case d.verb != Replay && d.at != nil:
		return fmt.Errorf("%w: only a replay has a time; this is %s", ErrInvalid, d.verb)
	}
	return nil
}
