package diskstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

func batchOf(n int, after func() time.Duration) []*store.Record {
	body := strings.Repeat("x", 1024)
	var batch []*store.Record
	for range n {
		batch = append(batch, storetest.Waiting("orders", after(), body))
	}
	return batch
}

// BenchmarkCycle adds 512 messages of 1 KiB, claims and finishes them, with
// nothing else in the store and with many that wait.
func BenchmarkCycle(b *testing.B) {
	waiting := []int{0, 100_000}
	if os.Getenv("REDRIVE_BENCH_MILLION") != "" {
		waiting = append(waiting, 1_000_000)
	}
	for _, n := range waiting {
		b.Run(fmt.Sprintf("waiting=%d", n), func(b *testing.B) {
			path, ctx := b.TempDir(), context.Background()
			s, err := diskstore.Open(path, diskstore.Options{})
			if err != nil {
				b.Fatal(err)
			}
			for i := 0; i < n; i += 1000 {
				if err := s.Add(ctx, batchOf(1000, func() time.Duration { return time.Hour + rand.N(time.Hour) })); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			began := time.Now()
			if s, err = diskstore.Open(path, diskstore.Options{}); err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			if err := s.Add(ctx, batchOf(1, func() time.Duration { return 0 })); err != nil {
				b.Fatal(err)
			}
			cycle := func() {
				next, err := s.Next(ctx)
				if err != nil || len(next) != 1 {
					b.Fatal(next, err)
				}
				claims, err := s.Claim(ctx, store.Lane{Queue: "orders"}, next[0].Due.Add(time.Second), 512, 1<<30)
				if err != nil {
					b.Fatal(err)
				}
				out := make([]store.Outcome, len(claims))
				for i := range claims {
					out[i].Claim = claims[i]
				}
				if _, err := s.Finish(ctx, out); err != nil {
					b.Fatal(err)
				}
			}
			cycle()
			opened := time.Since(began)
			batch := batchOf(512, func() time.Duration { return rand.N(time.Second) })
			for b.Loop() {
				if err := s.Add(ctx, batch); err != nil {
					b.Fatal(err)
				}
				cycle()
			}
			b.ReportMetric(float64(b.N*512)/b.Elapsed().Seconds(), "messages/s")
			b.ReportMetric(opened.Seconds(), "s-to-first-claim")
			b.ReportMetric(resident(b)/(1<<20), "MiB-resident")
		})
	}
}

// resident is the process's resident memory, in bytes.
func resident(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip("no /proc here")
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kb * 1024
}

// BenchmarkRecount counts the keys of 100,000 messages of 1 KiB.
func BenchmarkRecount(b *testing.B) {
	s, err := diskstore.Open(b.TempDir(), diskstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const n = 100_000
	for range n / 1000 {
		if err := s.Add(b.Context(), batchOf(1000, func() time.Duration { return rand.N(time.Hour) })); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := s.Recount(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkSnapshot writes a snapshot of a store with 500,000 messages of 1 KiB that do not
// compress: on the same file system, and what a copy of it takes.
func BenchmarkSnapshot(b *testing.B) {
	const messages, together = 500_000, 1000
	path, ctx := b.TempDir(), context.Background()
	s, err := diskstore.Open(path, diskstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	random := rand.NewChaCha8([32]byte{})
	for range messages / together {
		batch := batchOf(together, func() time.Duration { return time.Hour })
		for _, r := range batch {
			r.Message.Body = make([]byte, 1024)
			_, _ = random.Read(r.Message.Body)
		}
		if err := s.Add(ctx, batch); err != nil {
			b.Fatal(err)
		}
	}
	for n := 0; b.Loop(); n++ {
		if has, err := s.Snapshot(ctx, fmt.Sprintf("%s-%d", path, n)); err != nil || has != messages {
			b.Fatal(has, err)
		}
		_ = os.RemoveAll(fmt.Sprintf("%s-%d", path, n))
	}
}

// BenchmarkScan reads the first page, of 100 messages, out of many that are parked
// in 20 queues, as a person sees it; and does something to 1,000 of them.
func BenchmarkScan(b *testing.B) {
	parked := 100_000
	if os.Getenv("REDRIVE_BENCH_MILLION") != "" {
		parked = 1_000_000
	}
	s, err := diskstore.Open(b.TempDir(), diskstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	body := make([]byte, 1024)
	text := func(i int) string { return fmt.Sprintf("no stock for %c", 'a'+i/20%10) }
	var some uuid.UUID
	for i := 0; i < parked; {
		var batch []*store.Record
		for range 1000 {
			r := storetest.Waiting(fmt.Sprint("queue-", i%20), time.Duration(i)*time.Millisecond, "")
			r.State, r.Error, r.Message.Body = store.Parked, text(i), body
			if i++; i == parked/2 {
				some = r.ID
			}
			batch = append(batch, r)
		}
		if err := s.Add(ctx, batch); err != nil {
			b.Fatal(err)
		}
	}
	half := storetest.Waiting("", time.Duration(parked/2)*time.Millisecond, "").Due
	for _, c := range []struct {
		name string
		r    store.Range
	}{
		{"state, newest", store.Range{State: store.Parked, NewestFirst: true}},
		{"state, oldest", store.Range{State: store.Parked}},
		{"a queue", store.Range{Queues: []string{"queue-7"}, NewestFirst: true}},
		{"a group", store.Range{Groups: []errorgroup.ID{errorgroup.Of("queue-7", "rejected", text(47), "").ID}, NewestFirst: true}},
		{"a group's page", store.Range{Groups: []errorgroup.ID{errorgroup.Of("queue-7", "rejected", text(47), "").ID}, To: half, NewestFirst: true}},
		{"a time", store.Range{From: half}},
		{"before a time", store.Range{To: half, NewestFirst: true}},
	} {
		b.Run("page by "+c.name, func(b *testing.B) {
			for b.Loop() {
				n := 0
				err := s.Scan(ctx, c.r, func(store.Listed) (bool, error) { n++; return n < 100, nil })
				if err != nil || n != 100 {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/page")
		})
	}
	b.Run("by id", func(b *testing.B) {
		for b.Loop() {
			if found, err := s.Find(ctx, some); err != nil || len(found) != 1 {
				b.Fatal(found, err)
			}
		}
	})
	b.Run("scan all", func(b *testing.B) {
		n := 0
		for b.Loop() {
			if err := s.Scan(ctx, store.Range{}, func(store.Listed) (bool, error) { n++; return true, nil }); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "messages/s")
	})
	b.Run("change 1000", func(b *testing.B) {
		var keys []store.Key
		err := s.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) {
			keys = append(keys, l.Key)
			return len(keys) < 1000, nil
		})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			_, err := s.Change(ctx, keys, storetest.Keep(func(r *store.Record) { r.State = store.Parked + store.Discarded - r.State }), nil)
			if err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N*len(keys))/b.Elapsed().Seconds(), "messages/s")
	})
}
