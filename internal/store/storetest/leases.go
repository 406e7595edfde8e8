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

// leases are for engines that several processes use at once.
var leases = []testCase{
	{"what one store claimed is claimed by no other", handedOnce},
	{"stores that work at once account for every record", workAtOnce},
	{"what one store changes another does not claim", changeElsewhere},
	{"a lease is renewed for as long as its owner lives", leaseRenewed},
	{"what a store claimed that stands still comes back, and is its own no more", leaseLost},
	{"what a store claimed that ended comes back", ownerEnded},
	{"Changed tells what others add, and what comes back from the dead", changedElsewhere},
}

// Replica is one of several stores on the same data.
type Replica struct {
	store.Store
	// Stall makes it stand still, as a process that gets no time or no network:
	// nothing that it sends arrives, its own renewals neither, until resume is called.
	// What it had sent may arrive then. resume may be called twice.
	Stall func() (resume func())
}

const (
	// longLease does not end during a test, however busy the machine.
	longLease = time.Minute
	// shortLease ends while a test waits for it.
	shortLease = 2 * time.Second
)

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
			h.t.Errorf("%s was handed to store %d while store %d had it", body, who, holder)
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

func handedOnce(t *testing.T, e Engine) {
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
		returned += sums[store.Returned]
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

// leaseRenewed watches for three leases. Where the machine itself stood still for a good
// part of one, that proves nothing, and it is tried again.
func leaseRenewed(t *testing.T, e Engine) {
	ctx := context.Background()
	for range 5 {
		all := replicas(t, e, 2, shortLease)
		add(t, all[0], Waiting("q", 0, "a"), Waiting("q", 1, "b"), Waiting("q", 2, "c"))
		claims := claim(t, all[0], "q", time.Hour, 10)
		var longest time.Duration
		var lost string
		for end, last := time.Now().Add(3*shortLease), time.Now(); last.Before(end) && lost == ""; {
			lost = next(t, all[1]) + bodies(claim(t, all[1], "q", time.Hour, 10))
			<-time.After(20 * time.Millisecond)
			longest = max(longest, time.Since(last))
			last = time.Now()
		}
		settled, err := all[0].Settle(ctx, []store.Outcome{{Claim: claims[0]}, {Claim: claims[1]}, {Claim: claims[2]}})
		if lost == "" && settled == 3 && err == nil {
			return
		}
		if longest < shortLease/4 {
			t.Fatalf("another store got %q, and its owner settled %d of 3, %v", lost, settled, err)
		}
		t.Logf("the machine stood still for %s; once more", longest)
	}
	t.Fatal("the machine is too slow to tell")
}

func leaseLost(t *testing.T, e Engine) {
	all, ctx := replicas(t, e, 2, shortLease), context.Background()
	stalled, other := all[0], all[1]
	add(t, other, Waiting("q", 0, "returned"), Waiting("q", 1, "parked"), Waiting("q", 2, "released"), Waiting("q", 3, "held"))
	before := time.Now()
	old := claim(t, stalled, "q", time.Hour, 10)
	want(t, "claimed", bodies(old), "returned parked released held")
	resume := stalled.Stall()
	defer resume() // before it is closed

	var got []store.Claim
	eventually(t, "another store gets what a stalled one had claimed", func() bool {
		next(t, other) // as the loop, which asks before it claims
		got = append(got, claim(t, other, "q", time.Hour, 10)...)
		if lease := time.Since(before); len(got) > 0 && lease < shortLease-5*time.Millisecond {
			t.Fatalf("it gets them after %s, within the lease", lease)
		}
		return len(got) == len(old)
	})
	now := map[string]store.Claim{}
	for i, c := range got {
		now[string(c.Record.Message.Body)] = c
		if slices.ContainsFunc(old, func(o store.Claim) bool { return o.Token == c.Token }) {
			t.Errorf("claim %d has a token that another claim had", i)
		}
	}
	if len(now) != len(old) {
		t.Fatalf("what came back is %q", bodies(got))
	}
	if n, err := other.Settle(ctx, []store.Outcome{{Claim: now["returned"], At: epoch}, {Claim: now["parked"], Park: "by the other", At: epoch}}); n != 2 || err != nil {
		t.Fatalf("settled %d, %v", n, err)
	}
	if err := other.Release(ctx, []store.Claim{now["released"]}); err != nil {
		t.Fatal(err)
	}

	resume()
	// Its connections may be gone; what it has received before is not.
	var late int
	eventually(t, "the stalled store works again", func() bool {
		n, err := stalled.Settle(ctx, []store.Outcome{{Claim: old[0]}, {Claim: old[1]}, {Claim: old[2]}, {Claim: old[3], Park: "too late", At: epoch}})
		late += n
		return err == nil
	})
	if late != 0 {
		t.Errorf("%d claims were settled whose lease had ended", late)
	}
	if err := stalled.Release(ctx, old); err != nil {
		t.Errorf("releasing what is held no more: %v", err)
	}
	want(t, "kept", total(t, other), "2 waiting, 1 parked, 0 discarded")
	page, err := other.List(ctx, store.Filter{State: store.Parked})
	if err != nil || len(page.Records) != 1 || page.Records[0].Record.ParkedFor != "by the other" {
		t.Errorf("parked: %+v, %v", page.Records, err)
	}
	// One is waiting and not claimed; the other is still who has it's.
	again := claim(t, stalled, "q", time.Hour, 10)
	want(t, "claimable", bodies(again), "released")
	if n, err := stalled.Settle(ctx, []store.Outcome{{Claim: old[2], Park: "by an old claim"}, {Claim: again[0]}}); n != 1 || err != nil {
		t.Errorf("of an old and a new claim of one record %d were settled, %v", n, err)
	}
	if n, err := other.Settle(ctx, []store.Outcome{{Claim: now["held"]}}); n != 1 || err != nil {
		t.Errorf("the store that has it settled %d, %v", n, err)
	}
	lines := Balances(t, other)
	if sums := lines["q"]; sums[store.In] != 4 || sums[store.Returned] != 3 || sums[store.Parked] != 1 {
		t.Errorf("the ledger says %v", sums)
	}
}

func ownerEnded(t *testing.T, e Engine) {
	all := replicas(t, e, 2, shortLease)
	add(t, all[1], Waiting("q", 0, "a"), Waiting("q", 1, "b"))
	want(t, "claimed", bodies(claim(t, all[0], "q", time.Hour, 10)), "a b")
	if err := all[0].Close(); err != nil {
		t.Fatal(err)
	}
	var got []store.Claim
	eventually(t, "they come back", func() bool {
		next(t, all[1])
		got = append(got, claim(t, all[1], "q", time.Hour, 10)...)
		return len(got) == 2
	})
	want(t, "they come back", bodies(got), "a b")
}

// changedElsewhere is why a service sees what others add, and what a dead one had:
// it asks for what is due when Changed says so.
func changedElsewhere(t *testing.T, e Engine) {
	all := replicas(t, e, 2, shortLease)
	waits, dies := all[1], all[0]
	// As the loop: it has asked, and asks again at a change.
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
