// Package world runs Redrive's core in a made-up world that a seed decides: the intake, the
// verdict, the store on a disk that can crash, the scheduler, the publisher, the ways to wait in
// RabbitMQ and what people do, as the service has them, against a model of RabbitMQ, in fake
// time. A ledger of its own checks the promises.
//
//	seed.go      what a seed chooses: queues, policies and messages
//	ways.go      queues whose messages wait in RabbitMQ
//	faults.go    cuts, crashes, stops, a full disk, memory alarms, a store in trouble
//	answers.go   a store as a service reaches it: Redis loses answers, and any store fails or is late
//	clock.go     the service's clock, which a person sets by an hour
//	people.go    replays, edits, discards, restores, pauses, reloads
//	bulk.go      operations on all messages that a query finds, and their accounts
//	imports.go   messages that are exported, and imported as others
//	hostile.go   what no consumer of Redrive's would publish
//	catchall.go  a policy for all queues, which Redrive's own are among
//	world.go     one run: it makes all parts and lets the seed's steps happen
//	process.go   the service: it starts, crashes and starts again
//	disk.go      the disk, which can be full and lose power
//	network.go   the connections, which are cut at a chosen byte
//	consumer.go  the work queues' consumers, which fail messages as the seed says
//	ledger.go    what happened to each message
//	changes.go   what people and operations do to messages, as the store receives it
//	doubts.go    what the service has begun to store, and was not told that it is done
//	check.go     what must never happen, and where each message must be at the end
//	shrink.go    the shortest scenario that still fails
//
// `make simulate SEEDS=n` runs the seeds from 1 to n; `go test ./test/world -seed N -v` runs one,
// shows its log and, when it fails, the shortest scenario that still does. What a seed decides is
// the same in each run; in which order goroutines act at one instant is not.
package world
