// Package audit is the log of who did what: append-only, each line carrying the
// hash of the one before it, so that a change or a gap shows.
package audit

import "time"

// Entry is one line of the log.
type Entry struct {
	N       int64     `json:"n"`
	At      time.Time `json:"at"`
	Who     string    `json:"who"`
	How     string    `json:"how" doc:"How they signed in: rabbitmq, token or local."`
	From    string    `json:"from" doc:"The address the call came from."`
	Face    string    `json:"face" enum:"page,api,cli"`
	Did     string    `json:"did" doc:"The action, such as replay, edit, hold or operation.start."`
	On      string    `json:"on" doc:"The messages' ids, the query, the queue, or the operation."`
	Count   int64     `json:"count,omitempty" doc:"How many messages."`
	Why     string    `json:"why,omitempty" doc:"The reason they gave."`
	Of      int64     `json:"of,omitempty" doc:"The line that this one tells the outcome of."`
	Outcome string    `json:"outcome" doc:"begun, done, refused, or what went wrong."`
	Prev    string    `json:"prev"`
	Hash    string    `json:"hash"`
}
