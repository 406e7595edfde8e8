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

// longLease ends when a test says so.
const longLease = time.Hour

func leaseRenewed(t *testing.T, e Engine) {
	all := replicas(t, e, 2, time.Second)
	add(t, all[0], Waiting("q", 0, "a"), Waiting("q", 1, "b"), Waiting("q", 2, "c"))
	claims := claim(t, all[0], "q", time.Hour, 10)
	for range 2 {
		was := all[1].Ends()
		eventually(t, "its leases are renewed", func() bool { return all[1].Ends().After(was) })
	}
	if n, err := all[0].Finish(context.Background(), []store.Outcome{{Claim: claims[0]}, {Claim: claims[1]}, {Claim: claims[2]}}); n != 3 || err != nil {
		t.Errorf("its owner finished %d of 3, %v", n, err)
	}
}

func leaseLost(t *testing.T, e Engine) {
	all, ctx := replicas(t, e, 2, longLease), context.Background()
	stalled, other := all[0], all[1]
	add(t, other, Waiting("q", 0, "retried"), Waiting("q", 1, "parked"), Waiting("q", 2, "released"), Waiting("q", 3, "held"))
	old := claim(t, stalled, "q", time.Hour, 10)
	want(t, "claimed", bodies(old), "retried parked released held")
	resume := stalled.Stall()
	defer resume() // before it is closed
	want(t, "next before the leases end", next(t, other), "")
	want(t, "claimed before the leases end", bodies(claim(t, other, "q", time.Hour, 10)), "")
	other.Expire()
	want(t, "next when the leases have ended", next(t, other), "q 0s")
	now := map[string]store.Claim{}
	for i, c := range claim(t, other, "q", time.Hour, 10) {
		now[string(c.Record.Message.Body)] = c
		if slices.ContainsFunc(old, func(o store.Claim) bool { return o.Token == c.Token }) {
			t.Errorf("claim %d has a token that another claim had", i)
		}
	}
	if len(now) != len(old) {
		t.Fatalf("claimed again are %v", now)
	}
	if n, err := other.Finish(ctx, []store.Outcome{{Claim: now["retried"], At: epoch}, {Claim: now["parked"], Park: "by the other", At: epoch}}); n != 2 || err != nil {
		t.Fatalf("finished %d, %v", n, err)
	}
	must(t, other.Release(ctx, []store.Claim{now["released"]}))

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

func ownerEnded(t *testing.T, e Engine) {
	all := replicas(t, e, 2, longLease)
	add(t, all[1], Waiting("q", 0, "a"), Waiting("q", 1, "b"))
	want(t, "claimed", bodies(claim(t, all[0], "q", time.Hour, 10)), "a b")
	must(t, all[0].Close())
	want(t, "they come back", bodies(claim(t, all[1], "q", time.Hour, 10)), "a b")
}
