package throttle

// PauseReason is why due messages of a queue are not retried just now. Its text is a label of the
// metric redrive_queue_paused, and in the API. WhyRate and WhyInFlight are limits: messages
// continue to be retried, as fast as these allow, so people are shown a limit and no pause.
type PauseReason string

// The reasons. The throttle decides WhyBreaker, WhyNoConsumer, WhyRate and WhyInFlight. A person
// pauses by page, API or command line (WhyPerson), and the scheduler finds out that RabbitMQ does
// not accept messages for a queue (WhyUnreachable).
const (
	WhyPerson      PauseReason = "person"
	WhyBreaker     PauseReason = "breaker"
	WhyNoConsumer  PauseReason = "no_consumer"
	WhyRate        PauseReason = "rate"
	WhyInFlight    PauseReason = "in_flight"
	WhyUnreachable PauseReason = "unreachable"
)

// PauseReasons lists all of them. Page, command line, metrics and alert rules each have a test
// that walks this list.
var PauseReasons = []PauseReason{WhyPerson, WhyBreaker, WhyNoConsumer, WhyRate, WhyInFlight, WhyUnreachable}
