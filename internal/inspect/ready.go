package inspect

import (
	"slices"
	"strings"
)

// A problem begins with the part of the service that it is of. With these parts the service is
// ready all the same; the first three are followed by a queue's name or a lane.
const (
	PartQueue            = "queue "
	PartForward          = "forwards of queue "
	PartConsumers        = "consumers of queue "
	PartDeliveryLimit    = "delivery limit"
	PartForeignConsumers = "another service"
	PartForeignPolicies  = "policies of others"
	PartClock            = "clock"
)

// OfQueue tells whether a problem, or its part of the service, concerns a single queue.
func OfQueue(problem string) bool {
	return strings.HasPrefix(problem, PartQueue) || strings.HasPrefix(problem, PartForward) || strings.HasPrefix(problem, PartConsumers)
}

// MakesNotReady tells whether a problem, or its part of the service, makes the service not ready. Problems
// of single queues do not, nor those that others must repair while the service does all its work:
// not ready would mean no page and no retries of other queues either.
func MakesNotReady(problem string) bool {
	return !OfQueue(problem) && !slices.ContainsFunc([]string{PartDeliveryLimit, PartForeignConsumers, PartForeignPolicies, PartClock},
		func(part string) bool { return strings.HasPrefix(problem, part) })
}

// withoutQueues leaves out the problems that name queues.
func withoutQueues(problems []string) []string { return slices.DeleteFunc(problems, OfQueue) }
