// Package report leaves the waiting to the Redrive service.
package report

import (
	"time"

	"github.com/redrive-mq/redrive/internal/wait"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Way publishes to redrive.failures.
type Way struct{}

// Limits implements wait.Way.
func (Way) Limits() wait.Limits {
	return wait.Limits{Name: "service", Longest: policy.LongestDelay, Step: time.Microsecond, Decides: true,
		Survives: "whatever the service's store does",
		Makes:    "nothing: the service makes what it needs",
		Needs:    "the Redrive service, with a policy that names the queue or the queue enrolled"}
}

// Topology implements wait.Way. The exchange is the service's: until it has
// started once, nothing takes what is reported.
func (Way) Topology(string) wait.Topology { return wait.Parked() }

// Hold implements wait.Way.
func (Way) Hold(queue string, delay time.Duration) (wait.Ticket, error) {
	return wait.Ticket{Exchange: wire.ExchangeFailures, RoutingKey: queue, Delay: delay}, nil
}
