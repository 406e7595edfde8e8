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

// That a batch is there already is known when Redis is full too: one that is refused for lack of
// room is added in parts, and would be there twice.
func TestABatchInDoubtNeedsNoRoom(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "")
		between := proxy.New(t, server.Addr())
		s := openAt(t, redisstore.Options{URL: "redis://" + between.Addr(), Timeout: time.Second})
		ctx := context.Background()
		batch := []*store.Record{storetest.Waiting("q", 0, "a"), storetest.Waiting("q", time.Second, "b")}
		lost := []*store.Record{storetest.Waiting("q", 0, "c")}
		for _, some := range [][]*store.Record{{storetest.Waiting("q", 0, "d")}, {storetest.Waiting("q", 0, "e")}} {
			if err := s.Add(ctx, some); err != nil {
				t.Fatal(err)
			}
		}
		doubt := func(records []*store.Record, hold func() func()) {
			t.Helper()
			if _, _, err := s.Free(); err != nil {
				t.Fatal(err)
			}
			release := hold()
			defer release()
			if err := s.Add(ctx, records); err == nil || errors.Is(err, store.ErrFull) {
				t.Fatalf("added by a server that does not answer: %v", err)
			}
		}
		doubt(batch, between.HoldAnswers)
		server.do(t, "CONFIG", "SET", "maxmemory", "1mb")
		var err error
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			s.Forgot()
			if err = s.Add(ctx, batch); err == nil || errors.Is(err, store.ErrFull) {
				break
			}
		}
		if err != nil {
			t.Errorf("a batch that is there already: %v", err)
		}
		if err := s.Add(ctx, lost); !errors.Is(err, store.ErrFull) {
			t.Errorf("another batch: %v", err)
		}
		if counts, err := s.Counts(ctx); err != nil || len(counts) != 1 || counts[0].Waiting != 4 {
			t.Errorf("%+v, %v; want 4", counts, err)
		}
	})
}

// A message that a person has replayed fails as often again. A batch of it alone may have been in
// doubt when it failed first, and never have been tried again, since its connection was lost.
func TestAFailureAfterAReplayIsNoBatchInDoubt(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "")
		between := proxy.New(t, server.Addr())
		s := openAt(t, redisstore.Options{URL: "redis://" + between.Addr(), Timeout: time.Second})
		ctx := context.Background()
		if err := s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "other")}); err != nil { // and the scripts are there
			t.Fatal(err)
		}
		failed := storetest.Waiting("q", 0, "a")
		release := between.HoldAnswers()
		if err := s.Add(ctx, []*store.Record{failed}); err == nil {
			t.Fatal("added by a server that does not answer")
		}
		release()
		again := *failed
		again.FailedAt = again.FailedAt.Add(time.Minute)
		untilAnswered(t, func() error { return s.Add(ctx, []*store.Record{&again}) })
		if counts, err := s.Counts(ctx); err != nil || len(counts) != 1 || counts[0].Waiting != 3 {
			t.Errorf("%+v, %v; want 3", counts, err)
		}
	})
}

// A batch that was added again, because its command had no answer in time, is not added a second
// time when that command arrives at last, whatever was added meanwhile.
func TestABatchThatArrivesLateIsNotAddedTwice(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "")
		var conns held
		so := server.options()
		so.Timeout = time.Second
		s := openAt(t, conns.options(t, so))
		add(t, s, 1) // and the script is there
		batch := []*store.Record{storetest.Waiting("q", 0, "first")}
		conns.holdAll((*proxy.Proxy).Hold)
		t.Cleanup(conns.arrive)
		if err := s.Add(ctx, batch); err == nil || errors.Is(err, store.ErrFull) {
			t.Fatalf("added by a server that does not answer: %v", err)
		}
		conns.free()
		untilAnswered(t, func() error { return s.Add(ctx, batch) })
		for range 5 {
			another := []*store.Record{storetest.Waiting("q", 0, "another")}
			untilAnswered(t, func() error { return s.Add(ctx, another) })
		}
		scripts := func() string { return server.Info(ctx, "commandstats", "cmdstat_evalsha") }
		before := scripts()
		conns.arrive()
		untilAnswered(t, func() error {
			if scripts() == before {
				return errors.New("the late command has not arrived")
			}
			return nil
		})
		if n := waiting(t, s); n != 7 {
			t.Errorf("%d messages are kept, not 7", n)
		}
	})
}
