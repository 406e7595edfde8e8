package redisstore_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// states is what a store says of its servers, each second.
type states chan error

func (s states) options(o redisstore.Options) redisstore.Options {
	o.OnState = func(err error) {
		select {
		case s <- err:
		default:
		}
	}
	return o
}

// await waits until one of its states is as it must be.
func (s states) await(t *testing.T, what string, is func(error) bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case err := <-s:
			if is(err) {
				return
			}
		case <-deadline:
			t.Fatalf("it never was %s", what)
		}
	}
}

func well(err error) bool     { return err == nil }
func replaced(err error) bool { return errors.Is(err, redisstore.ErrReplaced) }

// nothing checks that nothing is done in a store, nor read in it as if nothing were wrong.
func nothing(t *testing.T, s store.Store) {
	t.Helper()
	if err := s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "new")}); !replaced(err) {
		t.Errorf("added: %v", err)
	}
	if _, err := s.Counts(ctx); !replaced(err) {
		t.Errorf("counted: %v", err)
	}
	if _, err := s.Claim(ctx, store.Lane{Queue: "q"}, late, 9, 9); !replaced(err) {
		t.Errorf("claimed: %v", err)
	}
}

// Redis that is emptied while it is in use is found out, by the next write at once: what
// comes is refused, so that it stays in RabbitMQ, until the data is back.
func TestRedisThatWasEmptiedIsNoticed(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "")
		is := make(states, 1)
		so := is.options(server.options())
		s := openAt(t, so)
		add(t, s, 3)
		is.await(t, "well", well)
		server.do(t, "SWAPDB", "0", "1")
		if err := s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "new")}); !replaced(err) || !strings.Contains(err.Error(), "there is nothing in it") {
			t.Errorf("added to an empty Redis: %v", err)
		}
		is.await(t, "replaced", replaced)
		nothing(t, s)
		other := openAt(t, so) // who starts now begins again, and those that run do not join it
		add(t, other, 1)
		is.await(t, "another", func(err error) bool { return replaced(err) && strings.Contains(err.Error(), "another store") })
		nothing(t, s)
		server.do(t, "SWAPDB", "0", "1")
		is.await(t, "well again", well)
		if n := waiting(t, s); n != 3 {
			t.Errorf("%d are kept, want 3", n)
		}
		add(t, s, 1)
		storetest.Balances(t, s)
	})
}

// Redis that is killed and comes back with an empty disk is found out, of a cluster also
// when it is one of its servers.
func TestRedisThatCameBackEmptyIsNoticed(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "appendonly no")
		is := make(states, 1)
		so := is.options(server.options())
		so.Durability = redisstore.Cached
		s := openAt(t, so)
		add(t, s, 3)
		is.await(t, "well", well)
		server.Kill()
		if err := server.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		is.await(t, "replaced", replaced)
		nothing(t, s)
	})
}

func TestAServerOfAClusterThatWasEmptiedIsNoticed(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		cluster := redisnode.NewCluster(t, o)
		is := make(states, 1)
		so := is.options(redisstore.Options{URL: cluster.URL(), Durability: redisstore.Cached})
		s := openAt(t, so)
		is.await(t, "well", well)
		slot, err := cluster.Slot(ctx, "{redrive}:seq")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.Owner(ctx, slot).Do(ctx, "FLUSHALL"); err != nil {
			t.Fatal(err)
		}
		is.await(t, "replaced", replaced)
		nothing(t, s)
	})
}

// Redis that comes back with what it had a while ago, though it had confirmed more, is
// reported: the service goes on with that.
func TestRedisThatWentBackIsNoticed(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		o.Config = "maxmemory 1gb"
		server := redisnode.New(t, o)
		is := make(states, 1)
		so := is.options(redisstore.Options{URL: server.URL()})
		var addr atomic.Pointer[string]
		so.Dial = func(ctx context.Context, at string) (net.Conn, error) {
			if now := addr.Load(); now != nil {
				at = *now
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", at)
		}
		s := openAt(t, so)
		add(t, s, 3)
		then, err := server.Written()
		if err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); s.Generation() < 2; time.Sleep(20 * time.Millisecond) {
			add(t, s, 1)
			if time.Since(began) > time.Minute {
				t.Fatal("the generation does not grow")
			}
		}
		if notices := s.Notices(); notices != nil {
			t.Errorf("before anything is wrong: %q", notices)
		}
		server.Kill()
		again := redisnode.AfterPowerCut(t, server, then).Addr()
		addr.Store(&again)
		is.await(t, "well", well)
		for began := time.Now(); len(s.Notices()) == 0; time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatal("nothing is said of it")
			}
		}
		if notices := s.Notices(); len(notices) != 1 || !strings.Contains(notices[0], "gone back to an earlier state") {
			t.Errorf("%q", notices)
		}
		untilAnswered(t, func() error { _, err := s.Counts(ctx); return err })
		if n := waiting(t, s); n != 3 {
			t.Errorf("%d are kept, want 3", n)
		}
		untilAnswered(t, func() error { return s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "x")}) })
	})
}

// A server that stands still, or is not there, is said within 5 s, while nothing is asked
// of the store.
func TestADeadRedisIsSaidWithinFiveSeconds(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "")
		is := make(states, 1)
		s := openAt(t, is.options(server.options()))
		is.await(t, "well", well)
		down := func(err error) bool { return err != nil && !replaced(err) }
		for what, kill := range map[string]func() (back func() error){
			"stopped": func() func() error { must(t, server.Pause()); return server.Continue },
			"killed":  func() func() error { server.Kill(); return func() error { return server.Restart(ctx) } },
		} {
			began := time.Now()
			back := kill()
			is.await(t, "down", down)
			if took := time.Since(began); took > redisstore.WatchAtMost+2*time.Second { // besides a busy machine
				t.Errorf("%s: it took %s", what, took)
			} else {
				t.Logf("%s: %s", what, took)
			}
			must(t, back())
			is.await(t, "well again", well)
		}
		untilAnswered(t, func() error { return s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "x")}) })
	})
}
