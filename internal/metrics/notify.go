package metrics

import "github.com/prometheus/client_golang/prometheus"

// Notifications makes the counter of notifications, by route and what came of it:
// sent or failed. Call it once.
func (m *Metrics) Notifications() func(route, result string) {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "redrive_notifications_total",
		Help: "Notifications, by route and result: sent, or failed (tried again later)."}, []string{"route", "result"})
	m.register.MustRegister(c)
	return func(route, result string) { c.WithLabelValues(clean(route), result).Inc() }
}
