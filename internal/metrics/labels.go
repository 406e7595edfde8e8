package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// MostQueues is how many queues get a label of their own; the others share
	// "(other)", since a label value per queue for ever would fill Prometheus.
	MostQueues  = 500
	otherQueues = "(other)"
	// idleLabel is how long nothing must have happened to a queue that nothing is kept for
	// before another one can have its label, and mostReleased how many labels a scrape
	// releases, so that a burst of new names does not take those of all idle queues.
	idleLabel    = time.Hour
	mostReleased = 50
)

// labelNeed is why a queue needs a label: something happened to it, something is kept for it,
// or it is only known.
type labelNeed int

const (
	known labelNeed = iota
	kept
	active
)

// label is the queue's name, or what the queues beyond the limit share.
func (m *Metrics) label(queue string, why labelNeed) string {
	queue = clean(queue)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.queues[queue]; ok {
		if why == active {
			m.queues[queue] = time.Now()
		}
		return queue
	}
	if len(m.queues) >= MostQueues {
		m.wanted = m.wanted || why != known
		return otherQueues
	}
	m.queues[queue] = time.Now()
	// They begin at 0 where they can be seen: a counter that comes up with a hundred
	// is no increase to Prometheus.
	for _, c := range m.fromZero {
		c.WithLabelValues(queue)
	}
	return queue
}

// release takes the labels of queues that nothing is kept for and nothing happened to
// lately, those idle for longest first, where others found none left. Their counters go
// with them: they begin at 0 again when such a queue comes back, as after a restart.
func (m *Metrics) release(counts []store.QueueCount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.wanted {
		return
	}
	m.wanted = false
	used := map[string]bool{}
	for _, c := range counts {
		used[clean(c.Queue)] = true
	}
	var idle []string
	for queue, last := range m.queues {
		if !used[queue] && time.Since(last) > idleLabel {
			idle = append(idle, queue)
		}
	}
	slices.SortFunc(idle, func(a, b string) int { return m.queues[a].Compare(m.queues[b]) })
	for _, queue := range idle[:min(mostReleased, len(idle))] {
		delete(m.queues, queue)
		for _, c := range m.byQueue {
			c.DeletePartialMatch(prometheus.Labels{"queue": queue})
		}
	}
}
