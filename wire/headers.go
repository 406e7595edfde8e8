package wire

// Headers on a retried message. No others are added.
const (
	HeaderID          = "x-redrive-id"           // string, a UUID, stable over all attempts
	HeaderAttempt     = "x-redrive-attempt"      // int64, failures so far
	HeaderQueue       = "x-redrive-queue"        // string, the work queue
	HeaderExchange    = "x-redrive-exchange"     // string, as first published
	HeaderRoutingKey  = "x-redrive-routing-key"  // string, as first published
	HeaderFirstFailed = "x-redrive-first-failed" // timestamp
	HeaderReason      = "x-redrive-reason"       // string: rejected, expired, maxlen, delivery_limit, reported
	HeaderError       = "x-redrive-error"        // string, when known
	HeaderUserID      = "x-redrive-user-id"      // string: the user-id property, which RabbitMQ refuses from another user
)

// Headers on other messages.
const (
	HeaderParkedFor = "x-redrive-parked-for" // on messages in redrive.parked: string, why they are there
	HeaderDelay     = "x-redrive-delay"      // on reports, never on what Redrive publishes: the delay that the consumer asks for (an upstream's Retry-After), in milliseconds
)

// MaxAttempt is the largest value believed in HeaderAttempt.
const MaxAttempt = 1_000_000

// Reasons of a failure. The first four are RabbitMQ's own.
const (
	ReasonRejected      = "rejected"       // a consumer rejected it without requeue
	ReasonExpired       = "expired"        // its time to live ended in the queue
	ReasonMaxLen        = "maxlen"         // the queue was full
	ReasonDeliveryLimit = "delivery_limit" // it was delivered more often than its quorum queue allows
	ReasonReported      = "reported"       // a consumer published it to redrive.failures
)
