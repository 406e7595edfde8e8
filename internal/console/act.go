package console

import "time"

// Verb is what is done to messages.
type Verb string

// What can be done.
const (
	// Replay: a parked one returns to its queue with all its attempts before it; of
	// a waiting one, when it is due is changed, and its attempts stay.
	Replay Verb = "replay"
	// Discard: let go; it can be restored for a set time.
	Discard Verb = "discard"
	// Restore: a discarded one is parked again.
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
	DryRun bool       `json:"dry_run,omitempty" doc:"Only tell what would be done."`
}

// Acted is what came of it.
type Acted struct {
	Done     int       `json:"done"`
	Outcomes []Outcome `json:"outcomes" doc:"One for each id, in their order."`
}

// Outcome is what came of one message.
type Outcome struct {
	ID      string    `json:"id"`
	Key     string    `json:"key,omitempty"`
	Queue   string    `json:"queue,omitempty"`
	Outcome string    `json:"outcome" enum:"done,skipped,failed"`
	Why     string    `json:"why,omitempty"`
	New     string    `json:"new,omitempty" doc:"The id of the message that was made of it."`
	At      time.Time `json:"at"`
}

// EditRequest replaces a message by an edited one, which is sent back; the original
// is discarded and linked.
type EditRequest struct {
	ID string `json:"id"`
	// Body, when not nil, is the new body, byte for byte.
	Body *[]byte `json:"body,omitempty" contentEncoding:"base64"`
	// Document, when not nil, is a JSON document that takes the place of what the
	// decoders found, and goes back through their steps (base64, compression,
	// Protobuf…) to bytes.
	Document *string `json:"document,omitempty"`
	// SetHeaders sets headers to texts; a name that was of another type keeps its
	// type, or the edit is refused.
	SetHeaders    map[string]string `json:"set_headers,omitempty"`
	RemoveHeaders []string          `json:"remove_headers,omitempty"`
	At            *time.Time        `json:"at,omitempty" doc:"When it returns; left out: now."`
	Reason        string            `json:"reason,omitempty" maxLength:"500"`
	DryRun        bool              `json:"dry_run,omitempty" doc:"Only show the difference."`
}

// Edited is what came of an edit.
type Edited struct {
	New    string   `json:"new,omitempty" doc:"The id of the edited message; absent with dry_run."`
	Bytes  string   `json:"bytes" doc:"The difference of the bodies, in hex, as a unified diff."`
	Fields []Change `json:"fields" doc:"The differences of decoded body and headers."`
	Checks []string `json:"checks,omitempty" doc:"What the schema has to say about the new body."`
}

// Change is a field that differs.
type Change struct {
	Path   string `json:"path"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}
