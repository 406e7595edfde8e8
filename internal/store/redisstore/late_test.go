package redisstore_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/memredis"
)

// A batch that was added again, because its command had no answer in time, is not added a second
// time when that command comes at last, whatever was added meanwhile.
func TestABatchThatComesLateIsNotAddedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := true
		server := memredis.New(memredis.Options{Fault: func(c memredis.Command) (f memredis.Fault) {
			if late && strings.Contains(c.Script, "-- Add: keeps records") {
				late, f.Late = false, 20*time.Second
			}
			return f
		}})
		defer server.Close()
		s := openAt(t, inMemory(server))
		defer s.Close()
		first := []*store.Record{storetest.Waiting("q", 0, "first")}
		if err := s.Add(t.Context(), first); err == nil {
			t.Fatal("it was answered in time")
		}
		if err := s.Add(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if err := s.Add(t.Context(), []*store.Record{storetest.Waiting("q", 0, "another")}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if n := waiting(t, s); n != 6 {
			t.Errorf("%d messages are kept, not 6", n)
		}
	})
}

// A process that stood still for longer than a lease ends no claim that another has by now.
func TestAClaimOfAnotherIsNotEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		still := false
		server := memredis.New(memredis.Options{Fault: func(c memredis.Command) (f memredis.Fault) {
			f.Cut = still && c.Client == "still"
			return f
		}})
		defer server.Close()
		o := inMemory(server)
		other := openAt(t, o)
		defer other.Close()
		o.Dial = func(ctx context.Context, _ string) (net.Conn, error) { return server.Dial(ctx, "still") }
		s := openAt(t, o)
		defer s.Close()
		add(t, s, 1)
		old := claim(t, s, 1)
		still = true
		time.Sleep(time.Minute)
		taken := claim(t, other, 1)
		if still = false; len(old) != 1 || len(taken) != 1 {
			t.Fatalf("one claimed %d, and the other %d", len(old), len(taken))
		}
		time.Sleep(time.Second)
		if n, err := s.Finish(t.Context(), []store.Outcome{{Claim: old[0], At: time.Now()}}); n != 0 || err != nil {
			t.Errorf("it ended %d claims, %v", n, err)
		}
		if n := waiting(t, other); n != 1 {
			t.Errorf("%d are waiting, not 1", n)
		}
	})
}
