package diskstore_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

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
			_, err := s.Change(ctx, keys, func(_ store.Key, r *store.Record) store.Edit {
				r.State = store.Parked + store.Discarded - r.State
				return store.Edit{Keep: true}
			}, nil)
			if err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N*len(keys))/b.Elapsed().Seconds(), "messages/s")
	})
}
