package app

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redrive-mq/redrive/internal/metrics"
)

// health is what is wrong at the moment, by part of the service. A part that has
// not said anything yet is not ready.
type health struct {
	log     *slog.Logger
	metrics *metrics.Metrics

	mu    sync.Mutex
	wrong map[string]string
}

const (
	partIntake      = "intake"
	partParked      = "parked"
	partPublish     = "returns"
	partDelays      = "delays"
	partStore       = "store"
	partParkedStore = "store of parked"
	partQueue       = "queue "              // and the queue's name
	partConsumers   = "consumers of queue " // and the queue's name

	// blockedBy begins what is wrong with a connection under an alarm.
	blockedBy = "blocked by an alarm of RabbitMQ: "
)

func newHealth(log *slog.Logger, m *metrics.Metrics) *health {
	h := &health{log: log, metrics: m, wrong: map[string]string{}}
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
	news = h.wrong[part] != what
	if what == "" {
		delete(h.wrong, part)
	} else {
		h.wrong[part] = what
	}
	h.metrics.Ready(h.whole(), h.wrong[partStore] != "")
	return news
}

// whole tells whether nothing is wrong but with single queues: who takes a service out
// of service for those takes its page and its returns to all others away, too. The
// caller holds mu.
func (h *health) whole() bool {
	for part := range h.wrong {
		if !strings.HasPrefix(part, partQueue) && !strings.HasPrefix(part, partConsumers) {
			return false
		}
	}
	return true
}

func (h *health) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.whole()
}

// problems are all of them, in order.
func (h *health) problems() []string { return problemsOf(h.all()) }

// all is what is wrong, by part.
func (h *health) all() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.wrong)
}

func problemsOf(wrong map[string]string) []string {
	all := []string{}
	for _, part := range slices.Sorted(maps.Keys(wrong)) {
		all = append(all, part+": "+wrong[part])
	}
	return all
}

// of is what is wrong with one part.
func (h *health) of(part string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.wrong[part]
}
