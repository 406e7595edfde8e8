package throttle

// PauseReason is why no message of a queue is retried just now. Its text is a label of the
// metric redrive_queue_paused, and in the API.
type PauseReason string

// The reasons. The throttle itself knows those in the middle; a person pauses by the
// console, and the scheduler finds out that RabbitMQ does not take messages for a queue.
const (
	WhyPerson      PauseReason = "person"
	WhyBreaker     PauseReason = "breaker"
	WhyNoConsumer  PauseReason = "no_consumer"
	WhyRate        PauseReason = "rate"
	WhyInFlight    PauseReason = "in_flight"
	WhyUnreachable PauseReason = "unreachable"
)

// PauseReasons are all of them. Page, command line, metrics and alert rules each have a test
// that walks this list.
var PauseReasons = []PauseReason{WhyPerson, WhyBreaker, WhyNoConsumer, WhyRate, WhyInFlight, WhyUnreachable}
