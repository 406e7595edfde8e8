package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Condition is an event of the notifications that lasts, of a queue.
type Condition struct{ Event, Queue string }

// Unconsumed is a queue without consumers, and its messages.
type Unconsumed struct {
	Queue    string
	Messages int64
}

var (
	conditionDesc  = prometheus.NewDesc("redrive_condition", "1 while the condition lasts for the queue, by the event of notifications that it is: no_consumer, queue_filling, waiting_rising or parked_rising. Of replicas, the leader shows it.", []string{"event", "queue"}, nil)
	unconsumedDesc = prometheus.NewDesc("redrive_unconsumed_messages", "Messages in a queue of RabbitMQ that has no consumers and should have some, or fills up. Of replicas, the leader shows it.", []string{"queue"}, nil)
)

// mostShown is how many queues of a condition have a label of their own. These labels are apart from
// those of all other metrics: thousands of forgotten queues take none away from work queues.
const mostShown = 100

// conditions collects the conditions of queues, at each scrape.
type conditions struct {
	all func() ([]Condition, []Unconsumed)
}

// Conditions shows what all returns; of unconsumed queues, those first that need a label most.
func (m *Metrics) Conditions(all func() ([]Condition, []Unconsumed)) {
	m.register.MustRegister(&conditions{all})
}

func (c *conditions) Describe(ch chan<- *prometheus.Desc) {
	ch <- conditionDesc
	ch <- unconsumedDesc
}

func (c *conditions) Collect(ch chan<- prometheus.Metric) {
	on, unconsumed := c.all()
	queues := map[string]map[string]bool{} // by event
	for _, one := range on {
		if queues[one.Event] == nil {
			queues[one.Event] = map[string]bool{}
		}
		queues[one.Event][clean(one.Queue)] = true
	}
	for event, of := range queues {
		names := slices.Sorted(maps.Keys(of))
		if len(names) > mostShown {
			names = append(names[:mostShown], otherQueues)
		}
		for _, name := range names {
			ch <- prometheus.MustNewConstMetric(conditionDesc, prometheus.GaugeValue, 1, event, name)
		}
	}
	messages := map[string]int64{}
	for _, u := range unconsumed {
		name := clean(u.Queue)
		if _, shown := messages[name]; !shown && len(messages) >= mostShown {
			name = otherQueues
		}
		messages[name] += u.Messages
	}
	for name, n := range messages {
		ch <- prometheus.MustNewConstMetric(unconsumedDesc, prometheus.GaugeValue, float64(n), name)
	}
}
