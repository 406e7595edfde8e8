package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/store"
)

// newConditions returns the conditions of a starting service, which waits for three connections.
func newConditions(m *metrics.Metrics) *condition.Set {
	var first []condition.Condition
	for _, k := range []condition.Kind{condition.Intake, condition.Parked, condition.Publish} {
		first = append(first, condition.Condition{Kind: k, Text: "connecting"})
	}
	return condition.NewSet(m.Ready, first...)
}

// ofLane is the condition of a lane that fails, without its text.
func ofLane(lane store.Lane) condition.Condition {
	if lane.Forwards() {
		return condition.Condition{Kind: condition.Forward, Queue: lane.Queue, Target: lane.Forward.String()}
	}
	return condition.Condition{Kind: condition.Unreachable, Queue: lane.Queue}
}

// redisText is that of an error of the store in Redis; "" for nil.
func redisText(err error) string {
	if err == nil {
		return ""
	}
	return strings.TrimPrefix(err.Error(), "redis: ")
}

// refusals are the ways to wait whose messages RabbitMQ does not confirm, and why.
type refusals struct {
	mu  sync.Mutex
	why map[string]error
}

func (r *refusals) set(way string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why == nil {
		r.why = map[string]error{}
	}
	if r.why[way] = err; err == nil {
		delete(r.why, way)
	}
}

// notices returns a line for people about each.
func (r *refusals) notices() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, way := range slices.Sorted(maps.Keys(r.why)) {
		all = append(all, fmt.Sprintf("messages that are to wait in RabbitMQ (%s) wait in the store, since RabbitMQ does not confirm them: %v", way, r.why[way]))
	}
	return all
}

// recounted receives by how much the ledger is off, by queue, each time stored messages were
// counted. Messages are lost or in excess then, so the service is not ready until a person has
// looked.
func (s *vhost) recounted(off map[string]int64) {
	s.metrics.Recounted(off)
	s.ledgerOff.Store(&off)
	what := ""
	if len(off) > 0 {
		what = fmt.Sprintf("the ledger does not balance: messages are missing, or there are more than came; queues affected: %d (`redrive ledger` shows which)", len(off))
	}
	s.conditions.Put(condition.Condition{Kind: condition.Ledger, Text: what})
}
