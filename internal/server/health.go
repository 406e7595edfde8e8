package server

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/store"
)

// health has the problems now, by part of the service. The parts without which the service is not
// ready have one from the start: that they are connecting.
type health struct {
	log     *slog.Logger
	metrics *metrics.Metrics

	mu    sync.Mutex
	wrong map[string]string    // the problem of a part
	until map[string]time.Time // when it is over by itself, of those that setFor has set
}

const (
	partIntake           = "intake"
	partParked           = "parked"
	partPublish          = "retries"
	partDelays           = "delays"
	partStore            = "store"
	partDisk             = "disk"
	partLedger           = "ledger"
	partParkedStore      = "store of parked"
	partRedis            = "redis"
	partListener         = "events for "         // and the listener's name
	partQueue            = inspect.PartQueue     // and the queue's name
	partForward          = inspect.PartForward   // and the lane of the forward target
	partConsumers        = inspect.PartConsumers // and the queue's name
	partLimit            = inspect.PartDeliveryLimit
	partForeignConsumers = inspect.PartForeignConsumers
	partForeignPolicies  = inspect.PartForeignPolicies
	partClock            = inspect.PartClock

	// blockedBy begins what is wrong with a connection under an alarm.
	blockedBy = "blocked by an alarm of RabbitMQ: "
)

// partOf is the part that has the problems of a lane.
func partOf(lane store.Lane) string {
	if lane.Forwards() {
		return partForward + lane.String()
	}
	return partQueue + lane.Queue
}

func newHealth(log *slog.Logger, m *metrics.Metrics) *health {
	h := &health{log: log, metrics: m, wrong: map[string]string{}, until: map[string]time.Time{}}
	h.set(partIntake, "connecting")
	h.set(partParked, "connecting")
	h.set(partPublish, "connecting")
	return h
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

// set sets the problem of a part; "" for none. It returns whether that has changed.
func (h *health) set(part, what string) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire()
	changed = h.wrong[part] != what
	if what == "" {
		delete(h.wrong, part)
	} else {
		h.wrong[part] = what
	}
	if !inspect.OfQueue(part) { // of queues there may be a hundred thousand
		h.showReady()
	}
	return changed
}

func (h *health) showReady() {
	h.metrics.Ready(isReady(h.wrong), h.wrong[partStore] != "" || h.wrong[partDisk] != "" || h.wrong[partRedis] != "")
}

// setFor is set for something that happened once: the problem is over after d.
func (h *health) setFor(d time.Duration, part, what string) {
	h.mu.Lock()
	h.until[part] = time.Now().Add(d)
	h.mu.Unlock()
	h.set(part, what)
}

// expire forgets what has been shown long enough. The caller holds mu.
func (h *health) expire() {
	for part, until := range h.until {
		if time.Now().After(until) {
			delete(h.until, part)
			delete(h.wrong, part)
			h.showReady()
		}
	}
}

// isReady decides readiness for /readyz, the metric, API, page, command line and the replicas'
// table: a service is ready unless one of its problems makes it not ready.
func isReady(wrong map[string]string) bool {
	for part := range wrong {
		if inspect.MakesNotReady(part) {
			return false
		}
	}
	return true
}

func (h *health) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire()
	return isReady(h.wrong)
}

// problems returns all of them, in order.
func (h *health) problems() []string { return problemsOf(h.byPart()) }

// byPart returns the problems by part.
func (h *health) byPart() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire()
	return maps.Clone(h.wrong)
}

// withoutPart returns the text of an error of the store in Redis without its part; "" for nil.
func withoutPart(err error) string {
	if err == nil {
		return ""
	}
	return strings.TrimPrefix(err.Error(), partRedis+": ")
}

// mostProblems is how many problems of single queues are listed.
const mostProblems = 200

func problemsOf(wrong map[string]string) []string {
	var others, queues []string
	n, last := 0, ""
	for part := range wrong {
		if !inspect.OfQueue(part) {
			others = append(others, part)
			continue
		}
		// Of a hundred thousand only the first are put in order.
		if n++; last != "" && part > last {
			continue
		}
		if queues = append(queues, part); len(queues) == 2*mostProblems {
			slices.Sort(queues)
			queues = queues[:mostProblems]
			last = queues[mostProblems-1]
		}
	}
	slices.Sort(queues)
	all := []string{}
	for _, part := range slices.Sorted(slices.Values(append(others, queues[:min(mostProblems, len(queues))]...))) {
		all = append(all, part+": "+wrong[part])
	}
	if more := n - mostProblems; more > 0 {
		all = append(all, fmt.Sprintf("%s(others): %d more have problems", partQueue, more))
	}
	return all
}

// problemOf returns that of one part.
func (h *health) problemOf(part string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.wrong[part]
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
	s.health.set(partLedger, what)
}
