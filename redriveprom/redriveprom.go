// Package redriveprom counts what consumers do, for Prometheus:
//
//	metrics, err := redriveprom.New(prometheus.DefaultRegisterer)
//	client, err := redrive.NewClient(ctx, redrive.Config{..., Metrics: metrics})
//
// It makes these metrics:
//
//   - redrive_consumer_attempts_total: attempts, by queue and outcome;
//   - redrive_consumer_handler_seconds: time that handlers took, by queue and outcome;
//   - redrive_consumer_connected: 1 while the queue is consumed, by queue;
//   - redrive_consumer_parked_hook_total: calls of Config.OnParked, by queue and result.
package redriveprom

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive"
)

// New registers the metrics and returns what fills them. On a registerer that has them
// already, by another New, both count into the same. The error is Prometheus's own.
func New(r prometheus.Registerer) (redrive.Metrics, error) {
	attempts := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "redrive_consumer_attempts_total",
		Help: "Attempts at messages, by what became of them."},
		[]string{"queue", "outcome"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "redrive_consumer_handler_seconds",
		Help:    "Time that handlers took.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 9), NativeHistogramBucketFactor: 1.1,
		NativeHistogramMaxBucketNumber: 100}, []string{"queue", "outcome"})
	connected := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "redrive_consumer_connected",
		Help: "1 while the queue is consumed."}, []string{"queue"})
	hooks := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "redrive_consumer_parked_hook_total",
		Help: "Calls of Config.OnParked, by result: returned, panicked, or dropped since too many waited."},
		[]string{"queue", "result"})
	if err := errors.Join(register(r, &attempts), register(r, &seconds), register(r, &connected),
		register(r, &hooks)); err != nil {
		return redrive.Metrics{}, fmt.Errorf("redriveprom: %w", err)
	}
	return redrive.Metrics{
		Attempt: func(e redrive.AttemptEvent) {
			attempts.WithLabelValues(e.Queue, string(e.Outcome)).Inc()
			seconds.WithLabelValues(e.Queue, string(e.Outcome)).Observe(e.Duration.Seconds())
		},
		Consumer: func(e redrive.ConsumerEvent) {
			n := 0.0
			if e.Consuming {
				n = 1
			}
			connected.WithLabelValues(e.Queue).Set(n)
		},
		Hook: func(e redrive.HookEvent) { hooks.WithLabelValues(e.Queue, string(e.Result)).Inc() },
	}, nil
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
