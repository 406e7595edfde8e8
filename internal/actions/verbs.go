package actions

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// Verb is an action on messages.
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
	// Adopt: a message of a dead-letter queue that is not Redrive's is parked. It is an operation on
	// a queue, and no change of a record.
	Adopt Verb = "adopt"
	// Unadopt: a parked message is put back into the dead-letter queue that it was adopted from. It is an
	// operation too, which publishes between two changes of a record.
	Unadopt Verb = "unadopt"
)

// VerbInfo is all that a verb says and does. Command, buttons and API are made of it.
type VerbInfo struct {
	Verb      Verb
	Title     string    // of headings and buttons
	One, More string    // after a number: what became of one message, and of several
	Role      auth.Role // that it needs
	Event     retry.Kind
	Publishes bool // messages to a queue, from which they can fail again: to their own, or ToQueue
	Danger    bool // its button warns

	// Only of verbs that change records. Other verbs are operations on a queue, with their own command.
	Before  string   // what will become of them
	Offered []string // states of the messages that the page offers it for
	Timed   bool     // it takes a time
	ToQueue bool     // it needs a queue
	Short   string   // of its command
	Long    string   // after Short
	Example string

	// skip returns why a record stays as it is, or "".
	skip func(c RecordChange, r *store.Record) string
	// do changes a record that is not skipped; due is c.At or now. made is a new record.
	do func(c RecordChange, r *store.Record, now, due time.Time) (made *store.Record)
}

// Verbs are all verbs.
var Verbs = []VerbInfo{
	{
		Verb: Replay, Title: "Replay", One: "message will be retried", More: "messages will be retried",
		Role: auth.Operator, Event: retry.Replayed, Publishes: true, Timed: true,
		Before:  "Each goes to the tail of its own queue. Parked ones start again at attempt 1.",
		Offered: []string{inspect.Waiting, inspect.Parked},
		Short:   "Replay messages to their queue, now or at a given time",
		Long:    "Parked messages start again at\nattempt 1; waiting ones get a new due time.",
		Example: `  redrive replay 0198f0a0-0000-7000-8000-000000000001
  redrive replay 'queue:orders.* reason:rejected' --dry-run
  redrive replay 'queue:orders' --rate 50 --canary 10 --canary-wait 2m
  redrive replay --queue orders --at 'in 2h' --yes --expect-count 12`,
		skip: func(c RecordChange, r *store.Record) string {
			switch r.State {
			case store.Discarded:
				return "it is discarded: restore it first"
			case store.Parked:
				return c.refuses(r)
			}
			return ""
		},
		do: func(_ RecordChange, r *store.Record, _, due time.Time) *store.Record {
			if r.State == store.Waiting {
				r.Due = due
			} else {
				r.Replay(due)
			}
			return nil
		},
	},
	{
		Verb: Discard, Title: "Discard", One: "message is discarded; it can be restored for a set time",
		More: "messages are discarded; they can be restored for a set time",
		Role: auth.Operator, Event: retry.Discarded, Danger: true,
		Before:  "Discarded messages are not retried, and can be restored for a set time.",
		Offered: []string{inspect.Waiting, inspect.Parked},
		Short:   "Discard messages; they can be restored for a set time",
		Example: `  redrive discard 'queue:orders error:"invalid IBAN"' --dry-run`,
		skip: func(_ RecordChange, r *store.Record) string {
			if r.State == store.Discarded {
				return "it is discarded already"
			}
			return ""
		},
		do: func(c RecordChange, r *store.Record, now, _ time.Time) *store.Record {
			r.State, r.Due = store.Discarded, now.Add(c.restorable)
			return nil
		},
	},
	{
		Verb: Restore, Title: "Restore", One: "message is parked again", More: "messages are parked again",
		Role: auth.Operator, Event: retry.Restored,
		Before:  "They are parked again.",
		Offered: []string{inspect.Discarded},
		Short:   "Park discarded messages again",
		Example: "  redrive restore 'queue:orders state:discarded'",
		skip: func(_ RecordChange, r *store.Record) string {
			if r.State != store.Discarded {
				return "it is not discarded"
			}
			return ""
		},
		do: func(c RecordChange, r *store.Record, now, _ time.Time) *store.Record {
			if r.ParkedFor == "" {
				r.ParkedFor = "it was discarded while it waited, and restored by " + c.By
			}
			r.State, r.Due = store.Parked, now
			return nil
		},
	},
	{
		Verb: Copy, Title: "Copy", One: "copy is published", More: "copies are published",
		Role: auth.Editor, Event: retry.Copied, Publishes: true, ToQueue: true,
		Before:  "The queue receives new messages with the same content; these stay as they are.",
		Offered: []string{inspect.Waiting, inspect.Parked},
		Short:   "Copy messages to another queue; the originals stay as they are",
		Example: "  redrive copy 'queue:orders text:ACME' --to orders.debug",
		do: func(c RecordChange, r *store.Record, _, due time.Time) *store.Record {
			made := copyOf(r, due)
			made.Queue, made.Forward = c.To, &store.Destination{RoutingKey: c.To}
			made.Proven = false         // RabbitMQ never dead-lettered it from there
			if r.MadeInto == uuid.Nil { // of an edited one the link stays what it was
				r.MadeInto = made.ID
			}
			return made
		},
	},
	{
		Verb: Adopt, Title: "Adopt", One: "message is adopted, and parked", More: "messages are adopted, and parked",
		Role: auth.Editor, Event: retry.Imported,
	},
	{
		Verb: Unadopt, Title: "Unadopt", One: "message is back in its dead-letter queue",
		More: "messages are back in their dead-letter queue", Role: auth.Editor, Event: retry.Unadopted,
		skip: func(_ RecordChange, r *store.Record) string {
			if r.State != store.Parked {
				return "it is not parked"
			}
			return ""
		},
	},
}

// Info returns the row of a verb, or the zero value if there is none.
func (v Verb) Info() VerbInfo {
	for i := range Verbs {
		if Verbs[i].Verb == v {
			return Verbs[i]
		}
	}
	return VerbInfo{}
}

// Retries reports whether the verb has messages retried, each to its own queue.
func (v Verb) Retries() bool {
	is := v.Info()
	return is.Publishes && !is.ToQueue
}

// Title is the verb as headings and buttons have it.
func (v Verb) Title() string { return v.Info().Title }

// Check refuses an unknown verb, and fields that do not belong to the verb.
func (c RecordChange) Check() error {
	v := c.Verb.Info()
	switch {
	case v.do == nil:
		return fmt.Errorf("%w: the verb %.40q: expected %s", inspect.ErrInvalid, c.Verb,
			strings.Join(recordVerbs(), ", "))
	case v.ToQueue && c.To == "":
		return fmt.Errorf("%w: %s needs a queue to go to", inspect.ErrInvalid, v.Verb)
	case !v.ToQueue && c.To != "":
		return fmt.Errorf("%w: %s goes to no other queue", inspect.ErrInvalid, v.Verb)
	case !v.Timed && c.At != nil:
		return fmt.Errorf("%w: %s takes no time", inspect.ErrInvalid, v.Verb)
	}
	return nil
}

func recordVerbs() (names []string) {
	for i := range Verbs {
		if Verbs[i].do != nil {
			names = append(names, string(Verbs[i].Verb))
		}
	}
	return names
}

func (c RecordChange) skip(r *store.Record) string {
	if r == nil {
		return gone
	}
	if skip := c.Verb.Info().skip; skip != nil {
		return skip(c, r)
	}
	return ""
}

// do does the verb to a record that skip does not leave out. made is the copy, if it makes one.
func (c RecordChange) do(r *store.Record, now time.Time) (e store.Edit, made *store.Record) {
	linked := r.MadeInto
	if made = c.Verb.Info().do(c, r, now, dueAt(c.At, now)); made != nil {
		e.Add = []*store.Record{made}
	}
	e.Keep = made == nil || r.MadeInto != linked
	return e, made
}
