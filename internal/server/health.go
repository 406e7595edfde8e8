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

// health is what is wrong at the moment, by part of the service. A part that has
// not said anything yet is not ready.
type health struct {
	log     *slog.Logger
	metrics *metrics.Metrics

	mu    sync.Mutex
	wrong map[string]string
	until map[string]time.Time // when a part is taken to be well again by itself
}

const (
	partIntake           = "intake"
	partParked           = "parked"
	partPublish          = "retries"
	partDelays           = "delays"
	partStore            = "store"
	partLedger           = "ledger"
	partParkedStore      = "store of parked"
	partServer           = "redis"
	partQueue            = "queue "              // and the queue's name
	partForward          = "forwards of queue "  // and the lane of the forward target
	partListener         = "events for "         // and the listener's name
	partConsumers        = "consumers of queue " // and the queue's name
	partLimit            = "delivery limit"
	partForeignConsumers = "another service"

	// blockedBy begins what is wrong with a connection under an alarm.
	blockedBy = "blocked by an alarm of RabbitMQ: "
)

// partOf is the part that a lane is.
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

// refusals are the ways to wait that RabbitMQ does not take messages for, and why.
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

// notices are what to tell a person.
func (r *refusals) notices() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, way := range slices.Sorted(maps.Keys(r.why)) {
		all = append(all, fmt.Sprintf("messages that are to wait in RabbitMQ (%s) wait in the store, since RabbitMQ does not take them: %v", way, r.why[way]))
	}
	return all
}

// set says what is wrong with a part, or "" for nothing. It tells whether that is
// news.
func (h *health) set(part, what string) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire()
	news = h.wrong[part] != what
	if what == "" {
		delete(h.wrong, part)
	} else {
		h.wrong[part] = what
	}
	if !inspect.OfQueue(part) { // of queues there may be a hundred thousand
		h.metrics.Ready(isReady(h.wrong), h.wrong[partStore] != "" || h.wrong[partServer] != "")
	}
	return news
}

// setFor is set for something that happened once, and is shown for that long.
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
			h.metrics.Ready(isReady(h.wrong), h.wrong[partStore] != "" || h.wrong[partServer] != "")
		}
	}
}

// isReady is the one judgement of readiness: /readyz, the metric, API, page, command line
// and the replicas' table all say what it says. A service is ready unless something is
// wrong that stops it.
func isReady(wrong map[string]string) bool {
	for part := range wrong {
		if inspect.Stops(part) {
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

// problems are all of them, in order.
func (h *health) problems() []string { return problemsOf(h.all()) }

// all is what is wrong, by part.
func (h *health) all() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expire()
	return maps.Clone(h.wrong)
}

// because is what an error says is wrong, and "" for none.
func because(err error) string {
	if err == nil {
		return ""
	}
	return strings.TrimPrefix(err.Error(), partServer+": ")
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
		all = append(all, fmt.Sprintf("%s(others): so it is with %d more", partQueue, more))
	}
	return all
}

// of is what is wrong with one part.
func (h *health) of(part string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.wrong[part]
}
