package inspect_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// BenchmarkNames is how long a start and each look take on a store on disk with messages
// of 100,000 queues: ones that wait, are parked, or are gone.
func BenchmarkNames(b *testing.B) {
	for _, state := range []store.State{store.Waiting, store.Parked, 0} {
		b.Run(map[store.State]string{store.Waiting: "waiting", store.Parked: "parked", 0: "gone"}[state], func(b *testing.B) {
			path, reported := b.TempDir(), map[string]float64{}
			fillNames(b, path, state)
			for b.Loop() {
				for what, took := range lookAtNames(b, path) {
					reported[what] += took.Seconds() * 1000
				}
			}
			for what, ms := range reported {
				b.ReportMetric(ms/float64(b.N), "ms/"+what)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func fillNames(b *testing.B, path string, state store.State) {
	const n, batch = 100_000, 1000
	s := openDisk(b, path)
	for at := 0; at < n; at += batch {
		var all []*store.Record
		for i := range batch {
			r := record(fmt.Sprintf("invented.name.%06d", at+i), state, "x")
			if r.Due = time.Now().Add(time.Hour); state == 0 {
				r.State, r.Due = store.Discarded, long
			}
			all = append(all, r)
		}
		if err := s.Add(context.Background(), all); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := s.Forget(context.Background(), time.Now()); err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// lookAtNames opens the store and takes each look once.
func lookAtNames(b *testing.B, path string) map[string]time.Duration {
	ctx, took := context.Background(), map[string]time.Duration{}
	timed := func(what string, do func() error) {
		b.Helper()
		began := time.Now()
		if err := do(); err != nil {
			b.Fatal(err)
		}
		took[what] = time.Since(began)
	}
	began := time.Now()
	s := openDisk(b, path)
	took["open"] = time.Since(began)
	defer s.Close()
	rules := throttle.DefaultBreaker()
	limits := throttle.New(func(string) throttle.Rules { return throttle.Rules{Breaker: &rules} }, func() float64 { return 0.5 }, func(throttle.Transition) {})
	timed("counts", func() error {
		counts, err := s.Counts(ctx)
		for _, c := range counts {
			limits.Consumers(c.Queue, 1, time.Now())
		}
		return err
	})
	timed("next", func() error { _, err := s.Next(ctx); return err })
	m := metrics.New(s, func() (uint64, uint64, error) { return 1, 1, nil }, "test", "")
	m.Retries(func(shown func(string) bool) (all []metrics.QueueRetries) {
		for _, q := range limits.Queues() {
			if !shown(q) {
				continue
			}
			all = append(all, metrics.QueueRetries{Queue: q, View: limits.View(q, time.Now())})
		}
		return all
	})
	timed("scrape", func() error {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Code != 200 {
			return fmt.Errorf("a scrape was answered %d", w.Code)
		}
		b.ReportMetric(float64(w.Body.Len())/1024, "KiB/scrape")
		return nil
	})
	d := newDesk(s)
	timed("queues", func() error { return aPage(d) })
	timed("overview", func() error { _, err := d.Overview(ctx, caller(auth.Viewer)); return err })
	timed("overview-again", func() error { _, err := d.Overview(ctx, caller(auth.Viewer)); return err })
	return took
}

func aPage(d *desk) error {
	_, err := d.Queues(context.Background(), caller(auth.Viewer), inspect.QueueQuery{})
	return err
}
