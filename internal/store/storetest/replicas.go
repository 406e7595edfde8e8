package storetest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// Replica is one of several stores on the same data.
type Replica struct {
	store.Store
	// Stall makes it stand still, as a process that gets no time or no network:
	// nothing that it sends arrives, its own renewals neither, until resume is called.
	// What it had sent may arrive then. resume may be called twice.
	Stall func() (resume func())
	// Expire ends all leases on the data, as time does. Ends is when the first of them ends.
	Expire func()
	Ends   func() time.Time
}

// replicas are n stores on the same new data; they are closed with the test.
func replicas(t *testing.T, e Engine, n int, lease time.Duration) []Replica {
	t.Helper()
	all := e.Replicas(t, n, lease)
	t.Cleanup(func() {
		for _, r := range all {
			closes(t, r)
		}
	})
	return all
}

// notes say one thing of each of several: who has it, or how it ended, which is once.
type notes struct {
	t  *testing.T
	mu sync.Mutex
	of map[string]string
}

func (n *notes) note(of, what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if was, is := n.of[of]; is {
		n.t.Errorf("%s was %s, and then %s", of, was, what)
	}
	n.of[of] = what
}

func (n *notes) forget(of string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.of, of)
}

func (n *notes) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.of)
}

// workAtOnce adds by each of three stores while each claims, finishes and releases: no two claim one record.
func workAtOnce(t *testing.T, all ...store.Store) {
	const each = 200
	n := each * len(all)
	w := work{notes{t: t, of: map[string]string{}}, notes{t: t, of: map[string]string{}}}
	var wg sync.WaitGroup
	for who, s := range all {
		wg.Go(func() { w.add(s, who, each) })
		wg.Go(func() {
			deadline := time.Now().Add(3 * minute)
			for round := 0; w.ended.count() < n && !t.Failed(); round++ {
				if time.Now().After(deadline) {
					t.Errorf("after three minutes store %d still misses some", who)
				}
				w.round(s, who, round)
			}
		})
	}
	wg.Wait()
	parks := 0
	for _, how := range w.ended.of {
		if how == "parked" {
			parks++
		}
	}
	same(t, "finished", w.ended.count(), n)
	var in, retried int64
	for _, sums := range Balances(t, all[1]) {
		in += sums[store.In]
		retried += sums[store.Retried]
	}
	same(t, "that arrived, by the ledger", in, int64(n))
	same(t, "that were retried, by the ledger", retried, int64(n-parks))
	want(t, "kept", total(t, all[2]), fmt.Sprintf("0 waiting, %d parked, 0 discarded", parks))
}

// work is what stores do at once: who has which record now, by its body, and how each ended.
type work struct{ held, ended notes }

// add adds n records to two queues.
func (w *work) add(s store.Store, who, n int) {
	const batch = 20
	for i := 0; i < n; i += batch {
		var records []*store.Record
		for j := range batch {
			records = append(records, Waiting(fmt.Sprint("q", j%2), time.Duration(j), fmt.Sprintf("%d-%d", who, i+j)))
		}
		if err := s.Add(ctx, records); err != nil {
			w.ended.t.Error(err)
		}
	}
}

// round claims some records. Of each four it finishes two, parks one and releases one.
func (w *work) round(s store.Store, who, round int) {
	lane := store.Lane{Queue: fmt.Sprint("q", round%2)}
	var claims []store.Claim
	var err error
	for range 2 { // what is claimed is not claimed again
		more, failed := s.Claim(ctx, lane, epoch.Add(hour), 1+round%9, math.MaxInt)
		for _, c := range more {
			w.held.note(string(c.Record.Message.Body), fmt.Sprint("with store ", who))
		}
		claims, err = append(claims, more...), errors.Join(err, failed)
	}
	var out []store.Outcome
	for i, c := range claims {
		switch {
		case i%4 == 3:
			w.held.forget(string(c.Record.Message.Body)) // before another may have it
			err = errors.Join(err, s.Release(ctx, claims[i:i+1]))
		case i%4 == 2:
			out = append(out, park(c, "why"))
			w.ended.note(string(c.Key), "parked")
		default:
			out = append(out, done(c))
			w.ended.note(string(c.Key), "finished")
		}
	}
	got, failed := s.Finish(ctx, out)
	if err = errors.Join(err, failed); err != nil || got != len(out) {
		w.ended.t.Errorf("finished %d of %d, %v", got, len(out), err)
	}
}

// changedElsewhere is why a service sees what others add, and what a dead one had:
// it asks for what is due when Changed has a value.
func changedElsewhere(t *testing.T, all []Replica) {
	waits, dies := all[1], all[0]
	// As the scheduler: it has asked, and asks again at a change.
	changed := func(what string) {
		t.Helper()
		for deadline := time.After(minute); ; {
			select {
			case <-waits.Changed():
			case <-deadline:
				t.Fatalf("for a minute Changed had no value for %s; next is %q", what, next(t, waits))
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
	expect.Eventually(t, "nothing is next", nothingNext)
	add(t, dies, Waiting("q", second, "a"))
	changed("what another added")
	want(t, "claimed", bodies(claim(t, dies, "q", hour, 1)), "a")
	expect.Eventually(t, "what another claimed is not next", nothingNext)
	resume := dies.Stall()
	defer resume()
	waits.Expire()
	changed("what came back")
}

// longLease ends when a test says so.
const longLease = hour

// leases are for engines that several processes use at once, here so many.
var leases = []struct {
	name   string
	stores int
	lease  time.Duration
	test   func(*testing.T, []Replica)
}{
	{"stores that work at once account for every record", 3, longLease,
		func(t *testing.T, all []Replica) { workAtOnce(t, all[0], all[1], all[2]) }},
	{"what one store changes another does not claim", 2, longLease, changeElsewhere},
	{"a lease is renewed for as long as its owner lives", 2, second, leaseRenewed},
	{"what a store claimed that stands still comes back, and is its own no more", 2, longLease, leaseLost},
	{"what a store claimed that ended comes back", 2, longLease, ownerEnded},
	{"Changed has a value after others add, and after the claims of a process that died end", 2, longLease,
		changedElsewhere},
}

func leaseRenewed(t *testing.T, all []Replica) {
	add(t, all[0], Waiting("q", 0, "a"), Waiting("q", 1, "b"), Waiting("q", 2, "c"))
	claims := claim(t, all[0], "q", hour, 10)
	for range 2 {
		was := all[1].Ends()
		expect.Eventually(t, "its leases are renewed", func() bool { return all[1].Ends().After(was) })
	}
	finishes(t, all[0], 3, ended(claims, epoch)...)
}

func leaseLost(t *testing.T, all []Replica) {
	stalled, other := all[0], all[1]
	add(t, other, Waiting("q", 0, "retried"), Waiting("q", 1, "parked"), Waiting("q", 2, "released"),
		Waiting("q", 3, "held"))
	old := claim(t, stalled, "q", hour, 10)
	want(t, "claimed", bodies(old), "retried parked released held")
	resume := stalled.Stall()
	defer resume() // before it is closed
	want(t, "next before the leases end", next(t, other), "")
	want(t, "claimed before the leases end", bodies(claim(t, other, "q", hour, 10)), "")
	other.Expire()
	want(t, "next when the leases have ended", next(t, other), "q 0s")
	now := map[string]store.Claim{}
	for i, c := range claim(t, other, "q", hour, 10) {
		now[string(c.Record.Message.Body)] = c
		if slices.ContainsFunc(old, func(o store.Claim) bool { return o.Token == c.Token }) {
			t.Errorf("claim %d has a token that another claim had", i)
		}
	}
	if len(now) != len(old) {
		t.Fatalf("claimed again are %v", now)
	}
	finishes(t, other, 2, done(now["retried"]), park(now["parked"], "by the other"))
	must(t, other.Release(ctx, []store.Claim{now["released"]}))

	resume()
	// Its connections may be gone; what it has received before is not.
	var late int
	expect.Eventually(t, "the stalled store works again", func() bool {
		n, err := stalled.Finish(ctx, append(ended(old[:3], epoch), park(old[3], "too late")))
		late += n
		return err == nil
	})
	same(t, "finished claims whose lease had ended", late, 0)
	must(t, stalled.Release(ctx, old)) // which it holds no more
	want(t, "kept", total(t, other), "2 waiting, 1 parked, 0 discarded")
	kept := Listed(t, other, store.Range{State: store.Parked})
	if len(kept) != 1 || kept[0].Record.ParkedFor != "by the other" {
		t.Errorf("parked: %+v", kept)
	}
	// One is waiting and not claimed; the other is still who has it's.
	again := claim(t, stalled, "q", hour, 10)
	want(t, "claimable", bodies(again), "released")
	finishes(t, stalled, 1, park(old[2], "by an old claim"), done(again[0]))
	finishes(t, other, 1, done(now["held"]))
	if sums := Balances(t, other)["q"]; sums[store.In] != 4 || sums[store.Retried] != 3 || sums[store.Parked] != 1 {
		t.Errorf("the ledger has %v", sums)
	}
}

func ownerEnded(t *testing.T, all []Replica) {
	add(t, all[1], Waiting("q", 0, "a"), Waiting("q", 1, "b"))
	want(t, "claimed", bodies(claim(t, all[0], "q", hour, 10)), "a b")
	must(t, all[0].Close())
	want(t, "they come back", bodies(claim(t, all[1], "q", hour, 10)), "a b")
}

// finish claims up to three records that are due, finishes so many of them, and releases
// the others.
func (n *notes) finish(s store.Store, upTo time.Time, most int) {
	claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, upTo, 3, math.MaxInt)
	if err != nil {
		n.t.Error(err)
	}
	var out []store.Outcome
	for i, c := range claims {
		if c.Record.Due.After(upTo) {
			n.t.Errorf("claimed %s early", c.Key)
		}
		if i == most {
			if err := s.Release(ctx, claims[i:]); err != nil {
				n.t.Error(err)
			}
			break
		}
		n.note(string(c.Key), "finished")
		out = append(out, done(c))
	}
	if finished, err := s.Finish(ctx, out); err != nil || finished != len(out) {
		n.t.Errorf("finished %d of %d, %v", finished, len(out), err)
	}
}

// claimOrChange claims by one store while the other puts off, hastens and deletes: no message is
// claimed by one and changed by the other, none before it is due, and none is lost.
func claimOrChange(t *testing.T, s, other store.Store) {
	const n = 300
	for i := range n {
		add(t, s, Waiting("q", time.Duration(i%7)*second, fmt.Sprint(i)))
	}
	keys := keysIn(t, s, store.Range{})
	ended := notes{t: t, of: map[string]string{}}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 60 {
				ended.finish(s, epoch.Add(3*second), 2)
			}
		})
	}
	for w := range 2 {
		wg.Go(func() {
			for i := 0; i+10 <= len(keys); i += 5 {
				var deleted []store.Key
				_, err := other.Change(ctx, keys[i:i+10], func(k store.Key, r *store.Record) store.Edit {
					switch {
					case r == nil:
						return store.Edit{}
					case r.Due.Second()%3 == w:
						deleted = append(deleted, k)
						return store.Edit{Delete: true}
					}
					r.Due = r.Due.Add(time.Duration(1-2*w) * 2 * second)
					return store.Edit{Keep: true}
				}, nil)
				if err != nil {
					t.Error(err)
				}
				for _, k := range deleted {
					ended.note(string(k), "deleted")
				}
			}
		})
	}
	wg.Wait()
	rest := claim(t, s, "q", hour, n)
	for _, c := range rest {
		ended.note(string(c.Key), "left")
	}
	if ended.count() != n || len(rest) == n {
		t.Errorf("%d of %d are accounted for, %d were left", ended.count(), n, len(rest))
	}
	Balances(t, other)
}

func changeElsewhere(t *testing.T, all []Replica) {
	add(t, all[0], Waiting("other", 0, "mine"))
	mine := claim(t, all[0], "other", hour, 1)
	change(t, all[1], func(k store.Key, r *store.Record) store.Edit {
		if r != nil {
			t.Errorf("%s, which another store claimed, is given to edit", k)
		}
		return store.Edit{Keep: true}
	}, mine[0].Key)
	finish(t, all[0], mine)
	claimOrChange(t, all[0], all[1])
}

// keysIn are the keys of what is in a range.
func keysIn(t *testing.T, s store.Store, r store.Range) (keys []store.Key) {
	t.Helper()
	for _, l := range Listed(t, s, r) {
		keys = append(keys, l.Key)
	}
	return keys
}
