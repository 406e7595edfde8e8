package inspect

import (
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/throttle"
)

// ThrottleView is how the retries of a queue are limited just now, as people see it; what limits
// them is throttle.Throttle. The names in JSON are the API's, and never change.
type ThrottleView struct {
	State string `json:"state" enum:"closed,open,half-open,ramp" doc:"Of the circuit breaker: closed retries all due messages, open none, half-open a few probes, ramp more and more."`
	// Why the breaker is in its state, in words.
	Why    string     `json:"why,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
	Until  *time.Time `json:"until,omitempty" doc:"Of an open breaker: when it tries again."`
	Forced *Forced    `json:"forced,omitempty" doc:"A person has set it."`

	Rate        float64             `json:"rate,omitempty" doc:"Retries per second now; absent: unlimited."`
	InFlight    int                 `json:"in_flight,omitempty" doc:"Retried messages that have neither failed again nor finished yet."`
	MaxInFlight int                 `json:"most_in_flight,omitempty"`
	FailedShare float64             `json:"failed_share,omitempty" doc:"Share of the retries in the window that failed again: 0 to 1."`
	Finished    int                 `json:"judged,omitempty" doc:"How many retries that share is of."`
	LimitedBy   throttle.WaitReason `json:"limited_by,omitempty" enum:"rate,in_flight" doc:"Which limit due messages wait for just now; absent: none."`
	NoConsumer  *time.Time          `json:"no_consumer_since,omitempty" doc:"No message is retried since then, because the queue has no consumers."`
}

// Forced is a breaker that a person has set.
type Forced struct {
	To     string    `json:"to" enum:"open,closed"`
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// Text is in words what stops retries, or what a person has set the breaker to; "" for neither.
func (t *ThrottleView) Text() string {
	switch {
	case t == nil:
		return ""
	case t.NoConsumer != nil:
		return "paused: no consumers"
	case t.Forced != nil:
		return "breaker set to " + t.Forced.To + " by " + t.Forced.By
	case t.State != "closed":
		return strings.TrimSuffix("breaker "+t.State+": "+t.Why, ": ")
	}
	return ""
}

// KeepsBack tells whether due messages are not retried, or not all.
func (t *ThrottleView) KeepsBack() bool {
	return t != nil && (t.NoConsumer != nil || t.State != "closed")
}

// LimitText is in words the limit that due messages wait for just now, or "". They are retried as
// fast as the policy allows, so that this is no pause, and Text leaves it out.
func (t *ThrottleView) LimitText() string {
	if t == nil || t.LimitedBy == "" {
		return ""
	}
	return "limited by " + string(t.LimitedBy)
}
