package redriveprom_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/redriveprom"
	"github.com/redrive-mq/redrive/testenv/expect"
)

func TestMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	for range 2 { // a second consumer of the same program counts into the same
		m, err := redriveprom.New(r)
		expect.NoError(t, err)
		m.Attempt(redrive.AttemptEvent{Queue: "orders", Outcome: redrive.Retried, Duration: 20 * time.Millisecond})
		m.Consumer(redrive.ConsumerEvent{Queue: "orders", Consuming: true})
		m.Hook(redrive.HookEvent{Queue: "orders", Result: redrive.HookPanicked})
	}
	families, err := r.Gather()
	expect.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() +
				float64(m.GetHistogram().GetSampleCount())
		}
	}
	want := map[string]float64{"redrive_consumer_attempts_total": 2, "redrive_consumer_handler_seconds": 2,
		"redrive_consumer_connected": 1, "redrive_consumer_parked_hook_total": 2}
	for name, n := range want {
		expect.Equal(t, got[name], n, "%s", name)
	}
	other := prometheus.NewRegistry()
	other.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "redrive_consumer_connected",
		Help: "somebody else's"}))
	if _, err := redriveprom.New(other); err == nil {
		t.Error("a metric of somebody else's is taken for ours")
	}
}
