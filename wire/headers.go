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
	HeaderUserID      = "x-redrive-user-id"      // string: the user-id property, which the broker refuses from anybody else

	// HeaderParkedFor says, on messages in redrive.parked, why they are there.
	HeaderParkedFor = "x-redrive-parked-for"
	// HeaderDelay is a wish, in milliseconds, of a consumer that reports a
	// failure itself (an upstream's Retry-After). It is read, never sent.
	HeaderDelay = "x-redrive-delay"
)

// MaxAttempt is the largest value believed in HeaderAttempt.
const MaxAttempt = 1_000_000

// Reasons of a failure. The first four are RabbitMQ's own.
const (
	ReasonRejected      = "rejected"
	ReasonExpired       = "expired"
	ReasonMaxLen        = "maxlen"
	ReasonDeliveryLimit = "delivery_limit"
	ReasonReported      = "reported" // through redrive.failures
)
