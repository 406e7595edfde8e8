package storetest

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/redrive-mq/redrive/internal/store"
)

var ledgers = []testCase{
	{"the ledger counts what became of all that arrived", ledger},
	{"the ledger balances at every moment", ledgerAlways},
	{"queues with nothing left are forgotten", forgotten},
}

// Balances checks that a store's ledger balances, and that it says of what is kept
// what a recount finds.
func Balances(t *testing.T, s store.Store) map[string]store.Sums {
	t.Helper()
	counted, err := s.Ledger(context.Background())
	must(t, err)
	found, err := s.Recount(context.Background())
	must(t, err)
	if d := cmp.Diff(counted, found); d != "" {
		t.Errorf("what is there is not what was counted (-counted +there):\n%s", d)
	}
	lines := map[string]store.Sums{}
	for _, l := range found {
		if lines[l.Queue] = l.Sums; l.Off() != 0 {
			t.Errorf("queue %q is off by %d: %v", l.Queue, l.Off(), l.Sums)
		}
	}
	return lines
}

func ledger(t *testing.T, e Engine) {
	s, ctx := open(t, e), context.Background()
	forwarded := Waiting("q", 0, "forwarded")
	forwarded.Forward = &store.Destination{RoutingKey: "elsewhere"}
	add(t, s, Waiting("q", 0, "retried"), forwarded, Waiting("q", time.Second, "parked"), Waiting("q", time.Hour, "waiting"),
		parked("q", "moved"), parked("q", "let go"), discarded("q", -time.Hour, "forgotten"))
	add(t, s, parked("other", "deleted"))
	claims := claim(t, s, "q", time.Second, 3)
	outcomes := []store.Outcome{{Claim: claims[0]}, {Claim: claimLane(t, s, forwarded.Lane(), 0, 1)[0]}, {Claim: claims[1], Park: "why", At: epoch}}
	if n, err := s.Finish(ctx, outcomes); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := s.Finish(ctx, outcomes); n != 0 || err != nil { // and is counted once
		t.Fatal(n, err)
	}
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		r.Queue = "other"
		copied := *r
		copied.Queue = "copies"
		return store.Edit{Keep: true, Add: []*store.Record{&copied}}
	}, keyOf(t, s, "moved"))
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		r.State, r.Due = store.Discarded, epoch.Add(time.Hour)
		return store.Edit{Keep: true}
	}, keyOf(t, s, "let go"))
	change(t, s, func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, keyOf(t, s, "deleted"))
	if _, err := s.Forget(ctx, epoch); err != nil {
		t.Fatal(err)
	}
	s.CountUnstored("q", store.Delayed, 4)
	s.CountUnstored("passed", store.DiscardedAtOnce, 2)
	want := map[string]store.Sums{
		"q": {store.In: 11, store.Waiting: 1, store.Parked: 1, store.Discarded: 1, store.Retried: 1,
			store.Forwarded: 1, store.Forgotten: 1, store.Moved: 1, store.Delayed: 4},
		"other":  {store.In: 2, store.Parked: 1, store.Forgotten: 1},
		"copies": {store.In: 1, store.Parked: 1},
		"passed": {store.In: 2, store.DiscardedAtOnce: 2},
	}
	wantSums(t, s, want)
	again := reopened(t, e, s)
	if again == nil {
		return
	}
	wantSums(t, again, want)
	Balances(t, again)
	// From there it goes on.
	add(t, again, Waiting("copies", 0, "x"))
	want["copies"] = store.Sums{store.In: 2, store.Waiting: 1, store.Parked: 1}
	wantSums(t, again, want)
	Balances(t, again)
}

// wantSums checks the ledger of each queue.
func wantSums(t *testing.T, s store.Store, want map[string]store.Sums) {
	t.Helper()
	lines, err := s.Ledger(context.Background())
	must(t, err)
	got := map[string]store.Sums{}
	for _, l := range lines {
		got[l.Queue] = l.Sums
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Whatever is asked while others write, each line balances.
func ledgerAlways(t *testing.T, e Engine) {
	s, ctx := open(t, e), context.Background()
	const batches = 40
	written := make(chan error, 1)
	go func() {
		for range batches {
			if err := s.Add(ctx, []*store.Record{Waiting("q", 0, "a"), Waiting("q", 0, "b"), parked("p", "c")}); err != nil {
				written <- err
				return
			}
			s.CountUnstored("q", store.DiscardedAtOnce, 1)
			claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, epoch, 2, math.MaxInt)
			if err != nil {
				written <- err
				return
			}
			if _, err := s.Finish(ctx, []store.Outcome{{Claim: claims[0]}, {Claim: claims[1], Park: "why", At: epoch}}); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	for asked := 0; ; asked++ {
		for _, ask := range []func(context.Context) ([]store.LedgerLine, error){s.Ledger, s.Recount} {
			lines, err := ask(ctx)
			must(t, err)
			for _, l := range lines {
				if l.Off() != 0 {
					t.Fatalf("queue %q is off by %d: %v", l.Queue, l.Off(), l.Sums)
				}
			}
		}
		select {
		case err := <-written:
			must(t, err)
			if lines, _ := s.Ledger(ctx); len(lines) != 2 || lines[1].Sums != (store.Sums{store.In: 3 * batches, store.Parked: batches, store.Retried: batches, store.DiscardedAtOnce: batches}) {
				t.Errorf("in the end %v", lines)
			}
			return
		default:
		}
	}
}

// Beyond EmptyLinesKept the queues that nothing is kept for are forgotten, the one that was
// idle longest first: their lines become one, and the sums of the ledger stay, also of a
// name that messages come for meanwhile.
func forgotten(t *testing.T, e Engine) {
	s := open(t, e)
	const old, over = 10, 40
	add(t, s, append(expired("z.old", old), parked("kept", "x"))...)
	forgets(t, s, old)
	add(t, s, expired("new", store.EmptyLinesKept)...)
	forgets(t, s, store.EmptyLinesKept)
	lines := Balances(t, s)
	if len(lines) != store.EmptyLinesKept+2 || names(lines, "new.") != store.EmptyLinesKept || lines[store.OtherQueues] != (store.Sums{store.In: old, store.Forgotten: old}) {
		t.Errorf("%d lines are left, %d of them of queues that were used last, and of others it says %v", len(lines), names(lines, "new."), lines[store.OtherQueues])
	}

	add(t, s, expired("a.more", over)...)
	forgets(t, s, over)
	s.CountUnstored("passed", store.DiscardedAtOnce, 3)
	addWhileForgetting(t, s, "new", over)
	check := func(s store.Store) {
		t.Helper()
		var sum store.Sums
		lines := Balances(t, s)
		for _, sums := range lines {
			sum.Add(&sums)
		}
		gone := int64(old + store.EmptyLinesKept + over)
		if want := (store.Sums{store.In: gone + over + 1 + 3, store.Waiting: over, store.Parked: 1, store.Forgotten: gone, store.DiscardedAtOnce: 3}); sum != want {
			t.Errorf("the ledger's sums are %v, want %v", sum, want)
		}
		if most := store.EmptyLinesKept + over + 2; len(lines) > most || names(lines, "z.old") != 0 {
			t.Errorf("%d lines are left, want %d at most", len(lines), most)
		}
		counts, err := s.Counts(context.Background())
		if err != nil || len(counts) != over+1 {
			t.Errorf("something is kept for %d queues, want %d: %v", len(counts), over+1, err)
		}
	}
	check(s)
	if again := reopened(t, e, s); again != nil {
		check(again)
	}
}

// expired are messages that Forget deletes, one for each of n queues.
func expired(prefix string, n int) (all []*store.Record) {
	for i := range n {
		all = append(all, discarded(fmt.Sprintf("%s.%04d", prefix, i), -time.Hour, ""))
	}
	return all
}

// forgets expects so many messages to be forgotten.
func forgets(t *testing.T, s store.Store, n int) {
	t.Helper()
	if got, err := s.Forget(context.Background(), epoch); got != n || err != nil {
		t.Fatalf("%d messages were forgotten, want %d: %v", got, n, err)
	}
}

// names counts the queues in the ledger whose name begins so.
func names(lines map[string]store.Sums, prefix string) (n int) {
	for name := range lines {
		if strings.HasPrefix(name, prefix) {
			n++
		}
	}
	return n
}

// addWhileForgetting adds a message for each of n queues that are being forgotten.
func addWhileForgetting(t *testing.T, s store.Store, prefix string, n int) {
	t.Helper()
	come := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < n && err == nil; i++ {
			err = s.Add(context.Background(), []*store.Record{Waiting(fmt.Sprintf("%s.%04d", prefix, i), 0, "x")})
		}
		come <- err
	}()
	for {
		forgets(t, s, 0)
		select {
		case err := <-come:
			must(t, err)
			return
		default:
		}
	}
}
