package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/internal/throttle"
)

// QueueRetries is the state of one queue's retries.
type QueueRetries struct {
	Queue       string
	View        throttle.View
	WaitReasons []throttle.WaitReason // why due messages wait, or would
	// UnreachableTargets are the forward targets that RabbitMQ accepts no message for just now.
	UnreachableTargets []string
}

var (
	breakerDesc     = prometheus.NewDesc("redrive_breaker_state", "1 for the state that the queue's breaker is in: closed, open, half-open or ramp.", []string{"queue", "state"}, nil)
	pausedDesc      = prometheus.NewDesc("redrive_queue_paused", "1 while retries of the queue are paused or limited, by why: "+reasons(throttle.WaitReasons, "or")+". "+reasons(limits(), "and")+" only slow retries down, and are shown only while a message is due; the others stop them.", []string{"queue", "why"}, nil)
	unreachableDesc = prometheus.NewDesc("redrive_forward_blocked", "1 while RabbitMQ accepts no message of the queue for the forward target.", []string{"queue", "target"}, nil)
	consumersDesc   = prometheus.NewDesc("redrive_queue_consumers", "Consumers of a queue with due messages.", []string{"queue"}, nil)
)

// limits are the reasons for which retries continue, as fast as the limit allows.
func limits() []throttle.WaitReason {
	return slices.DeleteFunc(slices.Clone(throttle.WaitReasons), func(why throttle.WaitReason) bool { return !why.IsLimit() })
}

// reasons are a list in words, with or or and before the last.
func reasons(list []throttle.WaitReason, before string) string {
	var all []string
	for _, why := range list {
		all = append(all, string(why))
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " " + before + " " + all[last]
}

// queueRetries collects the state of the retries, at each scrape.
type queueRetries struct {
	all     func(shown func(queue string) bool) []QueueRetries
	metrics *Metrics
}

// Retries shows the state of each queue's retries; queues beyond the limit of labels are left
// out, since states do not add up.
func (m *Metrics) Retries(all func(shown func(queue string) bool) []QueueRetries) {
	m.register.MustRegister(&queueRetries{all, m})
}

func (r *queueRetries) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{breakerDesc, pausedDesc, unreachableDesc, consumersDesc} {
		ch <- d
	}
}

func (r *queueRetries) Collect(ch chan<- prometheus.Metric) {
	for _, q := range r.all(func(queue string) bool { return r.metrics.label(queue, known) == queue }) {
		show := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{q.Queue}, labels...)...)
		}
		if q.View.HasBreaker || q.View.State != throttle.Closed {
			for _, s := range throttle.States {
				show(breakerDesc, number(s == q.View.State), string(s))
			}
		}
		for _, why := range q.WaitReasons {
			show(pausedDesc, 1, string(why))
		}
		targets := map[string]bool{} // two may be the same once they are clean
		for _, target := range q.UnreachableTargets {
			if target = clean(target); !targets[target] {
				targets[target] = true
				show(unreachableDesc, 1, target)
			}
		}
		if q.View.Consumers >= 0 {
			show(consumersDesc, float64(q.View.Consumers))
		}
	}
}
