package operations_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
)

// BenchmarkReplay is how many messages of 1 KiB a second a store on disk gives to
// a RabbitMQ that takes no time: those that are due, as a bare forwarder would, and
// those that an operation makes due meanwhile.
func BenchmarkReplay(b *testing.B) {
	const n = 100_000
	for name, state := range map[string]store.State{"due": store.Waiting, "operation": store.Parked} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := openDisk(b, b.TempDir())
				d := newDesk(s)
				fill(b, s, state, n)
				stop := func() {}
				if state == store.Parked {
					began := time.Now()
					p, err := d.Plan(ctx, operator, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders state:parked"})
					if err != nil || p.Count != n {
						b.Fatal(p.Count, err)
					}
					b.ReportMetric(time.Since(began).Seconds(), "s/plan")
					if _, err := d.Start(ctx, operator, p.ID, operations.Start{}); err != nil {
						b.Fatal(err)
					}
					stop = d.run(b)
				}
				b.StartTimer()
				drain(b, s, n)
				b.StopTimer()
				stop()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

func fill(b *testing.B, s *diskstore.Store, state store.State, n int) {
	body := string(make([]byte, 1024))
	for i := 0; i < n; i += 1000 {
		var batch []*store.Record
		for range 1000 {
			r := record("orders", state, body)
			r.Due = long
			batch = append(batch, r)
		}
		if err := s.Add(ctx, batch); err != nil {
			b.Fatal(err)
		}
	}
}

// drain claims in one goroutine and finishes in another, as the scheduler does.
func drain(b *testing.B, s *diskstore.Store, n int) {
	claimed := make(chan []store.Claim, 4)
	var finishing sync.WaitGroup
	finishing.Go(func() {
		for claims := range claimed {
			out := make([]store.Outcome, len(claims))
			for i, c := range claims {
				out[i] = store.Outcome{Claim: c, At: time.Now()}
			}
			if _, err := s.Finish(context.Background(), out); err != nil {
				b.Error(err)
			}
		}
	})
	for n > 0 {
		claims, err := s.Claim(ctx, store.Lane{Queue: "orders"}, time.Now(), 512, 16<<20)
		if err != nil {
			b.Fatal(err)
		}
		if len(claims) == 0 {
			<-s.Changed()
			continue
		}
		n -= len(claims)
		claimed <- claims
	}
	close(claimed)
	finishing.Wait()
}

// BenchmarkOperation replays parked messages of 1 KiB as one operation, on disk:
// how many a second it makes due.
func BenchmarkOperation(b *testing.B) {
	s := openDisk(b, b.TempDir())
	defer s.Close()
	d := newDesk(s)
	const n = 100_000
	for b.Loop() {
		b.StopTimer()
		body := string(make([]byte, 1024))
		for i := 0; i < n; i += 1000 {
			var batch []*store.Record
			for range 1000 {
				batch = append(batch, record("orders", store.Parked, body))
			}
			if err := s.Add(ctx, batch); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		p, err := d.Plan(ctx, operator, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders state:parked"})
		if err != nil || p.Count != n {
			b.Fatal(p.Count, err)
		}
		planned := b.Elapsed()
		if _, err := d.Start(ctx, operator, p.ID, operations.Start{}); err != nil {
			b.Fatal(err)
		}
		stop := d.run(b)
		for ended := false; !ended; {
			<-s.Changed()
			o, err := d.Operation(ctx, operator, p.ID)
			if err != nil {
				b.Fatal(err)
			}
			ended = o.Done == n
		}
		b.ReportMetric(n/(b.Elapsed()-planned).Seconds(), "msg/s")
		b.ReportMetric(planned.Seconds(), "s/plan")
		stop()
	}
}
