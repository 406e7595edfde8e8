package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// told returns a number from Redis's INFO.
func told(b *testing.B, server *server, name string) int64 {
	n, err := strconv.ParseInt(server.Info(ctx, "all", name), 10, 64)
	if err != nil {
		b.Fatalf("Redis does not tell its %s: %v", name, err)
	}
	return n
}

// open opens a store on a server that syncs as its durability needs.
func open(b *testing.B, d redisstore.Durability) (*server, *redisstore.Store) {
	server := start(b, "appendfsync "+map[bool]string{true: "everysec", false: "always"}[d == redisstore.Cached])
	o := server.options()
	o.Durability = d
	return server, openAt(b, o)
}

// BenchmarkMemory measures Redis's memory for a waiting message with a body of 1 KiB.
func BenchmarkMemory(b *testing.B) {
	server, s := open(b, redisstore.Cached)
	before := told(b, server, "used_memory")
	const n = 200_000
	for b.Loop() {
		for range n / 256 {
			must(b, s.Add(ctx, storetest.Batch(256, func() time.Duration { return time.Hour + rand.N(time.Hour) })))
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
			server, s := open(b, c.durability)
			for range c.waiting / 256 {
				must(b, s.Add(ctx, storetest.Batch(256, func() time.Duration { return time.Hour + rand.N(time.Hour) })))
			}
			var spent [3]time.Duration
			sent := told(b, server, "total_commands_processed")
			batch := storetest.Batch(256, func() time.Duration { return rand.N(time.Second) })
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
				if n, err := s.Finish(ctx, storetest.Ended(claims, upTo)); n != 256 || err != nil {
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
	server, s := open(b, redisstore.Cached)
	const n = 100_000
	before := told(b, server, "used_memory")
	for b.Loop() {
		for range n / 256 {
			must(b, s.Add(ctx, storetest.Batch(256, func() time.Duration { return 0 })))
			claims, err := s.Claim(ctx, store.Lane{Queue: "orders"}, late, 256, 1<<30)
			must(b, err)
			must(b, errOf(s.Finish(ctx, storetest.Ended(claims, late))))
		}
	}
	b.ReportMetric(float64(told(b, server, "used_memory")-before)/float64(n), "bytes/pastFailure")
}
