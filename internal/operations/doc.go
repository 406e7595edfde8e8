// Package operations is what a person does to all messages that a query finds. A query becomes
// a plan, whose messages are fixed at that moment; once it is started, it is an operation.
// Read it in this order:
//
//	shown.go        plans and operations as they are shown
//	plan.go         what an action would do to all that a query finds, and that selection
//	runner.go       what the Runner needs and keeps; it deletes what is old
//	operation.go    plans and operations in memory and in the store, and their results
//	start.go        a plan becomes an operation, and is paused, resumed or canceled
//	step.go         all operations in turn, a step of each; canary.go: whether its first
//	                messages fail again
//	replicas.go     which of several replicas runs an operation
//	live.go         what has changed since a moment ago
//	console.go      what page and API call
package operations
