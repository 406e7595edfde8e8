package wire

// Headers of a retried message. Redrive adds no others, but to a message that a person has replayed
// although RabbitMQ's client could not read its headers (HeaderUnreadable); RabbitMQ adds its own,
// such as x-death, to a message that waits there.
const (
	HeaderID          = "x-redrive-id"           // string, a UUID, the same at all attempts
	HeaderAttempt     = "x-redrive-attempt"      // int64, number of failures so far
	HeaderQueue       = "x-redrive-queue"        // string, the work queue
	HeaderExchange    = "x-redrive-exchange"     // string, the exchange it was first published to
	HeaderRoutingKey  = "x-redrive-routing-key"  // string, the routing key it was first published with
	HeaderFirstFailed = "x-redrive-first-failed" // timestamp of the first failure
	HeaderReason      = "x-redrive-reason"       // string, why it failed: one of the reasons below
	HeaderError       = "x-redrive-error"        // string, the latest error, when known
	HeaderReplays     = "x-redrive-replays"      // int64, how often people replayed it; absent: never
	HeaderUserID      = "x-redrive-user-id"      // string, the user-id property as first published
)

// HeaderParkReason is on messages that are parked in RabbitMQ.
const HeaderParkReason = "x-redrive-parked-for" // string, why the message is in redrive.parked

// HeaderUnreadable is on a message with more headers than RabbitMQ's Go client reads (8,192): it is
// parked, and keeps this header when a person replays it.
const HeaderUnreadable = "x-redrive-unreadable" // bytes, all its headers as AMQP encodes them

// HeaderDelay is in reports, also those of the library (Service), and in annotations of a consumer by
// AMQP 1.0. It is never on a retried message.
const HeaderDelay = "x-redrive-delay" // milliseconds: the delay that a consumer asks for (Retry-After)

// HeaderPark is in reports and annotations too: the message is parked at once, whatever its policy says.
const HeaderPark = "x-redrive-park" // string: why a consumer asks to park the message at once

// HeaderRejectReason is in annotations alone. HeaderError would not do: a retried message has that of the
// failure before, and RabbitMQ does not say who wrote it.
const HeaderRejectReason = "x-redrive-rejected-for" // string: why a consumer by AMQP 1.0 rejects the message

// MaxAttempt is the largest number that is accepted in HeaderAttempt and HeaderReplays. A larger one, which
// only another program can have written, counts as 0.
const MaxAttempt = 1_000_000

// Reasons of a failure. The first four are RabbitMQ's own.
const (
	ReasonRejected      = "rejected"       // a consumer rejected it without requeue
	ReasonExpired       = "expired"        // its time to live ended in the queue
	ReasonMaxLen        = "maxlen"         // the queue was full
	ReasonDeliveryLimit = "delivery_limit" // it was delivered more often than its quorum queue allows
	ReasonReported      = "reported"       // a consumer published it to redrive.failures
)
