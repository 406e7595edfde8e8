package throttle

// WaitReason is why due messages of a queue are not retried just now. Its text is a label of
// the metric redrive_queue_paused; those that are limits are in the API too.
type WaitReason string

// The reasons. The throttle decides WhyBreaker, WhyNoConsumer, WhyRate and WhyInFlight. A person
// pauses by page, API or command line (WhyPerson), and the scheduler finds out that RabbitMQ does
// not accept messages for a queue (WhyUnreachable).
const (
	WhyPerson      WaitReason = "person"
	WhyBreaker     WaitReason = "breaker"
	WhyNoConsumer  WaitReason = "no_consumer"
	WhyRate        WaitReason = "rate"
	WhyInFlight    WaitReason = "in_flight"
	WhyUnreachable WaitReason = "unreachable"
)

// WaitReasons lists all of them. Page, command line, metrics and alert rules each have a test
// that walks this list.
var WaitReasons = []WaitReason{WhyPerson, WhyBreaker, WhyNoConsumer, WhyRate, WhyInFlight, WhyUnreachable}

// IsLimit tells whether messages continue to be retried, as fast as the limit allows, so that
// people are shown a limit and no pause.
func (w WaitReason) IsLimit() bool { return w == WhyRate || w == WhyInFlight }
