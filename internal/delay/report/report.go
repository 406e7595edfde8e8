// Package report leaves the waiting to the Redrive service.
package report

import (
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Way publishes to redrive.failures.
type Way struct{}

// Limits implements delay.Way.
func (Way) Limits() delay.Limits {
	return delay.Limits{Name: "service", Longest: policy.LongestDelay, Step: time.Microsecond, ServiceDecides: true,
		Survives: "whatever the service's store does",
		Declares: "nothing: the service declares what it needs",
		Needs:    "the Redrive service, with a policy that matches the queue, and names it exactly unless the queue is enrolled"}
}

// Topology implements delay.Way. The service declares the exchange of reports: until it has started
// once, reports cannot be published.
func (Way) Topology(string) delay.Topology { return delay.Parked() }

// Ticket implements delay.Way.
func (Way) Ticket(queue string, wait time.Duration) (delay.Ticket, error) {
	return delay.Ticket{Exchange: wire.ExchangeFailures, RoutingKey: queue, Delay: wait}, nil
}
