package inspect

import (
	"slices"
	"strings"
)

// OfQueue tells whether a problem, or the part of the service that it is of, concerns a
// single queue.
func OfQueue(problem string) bool {
	return strings.HasPrefix(problem, "queue ") || strings.HasPrefix(problem, "forwards of queue ") || strings.HasPrefix(problem, "consumers of queue ")
}

// Stops tells whether a problem, or the part of the service that it is of, makes the
// service not ready. Trouble of single queues does not, nor what others must repair while
// the service does all its work: to take it out of service for those would take its page
// and all other retries away, too.
func Stops(problem string) bool {
	return !OfQueue(problem) && !strings.HasPrefix(problem, "delivery limit") && !strings.HasPrefix(problem, "another service")
}

// withoutQueues leaves out the problems that name queues.
func withoutQueues(problems []string) []string { return slices.DeleteFunc(problems, OfQueue) }
