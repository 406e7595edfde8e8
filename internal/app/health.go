package app

import (
	"log/slog"
	"maps"
	"slices"
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
	partIntake  = "intake"
	partPublish = "returns"
	partStore   = "store"
	partQueue   = "queue " // and the queue's name
)

func newHealth(log *slog.Logger, m *metrics.Metrics) *health {
	h := &health{log: log, metrics: m, wrong: map[string]string{}}
	h.set(partIntake, "connecting")
	h.set(partPublish, "connecting")
	return h
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
	h.metrics.Ready(len(h.wrong) == 0, h.wrong[partStore] != "")
	return news
}

// problems are all of them, in order.
func (h *health) problems() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := []string{}
	for _, part := range slices.Sorted(maps.Keys(h.wrong)) {
		all = append(all, part+": "+h.wrong[part])
	}
	return all
}

// of is what is wrong with one part.
func (h *health) of(part string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.wrong[part]
}
