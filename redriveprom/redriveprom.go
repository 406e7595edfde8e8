// Package redriveprom counts what consumers do, for Prometheus:
//
//	metrics, err := redriveprom.New(prometheus.DefaultRegisterer)
//	consumer, err := redrive.NewConsumer(redrive.Config{..., Metrics: metrics})
//
// It makes redrive_consumer_attempts_total and redrive_consumer_handler_seconds,
// by queue and outcome, and redrive_consumer_connected, by queue.
package redriveprom

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive"
)

// Metrics is a redrive.Metrics. Make one with New, for all consumers of a program.
type Metrics struct {
	attempts  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	connected *prometheus.GaugeVec
}

var _ redrive.Metrics = (*Metrics)(nil)

// New registers the metrics. On a registerer that has them already, by another
// New, both count into the same.
func New(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "redrive_consumer_attempts_total", Help: "Attempts at messages, by what became of them."},
			[]string{"queue", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "redrive_consumer_handler_seconds", Help: "Time that handlers took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9), NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}, []string{"queue", "outcome"}),
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "redrive_consumer_connected", Help: "1 while the consumer is connected to RabbitMQ."}, []string{"queue"}),
	}
	if err := errors.Join(register(r, &m.attempts), register(r, &m.seconds), register(r, &m.connected)); err != nil {
		return nil, fmt.Errorf("redriveprom: %w", err)
	}
	return m, nil
}

func register[C prometheus.Collector](r prometheus.Registerer, c *C) error {
	err := r.Register(*c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if there, ok := already.ExistingCollector.(C); ok {
			*c, err = there, nil
		}
	}
	return err
}

// Attempted implements redrive.Metrics.
func (m *Metrics) Attempted(queue string, outcome redrive.Outcome, took time.Duration) {
	m.attempts.WithLabelValues(queue, string(outcome)).Inc()
	m.seconds.WithLabelValues(queue, string(outcome)).Observe(took.Seconds())
}

// Connected implements redrive.Metrics.
func (m *Metrics) Connected(queue string, yes bool) {
	n := 0.0
	if yes {
		n = 1
	}
	m.connected.WithLabelValues(queue).Set(n)
}
