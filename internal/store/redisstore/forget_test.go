package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Forgetting queues reads a bounded part of a large ledger each time, and all of it in some
// rounds; queues that something is kept for stay.
func TestForgettingQueuesReadsTheLedgerInParts(t *testing.T) {
	const kept, gone, most = 3000, store.EmptyLinesKept + 500, 2000
	server := start(t, "")
	s := openAt(t, server.options())
	add := func(prefix string, n int, state store.State, due time.Time) {
		t.Helper()
		for at := 0; at < n; at += 500 {
			var all []*store.Record
			for i := at; i < min(n, at+500); i++ {
				all = append(all, &store.Record{ID: uuid.New(), Queue: fmt.Sprintf("%s.%05d", prefix, i), State: state, Due: due, FailedAt: due, FirstFailed: due})
			}
			if err := s.Add(ctx, all); err != nil {
				t.Fatal(err)
			}
		}
	}
	now := time.Now()
	add("kept", kept, store.Parked, now)
	add("gone", gone, store.Discarded, now.Add(-time.Hour))
	s.ForgetMost(most)
	for rounds, whole := 0, kept*2+gone*2; s.Forgetting() < 2*whole; rounds++ {
		before := s.Forgetting()
		if _, err := s.Forget(ctx, now); err != nil {
			t.Fatal(err)
		}
		// Redis looks at whole buckets of its table, so a step reads somewhat more.
		if n := s.Forgetting() - before; n > 2*most {
			t.Fatalf("a round read %d of the ledger, want about %d", n, most)
		}
		if rounds > 100 {
			t.Fatal("it does not get on")
		}
	}
	lines, err := s.Ledger(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var sum store.Sums
	left := 0
	for _, l := range lines {
		sum.Add(&l.Sums)
		if l.Queue != store.OtherQueues && l.Kept() == 0 {
			left++
		}
	}
	if left != store.EmptyLinesKept || sum[store.In] != kept+gone || sum[store.Parked] != kept || sum[store.Forgotten] != gone {
		t.Errorf("%d queues with nothing kept are left, want %d; in all %v", left, store.EmptyLinesKept, sum)
	}
}
