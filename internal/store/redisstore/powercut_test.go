package redisstore_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// confirmed is a write that was confirmed, and how much of its file Redis had written by
// then.
type confirmed struct {
	written         int64
	added, finished []uuid.UUID
}

// work adds and finishes, and notes what is confirmed.
func work(t *testing.T, server *redisnode.Server, s *redisstore.Store, writes int) (all []confirmed) {
	t.Helper()
	for i := range writes {
		var c confirmed
		if i%3 < 2 {
			batch := []*store.Record{storetest.Waiting("q", 0, "x"), storetest.Waiting("q", 0, "y")}
			if err := s.Add(ctx, batch); err != nil {
				t.Fatal(err)
			}
			c.added = []uuid.UUID{batch[0].ID, batch[1].ID}
		} else {
			claims := claim(t, s, 3)
			if n := done(t, s, claims); n != len(claims) {
				t.Fatalf("finished %d of %d", n, len(claims))
			}
			for _, one := range claims {
				c.finished = append(c.finished, one.Record.ID)
			}
		}
		var err error
		if c.written, err = server.Written(); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// holds checks that a store has just what was confirmed by these writes.
func holds(t *testing.T, s *redisstore.Store, all []confirmed) {
	t.Helper()
	want := map[uuid.UUID]bool{} // to whether it is finished
	for _, c := range all {
		for _, id := range c.added {
			want[id] = false
		}
		for _, id := range c.finished {
			want[id] = true
		}
	}
	kept := map[uuid.UUID]int{}
	if err := s.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) { kept[l.Record.ID]++; return true, nil }); err != nil {
		t.Fatal(err)
	}
	past := map[uuid.UUID]int{}
	if err := s.EachPastFailure(ctx, func(p store.PastFailure) (bool, error) { past[p.ID]++; return true, nil }); err != nil {
		t.Fatal(err)
	}
	for id, finished := range want {
		if finished && (kept[id] != 0 || past[id] != 1) || !finished && (kept[id] != 1 || past[id] != 0) {
			t.Errorf("%s (finished: %v) is kept %d times, and has ended %d times", id, finished, kept[id], past[id])
		}
		delete(kept, id)
		delete(past, id)
	}
	if len(kept)+len(past) > 0 {
		t.Errorf("%d are kept and %d have ended that were not confirmed", len(kept), len(past))
	}
	storetest.Balances(t, s)
}

// The power fails, and of Redis's file there is what had been written, and so synced,
// when a write was confirmed, to the byte: that write and all before it are there. (That
// Redis syncs before it confirms is its promise: `appendfsync always`, or WAITAOF.)
func TestAPowerCutOfRedisLosesNothingThatWasConfirmed(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		const writes, cuts = 300, 8
		o.Config = "maxmemory 1gb"
		server := redisnode.New(t, o)
		all := work(t, server, openAt(t, redisstore.Options{URL: server.URL()}), writes)
		server.Kill()
		for range cuts {
			n := 1 + rand.IntN(writes)
			again := redisnode.AfterPowerCut(t, server, all[n-1].written)
			t.Logf("cut after %d writes, %d bytes", n, all[n-1].written)
			holds(t, openAt(t, redisstore.Options{URL: again.URL()}), all[:n])
		}
	})
}

// With `cached` a power cut loses what was not synced yet, though it was confirmed: the
// last writes, whole, and none before them.
func TestAPowerCutLosesTheLastWritesWithCached(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		const writes, cuts = 300, 8
		o.Config = "maxmemory 1gb\nappendfsync no"
		server := redisnode.New(t, o)
		cached := redisstore.Options{Durability: redisstore.Cached}
		cached.URL = server.URL()
		all := work(t, server, openAt(t, cached), writes)
		server.Kill()
		for range cuts {
			n := 1 + rand.IntN(writes-1)
			from, to := all[n-1].written, all[n].written
			cut := from + rand.Int64N(to-from) // in the middle of the next
			again := redisnode.AfterPowerCut(t, server, cut)
			t.Logf("cut after %d writes of %d, %d bytes into the next", n, writes, cut-from)
			cached.URL = again.URL()
			holds(t, openAt(t, cached), all[:n])
		}
	})
}
