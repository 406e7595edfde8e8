package wire

// Headers on a message that Redrive returned. No others are added.
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

	// HeaderParkedFor says, on messages in redrive.parked, why they are there.
	HeaderParkedFor = "x-redrive-parked-for"
	// HeaderDelay is the delay, in milliseconds, that a consumer asks for when it reports
	// a failure (an upstream's Retry-After). It is read, never sent.
	HeaderDelay = "x-redrive-delay"
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
