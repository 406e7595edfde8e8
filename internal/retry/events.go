package retry

import (
	"time"

	"github.com/google/uuid"
)

// Kind of an event.
type Kind string

// What can happen. Log, metrics, notifications and page listen to these.
const (
	Failed    Kind = "failed"    // a dead letter or a report arrived, and is safe (or discarded)
	Waiting   Kind = "waiting"   // it waits for Delay
	Retried   Kind = "retried"   // RabbitMQ confirmed it in its work queue, Late after it was due
	Forwarded Kind = "forwarded" // RabbitMQ confirmed it where its policy, or a person, sends it
	Parked    Kind = "parked"    // kept until a person decides, and Why
	Discarded Kind = "discarded" // by its policy; or, with By, by a person, N of Queue
	Replayed  Kind = "replayed"  // a person replayed N parked or waiting messages of Queue
	Restored  Kind = "restored"  // a person parked N discarded messages of Queue again
	Edited    Kind = "edited"    // a person replaced the message ID of Queue by an edited one
	Copied    Kind = "copied"    // a person has copies of N messages of Queue sent to another queue
	Imported  Kind = "imported"  // a person imported N messages of Queue, which are parked
	Paused    Kind = "paused"    // a person paused the retries of Queue, and Why
	Resumed   Kind = "resumed"   // a person resumed them

	// What the throttle does with the retries of Queue, and Why; with By, a person has forced it.
	Opened       Kind = "opened"        // its breaker is open: nothing is retried
	HalfOpened   Kind = "half-opened"   // a few probes are retried
	Ramping      Kind = "ramping"       // the probes succeeded: more and more are retried
	Closed       Kind = "closed"        // all due messages are retried
	NoConsumer   Kind = "no-consumer"   // something is due, and its queue has no consumer
	ConsumerBack Kind = "consumer-back" // retries are no longer paused for lack of a consumer
)

// InStore is how messages wait in the service's own store, on disk or in Redis: the word is in the
// API.
const InStore = "disk"

// Event is one thing that happened to a message, several, or a queue.
type Event struct {
	Kind     Kind
	At       time.Time
	Queue    string
	ID       uuid.UUID
	Failures int    // failures so far
	Reason   string // why it failed: one of wire.Reason…
	Error    string // the text that its consumer reported; hostile
	Ignored  string // Failed: its header of ours that should be a number and is none
	Delay    time.Duration
	Way      string // Waiting: InStore, or the name of the way to wait in RabbitMQ
	Instead  string // Waiting in the store: the way to wait by which RabbitMQ did not accept it
	Late     time.Duration
	Why      string
	N        int
	By       string // the person
}

// Listener receives every event, on the goroutine that caused it: it must be quick and must
// not block.
type Listener func(Event)
