// Package store is the contract of stores, which keep waiting and parked messages. Every
// engine passes package storetest. Read it in this order:
//
//	store.go      add, claim, finish: what the intake and the scheduler call
//	record.go     a failed message and what Redrive knows of it
//	(key.go, lane.go: how a record is named; the destination that it waits for)
//	change.go     what people's actions call: records and the side table, in one step
//	scan.go       how records are searched
//	groups.go     error groups (reasons.go: why their members failed, as a set)
//	past.go       past failures: what is left of a message that was retried, forwarded or discarded
//	ledger.go     counts of all messages by what became of them
//	shared.go     what engines add that several services use at once
//	(forget.go, opencalls.go: what engines share: discarded messages whose time is over, and
//	calls under way when the store closes)
//	codec.go      a record as bytes (tablecodec.go: its headers; decoder.go: how bytes are read)
//
// A store has no policies and no broker, and its callers pass what is due: the only clock in it
// is that of the leases and terms of shared.go.
package store
