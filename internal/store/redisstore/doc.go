// Package redisstore keeps messages in Redis or Valkey, where several services use one
// store at once. Each move of a record is one script, in lua/. All keys are in one slot, so
// that a change of many records, and an operation's progress, are one step in a cluster as
// well. Read it in this order:
//
//	keys.go          every key, and what is stored under it
//	redisstore.go    Options, Open, Close, and what counts as durable
//	(connect.go, survey.go: servers, and the settings without which they lose writes)
//	scripts.go       the scripts, how one is run, and what it may do when Redis is full
//	add.go           a batch in one step (adding.go: one that is tried again is the same one)
//	claim.go         due records, claimed for the scheduler; leases.go renews the claims
//	change.go        people's actions: lock, edit, write in one step
//	(locks.go: locks of processes that ended; lostanswer.go: a change whose answer was lost)
//	receipts.go      ids of the newest records, by which redelivered messages are recognized
//	scan.go          searches; counts.go, ledger.go, groups.go, past.go: what is counted
//	entries.go       the side table
//	shared.go        members, leader and announcements of the services
//	identity.go      detects a server that was replaced, or has lost writes
//	memory.go        refuses to add when memory is short
//	forget.go        queues, and discarded messages, whose time is over
package redisstore
