package console_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/wire"
)

// BenchmarkSearch asks a store on disk with REDRIVE_BENCH_PARKED parked messages
// (100,000 when it is not set) in 20 queues.
func BenchmarkSearch(b *testing.B) {
	n, err := strconv.Atoi(os.Getenv("REDRIVE_BENCH_PARKED"))
	if err != nil {
		n = 100_000
	}
	s, err := diskstore.Open(b.TempDir(), diskstore.Options{Reserve: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	began := time.Now()
	var last *store.Record
	for from := 0; from < n; from += 2000 {
		var batch []*store.Record
		for i := from; i < min(n, from+2000); i++ {
			at := long.Add(time.Duration(i) * time.Millisecond)
			last = &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: fmt.Sprintf("orders.%d", i%20), State: store.Parked, Due: at, FailedAt: at, FirstFailed: at,
				Attempt: i%8 + 1, Reason: "rejected", Policy: "default", ParkedFor: "it failed 8 times",
				Message: wire.Message{Exchange: "shop", RoutingKey: "placed", Type: "Order", Body: fmt.Appendf(nil, `{"order":{"id":%d,"total":%d.50,"customer":"customer %d"},"pad":"%0512d"}`, i, i%1000, i%5000, i)}}
			switch {
			case i == n/2:
				last.Reason = "expired"
			case i%3 == 0:
				last.Error = fmt.Sprintf("cannot reach service %c after %d ms", 'a'+rune(i%7), i)
			}
			batch = append(batch, last)
		}
		if err := s.Add(ctx, batch); err != nil {
			b.Fatal(err)
		}
	}
	b.Logf("%d messages parked in %v", n, time.Since(began))
	d := newDesk(s)
	groups, err := d.Groups(ctx, caller(auth.Viewer), `error:"service c"`)
	if err != nil || len(groups) == 0 {
		b.Fatal(len(groups), err)
	}
	for _, q := range []struct{ name, text string }{
		{"newest", ""},
		{"queue", "queue:orders.7"},
		{"queues", "queue:orders.1* state:parked"},
		{"reason", "reason:rejected"},
		{"rare reason", "reason:expired"},
		{"group", "group:" + groups[0].ID},
		{"time", "parked:>=2026-01-02T03:04:10Z parked:<2026-01-02T03:04:20Z"},
		{"id", "id:" + last.ID.String()},
		{"attempt", "attempt:>7"},
		{"nothing of a field", "attempt:>8"},
		{"body", "body.order.customer:\"customer 77\""},
		{"text", "\"customer 77\""},
	} {
		b.Run(q.name, func(b *testing.B) {
			var found, looked int64
			for b.Loop() {
				p, err := d.Search(ctx, caller(auth.Viewer), q.text, "", 100)
				if err != nil {
					b.Fatal(err)
				}
				found, looked = int64(len(p.Messages)), p.Looked
			}
			b.ReportMetric(float64(found), "found")
			b.ReportMetric(float64(looked), "looked")
		})
	}
	b.Run("count", func(b *testing.B) {
		for b.Loop() {
			if got, exact, err := d.Count(ctx, caller(auth.Viewer), "state:parked queue:orders.*"); got != int64(n) || !exact || err != nil {
				b.Fatal(got, exact, err)
			}
		}
	})
	b.Run("message", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Message(ctx, caller(auth.Viewer), last.ID.String()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("overview", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Overview(ctx, caller(auth.Viewer)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("groups", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Groups(ctx, caller(auth.Viewer), ""); err != nil {
				b.Fatal(err)
			}
		}
	})
}
