// Package world runs Redrive's core in a made-up world that a seed decides: the intake, the
// verdict, the store on a disk that can crash, the scheduler, the publisher, the ways to wait in
// RabbitMQ and what people do, as the service has them, and consumers with the library, against a
// model of RabbitMQ, in fake time. A ledger of its own checks the promises.
//
// What there is:
//
//	world.go         one run: it makes all parts and lets the seed's steps happen
//	seed.go          what a seed chooses: queues, policies and messages
//	breakers.go      queues whose retries a circuit breaker pauses
//	ways.go          queues whose messages wait in RabbitMQ
//	process.go       the service: it starts, crashes and starts again
//	replicas.go      several processes of the service on one store, of which one leads
//	shared.go        what the store is to them: heartbeats, the lead, announcements, leases
//	disk.go          the disk, which can be full and lose power
//	redis.go         Redis's own store, on a Redis in memory whose connections and process fail
//	answers.go       a store as a service reaches it: Redis loses answers, and any store fails or is late
//	clock.go         the service's clock, which a person sets by an hour
//	network.go       the connections, which are cut at a chosen byte
//
// Who uses it:
//
//	publisher.go     the publishers of messages, who publish again what is not confirmed
//	consumer.go      the work queues' consumers, which fail messages as the seed says
//	library.go       consumers with the Go library: what the seed chooses, and how long their messages wait
//	program.go       the program that runs them: it is cut off, stopped, killed and deployed again
//	handler.go       its handlers, which fail messages as the seed says, and what they check
//	people.go        replays, edits, discards, restores, pauses, reloads
//	bulk.go          operations on all messages that a query finds, and their accounts
//	imports.go       messages that are exported, and imported as others
//	hostile.go       what no consumer of Redrive's would publish
//	catchall.go      a policy for all queues, which Redrive's own are among
//
// What goes wrong:
//
//	faults.go        cuts, crashes, stops, a full disk, alarms of memory and disk, a store in trouble
//	stall.go         a replica stands still, and goes on where it was
//	nodeloss.go      RabbitMQ is killed or stopped, and starts again
//	leaderchange.go  quorum queues without a leader
//	fullqueue.go     queues that are full, and consumers that are away
//	rights.go        rights that are taken from the service's user
//	brokerpolicy.go  RabbitMQ's policies, which are set and deleted
//	deletedqueue.go  work queues that are deleted and declared again
//	damage.go        files of the store that are damaged, and what a person does about it
//
// The account:
//
//	ledger.go        what happened to each message
//	changes.go       what people and operations do to messages, as the store receives it
//	doubts.go        what the service has begun to store, and was not told that it is done
//	damaged.go       what a damaged store has lost
//	rates.go         how fast messages are retried, by all replicas together
//	check.go         what must never happen, and where each message must be at the end
//	happened.go      what happened in all runs together
//	shrink.go        the shortest scenario that still fails
//
// `make simulate SEEDS=n` runs the seeds from 1 to n; `go test ./test/world -seed N -v` runs one,
// shows its log and, when it fails, the shortest scenario that still does. The same seed gives the same
// run: in which order goroutines act at one instant is decided by a number too (testenv/fixedorder),
// but not where `make simulate` has all worlds in one process.
package world
