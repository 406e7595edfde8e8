package console

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
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

// Breaker sets a queue's circuit breaker, over restarts: open, closed, or auto, with which
// it opens and closes by itself again.
func (c *Console) Breaker(ctx context.Context, by auth.Caller, queue, to, reason string) error {
	if err := c.permit(by, auth.Operator, "breaker", queue, queue); err != nil {
		return err
	}
	// What was set for a queue can be undone when the queue is gone.
	if set, err := c.Store.Entry(ctx, store.BreakerPrefix+queue); err != nil {
		return err
	} else if set == nil || to != "auto" {
		if err := c.known(ctx, queue); err != nil {
			return err
		}
	}
	var entry []byte
	switch to {
	case "auto":
	case "open", "closed":
		var err error
		if entry, err = json.Marshal(Forced{To: to, By: by.Name, Since: c.Now(), Reason: reason}); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: a breaker can be set to open, closed or auto, not to %.20q", ErrInvalid, to)
	}
	end, err := c.begin(by, "breaker "+to, queue, 0, reason)
	if err != nil {
		return err
	}
	c.pausing.Lock()
	err = c.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{{Name: store.BreakerPrefix + queue, Value: entry}})
	if err == nil && c.Force != nil {
		c.Force(queue, to, by.Name, reason)
		c.noteForced(queue, entry)
	}
	c.pausing.Unlock()
	c.changed()
	end(err, 0)
	return err
}

// Forced are the breakers that persons have set, by queue.
func (c *Console) forced(ctx context.Context) (map[string]Forced, error) {
	return ForcedIn(ctx, c.Store)
}

// ForcedIn are those that a store remembers.
func ForcedIn(ctx context.Context, s Store) (map[string]Forced, error) {
	all := map[string]Forced{}
	err := s.Entries(ctx, store.BreakerPrefix, "", func(e store.Entry) (bool, error) {
		var f Forced
		if err := json.Unmarshal(e.Value, &f); err != nil {
			return false, fmt.Errorf("the breaker of %q: %w", e.Name, err)
		}
		all[strings.TrimPrefix(e.Name, store.BreakerPrefix)] = f
		return true, nil
	})
	return all, err
}
