// Package audit is the log of who did what: append-only, each line carrying the
// hash of the one before it, so that a change or a gap shows.
//
// A log is a folder of files, each named after the number of its first line, which starts
// the chain or names the file that it continues. A line is an Entry as JSON; its hash is the
// SHA-256 of all its bytes before the hash, the hash of the line before included.
//
// The chain has no secret: a user who can write the files can cut lines off the end, or
// rewrite everything from some line on, and the files alone do not show that. A mark that is
// kept elsewhere does: the number and hash of a line, which `redrive audit verify` and the
// service's own log print.
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
	didRepair = "audit.repair" // what stands before this line is what a crash left, and no line
)
