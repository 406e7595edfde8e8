package redisstore_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

var ctx = context.Background()

// late is after all that storetest's records are due.
var late = time.UnixMicro(1_900_000_000_000_000)

func claim(t *testing.T, s store.Store, n int) []store.Claim {
	t.Helper()
	claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, late, n, math.MaxInt)
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

func add(t *testing.T, s store.Store, n int) {
	t.Helper()
	var batch []*store.Record
	for i := range n {
		batch = append(batch, storetest.Waiting("q", time.Duration(i)*time.Second, fmt.Sprint(i)))
	}
	if err := s.Add(ctx, batch); err != nil {
		t.Fatal(err)
	}
}

// done finishes claims as retried, and tells how many were.
func done(t *testing.T, s store.Store, claims []store.Claim) int {
	t.Helper()
	var out []store.Outcome
	for _, c := range claims {
		out = append(out, store.Outcome{Claim: c, At: late})
	}
	n, err := s.Finish(ctx, out)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func waiting(t *testing.T, s store.Store) (n int64) {
	t.Helper()
	counts, err := s.Counts(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range counts {
		n += c.Waiting
	}
	return n
}

// What a process claimed and did not renew is another's, and whatever it does with it
// then does nothing.
func TestAStalledProcessHasNoSay(t *testing.T) {
	server := start(t, "")
	o := server.options()
	stalled, other := openAt(t, o), openAt(t, o)
	add(t, stalled, 3)
	old := claim(t, stalled, 3)
	if n := len(claim(t, other, 3)); len(old) != 3 || n != 0 {
		t.Fatalf("one claimed %d, and the other %d of them", len(old), n)
	}
	server.age(t)
	if next, err := other.Next(ctx); err != nil || len(next) != 1 {
		t.Errorf("when the leases are over, Next says %v, %v", next, err)
	}
	taken := claim(t, other, 3)
	if len(taken) != 3 || taken[0].Token == old[0].Token {
		t.Fatalf("the other claimed %d, the first by %s", len(taken), taken[0].Token)
	}
	out := []store.Outcome{{Claim: old[0], At: late}, {Claim: old[1], Park: "no", At: late}}
	if n, err := stalled.Finish(ctx, out); n != 0 || err != nil {
		t.Errorf("the stalled one finished %d, %v", n, err)
	}
	if err := stalled.Release(ctx, old); err != nil {
		t.Error(err)
	}
	if n := len(claim(t, other, 3)); n != 0 {
		t.Errorf("%d came back by the stalled one's Release", n)
	}
	if err := stalled.Close(); err != nil {
		t.Error(err)
	}
	if n := waiting(t, other); n != 3 {
		t.Errorf("%d are waiting, not 3", n)
	}
	if n := done(t, other, taken); n != 3 {
		t.Errorf("the other finished %d of its 3", n)
	}
	storetest.Balances(t, other)
}

// Renewing keeps claims, but not those that were lost, of which it tells.
func TestRenewing(t *testing.T) {
	server := start(t, "")
	var log bytes.Buffer
	o := server.options()
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	s, other := openAt(t, o), openAt(t, server.options())
	add(t, s, 2)
	kept := claim(t, s, 1)
	server.age(t)
	if err := s.Renew(ctx); err != nil {
		t.Fatal(err)
	}
	if got := claim(t, other, 2); len(got) != 1 || got[0].Key == kept[0].Key {
		t.Errorf("what was renewed was claimed by another: %v", got)
	}
	if strings.Contains(log.String(), "renewed in time") {
		t.Errorf("nothing was lost, and yet: %s", log.String())
	}
	server.age(t)
	if n := len(claim(t, other, 2)); n != 2 { // its own as well
		t.Errorf("%d were claimed when all leases were over", n)
	}
	for range 2 {
		if err := s.Renew(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "renewed in time"); n != 1 {
		t.Errorf("told %d times of what was lost: %s", n, log.String())
	}
}

// A store renews by itself.
func TestLeasesAreRenewed(t *testing.T) {
	server := start(t, "")
	o := server.options()
	o.Lease = 12 * time.Second
	s := openAt(t, o)
	add(t, s, 1)
	claim(t, s, 1)
	until := func() string {
		m := server.do(t, "ZRANGE", "{redrive}:lease", "0", "0", "WITHSCORES")
		return m.String()
	}
	first := until()
	for began := time.Now(); until() == first; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("the lease was not renewed within a minute")
		}
	}
}

// Many claim in two processes: each message goes to one of them.
func TestTwoProcessesShareTheWork(t *testing.T) {
	server := start(t, "")
	o := server.options()
	stores := []*redisstore.Store{openAt(t, o), openAt(t, o)}
	const n = 2000
	for range n / 100 {
		add(t, stores[0], 100)
	}
	var mu sync.Mutex
	seen := map[store.Key]int{}
	var wg sync.WaitGroup
	for i := range 6 {
		s := stores[i%2]
		wg.Go(func() {
			for {
				claims := claim(t, s, 17)
				if len(claims) == 0 && waiting(t, s) == 0 {
					return
				}
				mu.Lock()
				for _, c := range claims {
					seen[c.Key]++
				}
				mu.Unlock()
				if i%3 == 2 && len(claims) > 1 { // some are released
					if err := s.Release(ctx, claims[1:]); err != nil {
						t.Error(err)
					}
					mu.Lock()
					for _, c := range claims[1:] {
						seen[c.Key]--
					}
					mu.Unlock()
					claims = claims[:1]
				}
				if got := done(t, s, claims); got != len(claims) {
					t.Errorf("finished %d of %d", got, len(claims))
				}
			}
		})
	}
	wg.Wait()
	for key, times := range seen {
		if times != 1 {
			t.Errorf("%s was claimed %d times", key, times)
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d were claimed", len(seen), n)
	}
	storetest.Balances(t, stores[1])
}
