// Package audit is the log of who did what: append-only, each line carrying the
// hash of the one before it, so that a change or a gap shows.
//
// A log is a folder of files, each named after the number of its first line, which
// starts the chain or says which it goes on with. A line is an Entry as JSON; its
// hash is the SHA-256 of all its bytes before the hash, the hash of the line before
// included.
//
// The chain has no secret: a user who can write the files can cut lines off the end, or
// write everything from some line on again, and no look at the files alone finds
// that. A mark (the number and hash of a line, as `redrive audit verify` and the
// service's own log say it) that is kept elsewhere does.
package audit

import "time"

// Entry is one line of the log.
type Entry struct {
	N         int64     `json:"n"`
	At        time.Time `json:"at"`
	Who       string    `json:"who"`
	How       string    `json:"how" doc:"How they signed in: rabbitmq, token or local."`
	From      string    `json:"from" doc:"The address the call came from."`
	Interface string    `json:"face" enum:"page,api,cli"`
	Did       string    `json:"did" doc:"The action, such as replay, edit, pause or operation.start."`
	On        string    `json:"on" doc:"The messages' ids, the query, the queue, or the operation."`
	Count     int64     `json:"count,omitempty" doc:"How many messages."`
	Why       string    `json:"why,omitempty" doc:"The reason they gave."`
	Of        int64     `json:"of,omitempty" doc:"The line whose outcome this one records."`
	Outcome   string    `json:"outcome" doc:"begun, done, refused, or what went wrong."`
	Prev      string    `json:"prev"`
	Hash      string    `json:"hash"`
}

// Lines that the log writes about itself.
const (
	didStart  = "audit.start"  // the first line of a file
	didRepair = "audit.repair" // what a crash left before this line is no line
)
