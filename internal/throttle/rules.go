// Package throttle says how many due messages may be retried to their work queue now: no
// faster than its policy's rate, no more at once than in_flight, only a probe to a queue without
// consumers, and none while its circuit breaker is open. Read it in this order:
//
//	rules.go     what a policy says, and what a breaker's states are
//	throttle.go  one throttle for all queues: called before a retry, and after; why messages wait,
//	             and what people and metrics are shown; those of several replicas, which share the limits
//	queue.go     what limits one queue's retries, those that have not finished yet, how many of the latest
//	             failed again, and when retries pause, are probed, and resume
//
// It is arithmetic: no IO, no goroutines, and time is passed in.
package throttle

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Rules are a policy's limits on its queues' retries. The zero Rules limit nothing but retries
// of a queue that is known to have no consumers.
type Rules struct {
	Rate     float64       // retries per second; 0: no limit
	InFlight int           // messages in flight: retried, not failed again, within Settle; 0: no limit
	Settle   time.Duration // for how long after a retry a failure counts as that retry's; 0: DefaultSettle
	Breaker  *Breaker      // nil: none
	// NoConsumer is PauseWithoutConsumers, or RetryWithoutConsumers for queues that are read
	// with basic.get; "" is the first.
	NoConsumer string
	Probes     int // messages that a queue without consumers holds before retries pause; 0: 1
	// NoQueue is how long messages wait for a queue that does not exist; 0: DefaultNoQueue.
	NoQueue time.Duration
}

// String lists the limits, except NoConsumer; "" when there are none.
func (r Rules) String() string {
	var parts []string
	if r.Rate > 0 {
		parts = append(parts, FormatRate(r.Rate))
	}
	if r.InFlight > 0 {
		parts = append(parts, fmt.Sprintf("%d in flight", r.InFlight))
	}
	if r.Breaker != nil {
		parts = append(parts, "breaker")
	}
	return strings.Join(parts, ", ")
}

// FormatRate writes a rate, given per second, in the unit in which it is a whole number.
func FormatRate(r float64) string {
	switch {
	case r == math.Trunc(r):
		return fmt.Sprintf("%g/s", r)
	case math.Abs(r*60-math.Round(r*60)) < 1e-9:
		return fmt.Sprintf("%g/min", math.Round(r*60))
	}
	return fmt.Sprintf("%.4g/h", r*3600)
}

// What NoConsumer may be.
const (
	PauseWithoutConsumers = "pause"
	RetryWithoutConsumers = "retry"
)

// DefaultNoQueue is how long messages wait for a queue that does not exist.
const DefaultNoQueue = 5 * time.Minute

// DefaultSettle is the settle time of rules without one.
const DefaultSettle = 30 * time.Second

// MaxTracked is how many retried messages of a queue are remembered at once. It
// bounds memory, and InFlight.
const MaxTracked = 65_536

// Breaker says when a queue's retries pause: when at least MinRetries of those in the last Window
// have finished, and FailureRatio of these have failed again. A retry has finished
//
//   - when it fails again;
//   - when a later one fails again, since a queue is nearly in order;
//   - when its settle time is over (Rules.Settle).
type Breaker struct {
	FailureRatio float64 // 0…1
	MinRetries   int
	Window       time.Duration
	// Wait is how long the breaker is open before Probes messages are retried. While these fail,
	// it grows to a twentieth of the time since the breaker first opened, and to MaxWait at most.
	// Each wait is up to 20 % shorter or longer.
	Wait, MaxWait time.Duration
	Probes        int
	// Ramp is how long the rate rises after no probe has failed again within the settle time.
	Ramp time.Duration
}

// DefaultBreaker is what `breaker: on` says.
func DefaultBreaker() Breaker {
	return Breaker{FailureRatio: 0.5, MinRetries: 20, Window: time.Minute, Wait: 10 * time.Second, MaxWait: 2 * time.Minute, Probes: 3, Ramp: time.Minute}
}

// State of a queue's breaker.
type State string

// Closed allows all retries, Open none, HalfOpen as many as Probes says, and Ramp
// more from second to second until it is Closed.
const (
	Closed   State = "closed"
	Open     State = "open"
	HalfOpen State = "half-open"
	Ramp     State = "ramp"
)

// States are all of them.
var States = []State{Closed, Open, HalfOpen, Ramp}

// Transition.To can also be one of these: messages wait for a consumer of the queue, or no longer.
const (
	NoConsumer   State = "no-consumer"
	ConsumerBack State = "consumer-back"
)

// ForceAuto passed to Force lets the breaker decide again.
const ForceAuto = "auto"

// Transition is one change of a queue.
type Transition struct {
	Queue      string
	From, To   State // From is "" when To is NoConsumer or ConsumerBack
	At         time.Time
	Reason     string
	By         string    // who forced it; "" when no one did
	Until      time.Time // To is Open: when the first probe is retried; zero: when a person closes it
	OnFollower bool      // this replica does not lead: the leader reports it
}

func (r *Rules) settle() time.Duration {
	if r.Settle <= 0 {
		return DefaultSettle
	}
	return r.Settle
}

// tracks tells whether it must be known what became of each retried message.
func (r *Rules) tracks() bool { return r.InFlight > 0 || r.Breaker != nil }

func (r *Rules) unlimited() bool { return r.Rate <= 0 && !r.tracks() }
