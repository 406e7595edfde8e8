// Package replica makes a service one of several that share a store. Package cluster knows which
// replicas are alive and which of them leads; here is what each does with that. Read it in this
// order:
//
//	replica.go   what a replica is, and what it does while it leads
//	poll.go      what it reads that others have written
//	breakers.go  the breakers, which the leader decides about for all
//	announce.go  what replicas announce to each other
package replica
