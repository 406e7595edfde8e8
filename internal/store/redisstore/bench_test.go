package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
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

// told returns a number from Redis's INFO.
func told(b *testing.B, server *server, name string) int64 {
	n, err := strconv.ParseInt(server.Info(ctx, "all", name), 10, 64)
	if err != nil {
		b.Fatalf("Redis does not tell its %s: %v", name, err)
	}
	return n
}

// BenchmarkMemory measures Redis's memory for a waiting message with a body of 1 KiB.
func BenchmarkMemory(b *testing.B) {
	server := start(b, "appendfsync everysec")
	o := server.options()
	o.Durability = redisstore.Cached
	s := openAt(b, o)
	before := told(b, server, "used_memory")
	const n = 200_000
	for b.Loop() {
		for range n / 256 {
			must(b, s.Add(ctx, batchOf(256, func() time.Duration { return time.Hour + rand.N(time.Hour) })))
		}
	}
	each := float64(told(b, server, "used_memory")-before) / float64(b.N*(n/256*256))
	b.ReportMetric(each, "bytes/message")
	b.ReportMetric(each/1024, "times-body")
}

// BenchmarkCycle adds 256 messages of 1 KiB, claims and finishes them, by one process
// that does one thing at a time.
func BenchmarkCycle(b *testing.B) {
	for _, c := range []struct {
		durability redisstore.Durability
		waiting    int
	}{{redisstore.Cached, 0}, {redisstore.Synced, 0}, {redisstore.Synced, 100_000}} {
		b.Run(fmt.Sprintf("%s/waiting=%d", c.durability, c.waiting), func(b *testing.B) {
			fsync := "always"
			if c.durability == redisstore.Cached {
				fsync = "everysec"
			}
			server := start(b, "appendfsync "+fsync)
			o := server.options()
			o.Durability = c.durability
			s := openAt(b, o)
			for range c.waiting / 256 {
				must(b, s.Add(ctx, batchOf(256, func() time.Duration { return time.Hour + rand.N(time.Hour) })))
			}
			var spent [3]time.Duration
			sent := told(b, server, "total_commands_processed")
			batch := batchOf(256, func() time.Duration { return rand.N(time.Second) })
			upTo := batch[0].Due.Add(10 * time.Second)
			for b.Loop() {
				began := time.Now()
				must(b, s.Add(ctx, batch))
				added := time.Now()
				claims, err := s.Claim(ctx, store.Lane{Queue: "orders"}, upTo, 256, 1<<30)
				if err != nil || len(claims) != 256 {
					b.Fatal(len(claims), err)
				}
				claimed := time.Now()
				out := make([]store.Outcome, len(claims))
				for i := range claims {
					out[i].Claim = claims[i]
				}
				if n, err := s.Finish(ctx, out); n != 256 || err != nil {
					b.Fatal(n, err)
				}
				for i, d := range []time.Duration{added.Sub(began), claimed.Sub(added), time.Since(claimed)} {
					spent[i] += d
				}
			}
			for i, name := range []string{"add/s", "claim/s", "finish/s"} {
				b.ReportMetric(float64(b.N*256)/spent[i].Seconds(), name)
			}
			b.ReportMetric(float64(b.N*256)/b.Elapsed().Seconds(), "messages/s")
			b.ReportMetric(float64(told(b, server, "total_commands_processed")-sent)/float64(b.N), "commands/batch")
		})
	}
}

// BenchmarkPast measures Redis's memory for a past failure.
func BenchmarkPast(b *testing.B) {
	server := start(b, "appendfsync everysec")
	o := server.options()
	o.Durability = redisstore.Cached
	s := openAt(b, o)
	const n = 100_000
	before := told(b, server, "used_memory")
	for b.Loop() {
		for range n / 256 {
			must(b, s.Add(ctx, batchOf(256, func() time.Duration { return 0 })))
			claims, err := s.Claim(ctx, store.Lane{Queue: "orders"}, late, 256, 1<<30)
			must(b, err)
			out := make([]store.Outcome, len(claims))
			for i := range claims {
				out[i] = store.Outcome{Claim: claims[i], At: late}
			}
			must(b, errOf(s.Finish(ctx, out)))
		}
	}
	b.ReportMetric(float64(told(b, server, "used_memory")-before)/float64(n), "bytes/pastFailure")
}
