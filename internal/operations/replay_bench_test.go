package operations_test

import (
	"testing"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
)

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
