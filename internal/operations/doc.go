// Package operations is what a person does to all messages that a query finds. A query becomes
// a plan, whose messages are fixed at that moment; once it is started, it is an operation.
// Read it in this order:
//
//	shown.go        plans and operations as they are shown
//	plan.go         what an action would do to all that a query finds; frozen.go: its selection
//	runner.go       what the Runner needs and keeps
//	operation.go    plans and operations in memory and in the store
//	start.go        a plan becomes an operation; order.go: it is paused, resumed or canceled;
//	                outcomes.go: its results
//	run.go          all operations in turn; step.go: one step of one; canary.go: whether its
//	                first messages fail again
//	replicas.go     which of several replicas runs an operation
//	forget.go       deletes discarded messages for good, and old plans and operations
//	live.go         what has changed since a moment ago
//	console.go      what page and API call
package operations
