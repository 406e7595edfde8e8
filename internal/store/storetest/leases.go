package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// leases are for engines that several processes use at once.
var leases = []testCase{
	{"what one store claimed is claimed by no other", claimedOnce},
	{"stores that work at once account for every record", workAtOnce},
	{"what one store changes another does not claim", changeElsewhere},
	{"a lease is renewed for as long as its owner lives", leaseRenewed},
	{"what a store claimed that stands still comes back, and is its own no more", leaseLost},
	{"what a store claimed that ended comes back", ownerEnded},
	{"Changed has a value after others add, and after the claims of a process that died end", changedElsewhere},
}

const (
	// longLease does not end during a test, however busy the machine.
	longLease = time.Minute
	// shortLease ends while a test waits for it.
	shortLease = 2 * time.Second
)

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
		finished, err := all[0].Finish(ctx, []store.Outcome{{Claim: claims[0]}, {Claim: claims[1]}, {Claim: claims[2]}})
		if lost == "" && finished == 3 && err == nil {
			return
		}
		if longest < shortLease/4 {
			t.Fatalf("another store got %q, and its owner finished %d of 3, %v", lost, finished, err)
		}
		t.Logf("the machine stood still for %s; once more", longest)
	}
	t.Fatal("the machine is too slow to tell")
}

func leaseLost(t *testing.T, e Engine) {
	all, ctx := replicas(t, e, 2, shortLease), context.Background()
	stalled, other := all[0], all[1]
	add(t, other, Waiting("q", 0, "retried"), Waiting("q", 1, "parked"), Waiting("q", 2, "released"), Waiting("q", 3, "held"))
	before := time.Now()
	old := claim(t, stalled, "q", time.Hour, 10)
	want(t, "claimed", bodies(old), "retried parked released held")
	resume := stalled.Stall()
	defer resume() // before it is closed
	now := claimAgain(t, other, old, before.Add(shortLease))
	if n, err := other.Finish(ctx, []store.Outcome{{Claim: now["retried"], At: epoch}, {Claim: now["parked"], Park: "by the other", At: epoch}}); n != 2 || err != nil {
		t.Fatalf("finished %d, %v", n, err)
	}
	if err := other.Release(ctx, []store.Claim{now["released"]}); err != nil {
		t.Fatal(err)
	}

	resume()
	// Its connections may be gone; what it has received before is not.
	var late int
	eventually(t, "the stalled store works again", func() bool {
		n, err := stalled.Finish(ctx, []store.Outcome{{Claim: old[0]}, {Claim: old[1]}, {Claim: old[2]}, {Claim: old[3], Park: "too late", At: epoch}})
		late += n
		return err == nil
	})
	if late != 0 {
		t.Errorf("%d claims were finished whose lease had ended", late)
	}
	if err := stalled.Release(ctx, old); err != nil {
		t.Errorf("releasing what is held no more: %v", err)
	}
	want(t, "kept", total(t, other), "2 waiting, 1 parked, 0 discarded")
	page, err := List(ctx, other, Filter{State: store.Parked})
	if err != nil || len(page.Records) != 1 || page.Records[0].Record.ParkedFor != "by the other" {
		t.Errorf("parked: %+v, %v", page.Records, err)
	}
	// One is waiting and not claimed; the other is still who has it's.
	again := claim(t, stalled, "q", time.Hour, 10)
	want(t, "claimable", bodies(again), "released")
	if n, err := stalled.Finish(ctx, []store.Outcome{{Claim: old[2], Park: "by an old claim"}, {Claim: again[0]}}); n != 1 || err != nil {
		t.Errorf("of an old and a new claim of one record %d were finished, %v", n, err)
	}
	if n, err := other.Finish(ctx, []store.Outcome{{Claim: now["held"]}}); n != 1 || err != nil {
		t.Errorf("the store that has it finished %d, %v", n, err)
	}
	lines := Balances(t, other)
	if sums := lines["q"]; sums[store.In] != 4 || sums[store.Retried] != 3 || sums[store.Parked] != 1 {
		t.Errorf("the ledger has %v", sums)
	}
}

// claimAgain claims what another store had claimed, once its lease has ended. The claims are
// by their records' bodies.
func claimAgain(t *testing.T, s store.Store, old []store.Claim, ends time.Time) map[string]store.Claim {
	t.Helper()
	var got []store.Claim
	eventually(t, "another store gets what a stalled one had claimed", func() bool {
		next(t, s) // as the scheduler, which asks before it claims
		got = append(got, claim(t, s, "q", time.Hour, 10)...)
		if early := time.Until(ends); len(got) > 0 && early > 5*time.Millisecond {
			t.Fatalf("it gets them %s before the lease ends", early)
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
		t.Fatalf("claimed again is %q", bodies(got))
	}
	return now
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
