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

// workAtOnce adds by each of three stores while each claims, finishes and releases.
func workAtOnce(t *testing.T, e Engine) {
	all := replicas(t, e, 3, longLease)
	const each = 200
	n := each * len(all)
	w := work{holders: holders{t: t, by: map[string]int{}}, finished: map[string]int{}}
	var wg sync.WaitGroup
	for who, s := range all {
		wg.Go(func() { w.add(s, who, each) })
		wg.Go(func() {
			deadline := time.Now().Add(time.Minute)
			for round := 0; w.done() < n; round++ {
				if time.Now().After(deadline) {
					t.Errorf("after a minute store %d still misses some", who)
					return
				}
				if err := w.round(s, who, round); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if len(w.finished) != n {
		t.Errorf("%d of %d were finished", len(w.finished), n)
	}
	for body, times := range w.finished {
		if times != 1 {
			t.Errorf("%s was finished %d times", body, times)
		}
	}
	var in, retried int64
	for _, sums := range Balances(t, all[1]) {
		in += sums[store.In]
		retried += sums[store.Retried]
	}
	if in != int64(n) || retried != int64(n-w.parks) {
		t.Errorf("the ledger has %d that arrived and %d that were retried, want %d and %d", in, retried, n, n-w.parks)
	}
	want(t, "kept", total(t, all[2]), fmt.Sprintf("0 waiting, %d parked, 0 discarded", w.parks))
}

// work is what stores do at once.
type work struct {
	holders
	finished map[string]int // how often, by a record's body
	parks    int
}

// add adds n records to two queues.
func (w *work) add(s store.Store, who, n int) {
	const batch = 20
	for i := 0; i < n; i += batch {
		var records []*store.Record
		for j := range batch {
			records = append(records, Waiting(fmt.Sprint("q", j%2), time.Duration(j), fmt.Sprintf("%d-%d", who, i+j)))
		}
		if err := s.Add(context.Background(), records); err != nil {
			w.t.Error(err)
			return
		}
	}
}

// done is how many records are finished.
func (w *work) done() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.finished)
}

// round claims some records. Of each four it finishes two, parks one and releases one.
func (w *work) round(s store.Store, who, round int) error {
	ctx := context.Background()
	claims, err := s.Claim(ctx, store.Lane{Queue: fmt.Sprint("q", round%2)}, epoch.Add(time.Hour), 1+round%9, math.MaxInt)
	if err != nil {
		return err
	}
	w.take(who, claims)
	w.drop(claims)
	var out []store.Outcome
	for i, c := range claims {
		switch {
		case i%4 == 3:
			if err := s.Release(ctx, claims[i:i+1]); err != nil {
				w.t.Error(err)
			}
		case i%4 == 2:
			out = append(out, store.Outcome{Claim: c, Park: "why", At: epoch})
		default:
			out = append(out, store.Outcome{Claim: c, At: epoch})
		}
	}
	if got, err := s.Finish(ctx, out); err != nil || got != len(out) {
		w.t.Errorf("finished %d of %d, %v", got, len(out), err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range out {
		w.finished[string(o.Claim.Record.Message.Body)]++
		if o.Park != "" {
			w.parks++
		}
	}
	return nil
}

// changedElsewhere is why a service sees what others add, and what a dead one had:
// it asks for what is due when Changed has a value.
func changedElsewhere(t *testing.T, e Engine) {
	all := replicas(t, e, 2, longLease)
	waits, dies := all[1], all[0]
	// As the scheduler: it has asked, and asks again at a change.
	changed := func(what string) {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
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
	eventually(t, "nothing is next", nothingNext)
	add(t, dies, Waiting("q", time.Second, "a"))
	changed("what another added")
	want(t, "claimed", bodies(claim(t, dies, "q", time.Hour, 1)), "a")
	eventually(t, "what another claimed is not next", nothingNext)
	resume := dies.Stall()
	defer resume()
	waits.Expire()
	changed("what came back")
}
