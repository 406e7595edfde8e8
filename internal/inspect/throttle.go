package inspect

import (
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/throttle"
)

// Throttle limits the retries of a queue, by the rules of its policy.
type Throttle struct {
	State string `json:"state" enum:"closed,open,half-open,ramp" doc:"Of the circuit breaker: closed retries all due messages, open none, half-open a few probes, ramp more and more."`
	// Why in words, what the state, or a pause for another reason, comes from.
	Why    string     `json:"why,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
	Until  *time.Time `json:"until,omitempty" doc:"Of an open breaker: when it tries again."`
	Forced *Forced    `json:"forced,omitempty" doc:"A person has set it."`

	Rate        float64              `json:"rate,omitempty" doc:"Retries per second now; absent: unlimited."`
	InFlight    int                  `json:"in_flight,omitempty" doc:"Retried messages that have neither failed again nor settled yet."`
	MostFlight  int                  `json:"most_in_flight,omitempty"`
	FailedShare float64              `json:"failed_share,omitempty" doc:"Share of the retries in the window that failed again: 0 to 1."`
	Judged      int                  `json:"judged,omitempty" doc:"How many retries that share is of."`
	LimitedBy   throttle.PauseReason `json:"limited_by,omitempty" enum:"rate,in_flight" doc:"Which limit due messages wait for just now; absent: none."`
	NoConsumer  *time.Time           `json:"no_consumer_since,omitempty" doc:"No message is retried since then, because the queue has no consumers."`
}

// Forced is a breaker that a person has set.
type Forced struct {
	To     string    `json:"to" enum:"open,closed"`
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// Says is in words what it does just now, or "" when all due messages are retried.
func (g *Throttle) Says() string {
	switch {
	case g == nil:
		return ""
	case g.NoConsumer != nil:
		return "paused: no consumers"
	case g.Forced != nil:
		return "breaker set to " + g.Forced.To + " by " + g.Forced.By
	case g.State != "closed":
		return strings.TrimSuffix("breaker "+g.State+": "+g.Why, ": ")
	}
	return ""
}

// Limit is in words the limit that due messages wait for just now, or "". They are retried as
// fast as the policy allows, so that this is no pause, and Says leaves it out.
func (g *Throttle) Limit() string {
	if g == nil {
		return ""
	}
	switch g.LimitedBy {
	case throttle.WhyRate:
		return "limited by rate"
	case throttle.WhyInFlight:
		return "limited by in_flight"
	}
	return ""
}

// Pauses tells whether it pauses the retries now.
func (g *Throttle) Pauses() bool { return g != nil && (g.State == "open" || g.NoConsumer != nil) }
