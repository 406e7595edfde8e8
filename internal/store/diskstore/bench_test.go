package diskstore_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// of opens a store with that many records, added a thousand at a time.
func of(b *testing.B, path string, n int, record func(int) *store.Record) *diskstore.Store {
	s := openAt(b, path, diskstore.Options{})
	for i := 0; i < n; {
		var batch []*store.Record
		for range 1000 {
			batch = append(batch, record(i))
			i++
		}
		must(b, s.Add(ctx, batch))
	}
	return s
}

// BenchmarkCycle adds 512 messages of 1 KiB, claims and finishes them, with
// nothing else in the store and with many that wait.
func BenchmarkCycle(b *testing.B) {
	for _, n := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("waiting=%d", n), func(b *testing.B) {
			s := of(b, b.TempDir(), n, func(int) *store.Record {
				return storetest.Batch(1, func() time.Duration { return time.Hour + rand.N(time.Hour) })[0]
			})
			batch := storetest.Batch(512, func() time.Duration { return rand.N(time.Second) })
			upTo := storetest.Waiting("", time.Minute, "").Due
			for b.Loop() {
				must(b, s.Add(ctx, batch))
				claims, err := s.Claim(ctx, store.Lane{Queue: "orders"}, upTo, 512, 1<<30)
				must(b, err)
				if n, err := s.Finish(ctx, storetest.Ended(claims, upTo)); err != nil || n != len(batch) {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64(b.N*512)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// BenchmarkSnapshot writes a snapshot of a store with 500,000 messages of 1 KiB that do not
// compress, on the same file system.
func BenchmarkSnapshot(b *testing.B) {
	const messages = 500_000
	path, random := b.TempDir(), rand.NewChaCha8([32]byte{})
	s := of(b, path, messages, func(int) *store.Record {
		r := storetest.Waiting("orders", time.Hour, "")
		r.Message.Body = make([]byte, 1024)
		_, _ = random.Read(r.Message.Body)
		return r
	})
	for n := 0; b.Loop(); n++ {
		to := fmt.Sprintf("%s-%d", path, n)
		if has, err := s.Snapshot(ctx, to); err != nil || has != messages {
			b.Fatal(has, err)
		}
		_ = os.RemoveAll(to)
	}
}

// BenchmarkScan reads the first page, of 100 messages, out of 100,000 that are parked
// in 20 queues, as a person sees it; and does something to 1,000 of them.
func BenchmarkScan(b *testing.B) {
	const parked = 100_000
	body := make([]byte, 1024)
	text := func(i int) string { return fmt.Sprintf("no stock for %c", 'a'+i/20%10) }
	s := of(b, b.TempDir(), parked, func(i int) *store.Record {
		r := storetest.Waiting(fmt.Sprint("queue-", i%20), time.Duration(i)*time.Millisecond, "")
		r.State, r.Error, r.Message.Body = store.Parked, text(i), body
		return r
	})
	half := storetest.Waiting("", parked/2*time.Millisecond, "").Due
	group := []errorgroup.ID{errorgroup.Of("queue-7", "rejected", text(47), "").ID}
	var some uuid.UUID
	var keys []store.Key
	must(b, s.Scan(ctx, store.Range{From: half}, func(l store.Listed) (bool, error) {
		some, keys = l.Record.ID, append(keys, l.Key)
		return len(keys) < 1000, nil
	}))
	for name, r := range map[string]store.Range{
		"state, newest":  {State: store.Parked, NewestFirst: true},
		"a queue":        {Queues: []string{"queue-7"}, NewestFirst: true},
		"a group":        {Groups: group, NewestFirst: true},
		"a group's page": {Groups: group, To: half, NewestFirst: true},
		"a time":         {From: half},
	} {
		b.Run("page by "+name, func(b *testing.B) {
			for b.Loop() {
				n := 0
				err := s.Scan(ctx, r, func(store.Listed) (bool, error) { n++; return n < 100, nil })
				if err != nil || n != 100 {
					b.Fatal(n, err)
				}
			}
		})
	}
	b.Run("by id", func(b *testing.B) {
		for b.Loop() {
			if found, err := s.Find(ctx, some); err != nil || len(found) != 1 {
				b.Fatal(found, err)
			}
		}
	})
	b.Run("change 1000", func(b *testing.B) {
		for b.Loop() {
			_, err := s.Change(ctx, keys, storetest.Keep(func(r *store.Record) {
				r.State = store.Parked + store.Discarded - r.State
			}), nil)
			must(b, err)
		}
	})
}
