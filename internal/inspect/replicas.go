package inspect

import (
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
)

// Replica is one service of several that share a store.
type Replica struct {
	ID         string                `json:"id"`
	Address    string                `json:"address" doc:"Where its page and API are."`
	Version    string                `json:"version"`
	Since      time.Time             `json:"since" doc:"When it started."`
	Beat       time.Time             `json:"beat" doc:"When it was last heard of."`
	Leads      bool                  `json:"leads" doc:"It is the leader: it runs operations, sends notifications, deletes what is old and decides about breakers."`
	Self       bool                  `json:"self" doc:"It is the one that answers."`
	Ready      bool                  `json:"ready" doc:"As its /readyz says."`
	Conditions []condition.Condition `json:"conditions,omitempty" doc:"What is wrong there; with single queues also while it is ready."`
}

// Silent tells whether several of its heartbeats, four a second, are missing; soon it counts as
// gone.
func (r Replica) Silent(now time.Time) bool { return now.Sub(r.Beat) > 2*time.Second }

// replicasFor returns the live replicas; callers who are limited to queues do not see the conditions
// that name queues.
func (in *Inspector) replicasFor(by auth.Caller) []Replica {
	if in.Replicas == nil {
		return nil
	}
	all := in.Replicas()
	for i := range all {
		if by.Queues != nil {
			all[i].Conditions = slices.DeleteFunc(all[i].Conditions, condition.Condition.OfQueue)
		}
	}
	return all
}
