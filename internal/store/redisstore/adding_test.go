package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/proxy"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// A batch that Redis may have is added again as the same one, and only then: the same
// records are kept twice when they are added twice.
func TestABatchInDoubtIsAddedOnce(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		between := proxy.New(t, redisnode.New(t, o).Addr())
		s := openAt(t, redisstore.Options{URL: "redis://" + between.Addr(), Timeout: time.Second})
		ctx := context.Background()
		batch := []*store.Record{storetest.Waiting("q", 0, "a"), storetest.Waiting("q", time.Second, "b")}
		other := []*store.Record{storetest.Waiting("q", 0, "c")}
		kept := func() int64 {
			t.Helper()
			counts, err := s.Counts(ctx)
			if err != nil || len(counts) != 1 {
				t.Fatal(counts, err)
			}
			return counts[0].Waiting
		}
		again := func(records []*store.Record) {
			t.Helper()
			for deadline := time.Now().Add(time.Minute); ; {
				err := s.Add(ctx, records)
				if err == nil {
					return
				}
				if time.Now().After(deadline) {
					t.Fatal(err)
				}
			}
		}
		again(other) // and the room is known, for a moment: what follows is sent
		release := between.Hold()
		defer release()
		for range 3 {
			if err := s.Add(ctx, batch); err == nil || errors.Is(err, store.ErrFull) {
				t.Fatalf("added by a server that does not answer: %v", err)
			}
		}
		release()
		again(batch)
		if n := kept(); n != 3 {
			t.Errorf("%d are kept, want 3", n)
		}
		again(batch)
		if n := kept(); n != 5 {
			t.Errorf("%d are kept after one batch was added twice, want 5", n)
		}
	})
}
