// Package actions is what a person does to messages that they name, to a queue and to a group
// of failures. Each action checks the permission, and has two lines in the audit log: one before
// it, and one with its result. What changes messages or pauses sends an event. Read it in this order:
//
//	actions.go    what it needs
//	permit.go     the permission check, the audit log and the event
//	act.go        replay, discard, restore or copy messages; change.go: what that makes of one
//	              record, and of as many as an operation passes
//	edit.go       a message replaced by an edited one; diff.go: how the two differ
//	pause.go      pauses the retries of a queue; breaker.go: sets its circuit breaker;
//	              settings.go: both in force, also those that other replicas set
//	export.go     messages as lines of JSON; import.go reads them
//	(line.go, headers.go: a line, exact to the last byte)
//	note.go, snapshot.go, forget.go: notes on groups, copies of the store, the end of what was
//	              discarded
package actions
