package storetest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Replica is one of several stores on the same data.
type Replica struct {
	store.Store
	// Stall makes it stand still, as a process that gets no time or no network:
	// nothing that it sends arrives, its own renewals neither, until resume is called.
	// What it had sent may arrive then. resume may be called twice.
	Stall func() (resume func())
}

// replicas are n stores on the same new data; they are closed with the test.
func replicas(t *testing.T, e Engine, n int, lease time.Duration) []Replica {
	t.Helper()
	all := e.Replicas(t, n, lease)
	t.Cleanup(func() {
		for _, r := range all {
			if err := r.Close(); err != nil {
				t.Errorf("closing: %v", err)
			}
		}
	})
	return all
}

// eventually asks until it is so, and fails after a minute.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute still not so: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// holders know who has which record now, by its body.
type holders struct {
	t  *testing.T
	mu sync.Mutex
	by map[string]int
}

func (h *holders) take(who int, claims []store.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range claims {
		body := string(c.Record.Message.Body)
		if holder, held := h.by[body]; held {
			h.t.Errorf("%s went to store %d while store %d had it", body, who, holder)
		}
		h.by[body] = who
	}
}

// drop is called before a store releases claims: from then on another may have them.
func (h *holders) drop(claims []store.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range claims {
		delete(h.by, string(c.Record.Message.Body))
	}
}

func claimedOnce(t *testing.T, e Engine) {
	all, ctx := replicas(t, e, 3, longLease), context.Background()
	const n = 600
	var records []*store.Record
	for i := range n {
		records = append(records, Waiting("q", time.Duration(i%7), fmt.Sprint(i)))
	}
	for batch := range slices.Chunk(records, 50) {
		add(t, all[0], batch...)
	}
	held := holders{t: t, by: map[string]int{}}
	var wg sync.WaitGroup
	for i := range 6 {
		who := i % len(all)
		wg.Go(func() {
			for {
				claims, err := all[who].Claim(ctx, store.Lane{Queue: "q"}, epoch.Add(time.Hour), 7, math.MaxInt)
				if err != nil {
					t.Error(err)
				}
				if held.take(who, claims); len(claims) == 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	if len(held.by) != n {
		t.Errorf("%d of %d were claimed", len(held.by), n)
	}
	for _, s := range all {
		want(t, "what is not claimed", next(t, s), "")
		want(t, "kept", total(t, s), fmt.Sprintf("%d waiting, 0 parked, 0 discarded", n))
	}
}

// workAtOnce adds by each of three stores while each claims, settles and releases.
func workAtOnce(t *testing.T, e Engine) {
	all, ctx := replicas(t, e, 3, longLease), context.Background()
	const each, batch = 200, 20
	n := each * len(all)
	held := holders{t: t, by: map[string]int{}}
	var mu sync.Mutex
	settled, parks := map[string]int{}, 0
	var wg sync.WaitGroup
	for who, s := range all {
		wg.Go(func() {
			for i := 0; i < each; i += batch {
				var records []*store.Record
				for j := range batch {
					records = append(records, Waiting(fmt.Sprint("q", j%2), time.Duration(j), fmt.Sprintf("%d-%d", who, i+j)))
				}
				if err := s.Add(ctx, records); err != nil {
					t.Error(err)
					return
				}
			}
		})
		wg.Go(func() {
			deadline := time.Now().Add(time.Minute)
			for round := 0; ; round++ {
				mu.Lock()
				done := len(settled) == n
				mu.Unlock()
				if done {
					return
				}
				if time.Now().After(deadline) {
					t.Errorf("after a minute store %d still misses some", who)
					return
				}
				claims, err := s.Claim(ctx, store.Lane{Queue: fmt.Sprint("q", round%2)}, epoch.Add(time.Hour), 1+round%9, math.MaxInt)
				if err != nil {
					t.Error(err)
					return
				}
				held.take(who, claims)
				held.drop(claims)
				var out []store.Outcome
				for i, c := range claims {
					switch {
					case i%4 == 3:
						if err := s.Release(ctx, claims[i:i+1]); err != nil {
							t.Error(err)
						}
					case i%4 == 2:
						out = append(out, store.Outcome{Claim: c, Park: "why", At: epoch})
					default:
						out = append(out, store.Outcome{Claim: c, At: epoch})
					}
				}
				if got, err := s.Settle(ctx, out); err != nil || got != len(out) {
					t.Errorf("settled %d of %d, %v", got, len(out), err)
				}
				mu.Lock()
				for _, o := range out {
					settled[string(o.Claim.Record.Message.Body)]++
					if o.Park != "" {
						parks++
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(settled) != n {
		t.Errorf("%d of %d were settled", len(settled), n)
	}
	for body, times := range settled {
		if times != 1 {
			t.Errorf("%s was settled %d times", body, times)
		}
	}
	var in, returned int64
	for _, sums := range Balances(t, all[1]) {
		in += sums[store.In]
		returned += sums[store.Retried]
	}
	if in != int64(n) || returned != int64(n-parks) {
		t.Errorf("the ledger has %d that came and %d that returned, want %d and %d", in, returned, n, n-parks)
	}
	want(t, "kept", total(t, all[2]), fmt.Sprintf("0 waiting, %d parked, 0 discarded", parks))
}

// changeElsewhere changes by one store what another claims: each record is had by one
// of them at a time.
func changeElsewhere(t *testing.T, e Engine) {
	all, ctx := replicas(t, e, 2, longLease), context.Background()
	const n = 200
	for i := range n {
		add(t, all[0], Waiting("q", time.Duration(i), fmt.Sprint(i)))
	}
	var keys []store.Key
	if err := all[1].Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) {
		keys = append(keys, l.Key)
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	mine := claim(t, all[0], "q", time.Hour, 1)
	change(t, all[1], func(k store.Key, r *store.Record) store.Edit {
		if r != nil {
			t.Errorf("%s, which another store claimed, is given to edit", k)
		}
		return store.Edit{Keep: true}
	}, mine[0].Key)

	var mu sync.Mutex
	gone := map[store.Key]string{mine[0].Key: "claimed at first"}
	take := func(how string, key store.Key) {
		mu.Lock()
		defer mu.Unlock()
		if was := gone[key]; was != "" {
			t.Errorf("%s was %s, and then %s", key, was, how)
		}
		gone[key] = how
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			claims, err := all[0].Claim(ctx, store.Lane{Queue: "q"}, epoch.Add(time.Hour), 3, math.MaxInt)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			done := len(gone) == n
			mu.Unlock()
			if done || t.Failed() {
				return
			}
			var out []store.Outcome
			for i, c := range claims {
				if i > 0 {
					if err := all[0].Release(ctx, claims[i:]); err != nil {
						t.Error(err)
					}
					break
				}
				take("settled", c.Key)
				out = append(out, store.Outcome{Claim: c, At: epoch})
			}
			if got, err := all[0].Settle(ctx, out); err != nil || got != len(out) {
				t.Errorf("settled %d of %d, %v", got, len(out), err)
			}
		}
	})
	wg.Go(func() {
		slices.Reverse(keys) // they meet in the middle
		for some := range slices.Chunk(keys, 10) {
			var changed []store.Key
			if _, err := all[1].Change(ctx, some, func(k store.Key, r *store.Record) (e store.Edit) {
				if e.Keep = r != nil; e.Keep {
					r.State = store.Parked
					changed = append(changed, k)
				}
				return e
			}, func(int) []store.Entry { return nil }); err != nil {
				t.Error(err)
			}
			for _, k := range changed {
				take("changed", k)
			}
		}
	})
	wg.Wait()
	if len(gone) != n {
		t.Errorf("%d of %d were claimed by any", len(gone), n)
	}
	parks := 0
	for _, how := range gone {
		if how == "changed" {
			parks++
		}
	}
	want(t, "kept", total(t, all[1]), fmt.Sprintf("1 waiting, %d parked, 0 discarded", parks))
	Balances(t, all[0])
}

// changedElsewhere is why a service sees what others add, and what a dead one had:
// it asks for what is due when Changed says so.
func changedElsewhere(t *testing.T, e Engine) {
	all := replicas(t, e, 2, shortLease)
	waits, dies := all[1], all[0]
	// As the scheduler: it has asked, and asks again at a change.
	told := func(what string) {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
			select {
			case <-waits.Changed():
			case <-deadline:
				t.Fatalf("for a minute nothing was said of %s; next is %q", what, next(t, waits))
			}
			if next(t, waits) == "q 1s" {
				return
			}
		}
	}
	nothingNext := func() bool {
		for len(waits.Changed()) > 0 {
			<-waits.Changed()
		}
		return next(t, waits) == ""
	}
	eventually(t, "nothing is next", nothingNext)
	add(t, dies, Waiting("q", time.Second, "a"))
	told("what another added")
	want(t, "claimed", bodies(claim(t, dies, "q", time.Hour, 1)), "a")
	eventually(t, "what another claimed is not next", nothingNext)
	resume := dies.Stall()
	defer resume()
	told("what came back")
}
