package storetest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/redrive-mq/redrive/internal/store"
)

func dueOrder(t *testing.T, e Engine) {
	s := open(t, e)
	add(t, s, Waiting("q", 3, "c"), Waiting("q", time.Microsecond, "a"), Waiting("other", 0, "x"))
	add(t, s, Waiting("q", 2*time.Microsecond, "b"), Waiting("q", time.Hour, "d"))
	want(t, "two of three", bodies(claim(t, s, "q", time.Minute, 2)), "c a")
	want(t, "the third", bodies(claim(t, s, "q", time.Minute, 10)), "b")
	add(t, s, Waiting("q", -time.Hour, "first"))
	want(t, "one that is due earlier than what was claimed", bodies(claim(t, s, "q", time.Minute, 10)), "first")
	big := strings.Repeat("x", 1000)
	add(t, s, Waiting("big", 0, big), Waiting("big", 1, big), Waiting("big", 2, big))
	for _, n := range []int{2, 1} {
		got, err := s.Claim(context.Background(), store.Lane{Queue: "big"}, epoch.Add(time.Minute), 10, 2500)
		if err != nil || len(got) != n {
			t.Errorf("claimed %d of 1,000 bytes each within 2,500 bytes, %v; want %d", len(got), err, n)
		}
	}
}

func oneHolder(t *testing.T, e Engine) {
	s := open(t, e)
	const n = 500
	for i := range n {
		add(t, s, Waiting("q", time.Duration(i%7), fmt.Sprint(i)))
	}
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				claims, err := s.Claim(context.Background(), store.Lane{Queue: "q"}, epoch.Add(time.Hour), 7, math.MaxInt)
				if err != nil {
					t.Error(err)
				}
				if len(claims) == 0 {
					return
				}
				mu.Lock()
				for _, c := range claims {
					seen[string(c.Record.Message.Body)]++
				}
				mu.Unlock()
				var out []store.Outcome
				for _, c := range claims {
					out = append(out, store.Outcome{Claim: c})
				}
				if n, err := s.Finish(context.Background(), out); err != nil || n != len(out) {
					t.Errorf("finished %d of %d, %v", n, len(out), err)
				}
			}
		})
	}
	wg.Wait()
	if len(seen) != n {
		t.Errorf("%d of %d were claimed", len(seen), n)
	}
	for b, times := range seen {
		if times != 1 {
			t.Errorf("%s was claimed %d times", b, times)
		}
	}
}

func finished(t *testing.T, e Engine) {
	s := open(t, e)
	ctx := context.Background()
	add(t, s, Waiting("q", 0, "gone"), Waiting("q", time.Microsecond, "parked"), Waiting("q", 2*time.Microsecond, "released"))
	c := claim(t, s, "q", time.Second, 3)
	at := epoch.Add(time.Minute)
	if n, err := s.Finish(ctx, []store.Outcome{{Claim: c[0]}, {Claim: c[1], Park: "why", At: at}}); n != 2 || err != nil {
		t.Fatalf("finished %d, %v", n, err)
	}
	if n, err := s.Finish(ctx, []store.Outcome{{Claim: c[0]}, {Claim: c[1]}}); n != 0 || err != nil {
		t.Errorf("finishing again counted %d, %v: a claim that ended must be left alone", n, err)
	}
	must(t, s.Release(ctx, c[2:]))
	want(t, "waiting", bodies(claim(t, s, "q", time.Second, 3)), "released")
	page, err := List(ctx, s, Filter{State: store.Parked, Body: true})
	if err != nil || len(page.Records) != 1 {
		t.Fatalf("parked: %d, %v", len(page.Records), err)
	}
	r := page.Records[0].Record
	if string(r.Message.Body) != "parked" || r.ParkedFor != "why" || !r.Due.Equal(at) || r.ID != c[1].Record.ID {
		t.Errorf("parked as %+v", r)
	}
}

func notYet(t *testing.T, e Engine) {
	s := open(t, e)
	add(t, s, Waiting("q", time.Second, "a"), Waiting("p", time.Minute, "b"), Waiting("p", time.Hour, "c"), parked("r", "x"))
	select {
	case <-s.Changed():
	default:
		t.Error("Changed has no value after Add")
	}
	want(t, "before it is due", bodies(claim(t, s, "q", time.Second-time.Microsecond, 10)), "")
	next := func() string {
		all, err := s.Next(context.Background())
		must(t, err)
		var out []string
		for _, n := range all {
			out = append(out, n.Queue+" "+n.Due.Sub(epoch).String())
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
	want(t, "next", next(), "p 1m0s, q 1s")
	c := claim(t, s, "p", time.Minute, 10)
	want(t, "next without what is claimed", next(), "p 1h0m0s, q 1s")
	must(t, s.Release(context.Background(), c))
	want(t, "next with what was released", next(), "p 1m0s, q 1s")
}

func crash(t *testing.T, e Engine) {
	if e.Reopen == nil {
		t.Skip("engine " + e.Name + " keeps nothing, and declares that")
	}
	s := open(t, e)
	add(t, s, Waiting("q", 0, "claimed"), Waiting("q", 1, "finished"), Waiting("q", time.Hour, "later"), parked("q", "parked"))
	c := claim(t, s, "q", time.Second, 10)
	if _, err := s.Finish(context.Background(), []store.Outcome{{Claim: c[slices.IndexFunc(c, func(c store.Claim) bool { return string(c.Record.Message.Body) == "finished" })]}}); err != nil {
		t.Fatal(err)
	}
	before, _ := s.Counts(context.Background())
	s = e.Reopen(t, s)
	after, err := s.Counts(context.Background())
	if d := cmp.Diff(before, after); d != "" || err != nil {
		t.Errorf("counts after the crash: %s %v", d, err)
	}
	want(t, "due again", bodies(claim(t, s, "q", time.Second, 10)), "claimed")
	add(t, s, Waiting("q", 0, "new"))
	want(t, "and new ones", bodies(claim(t, s, "q", time.Hour, 10)), "new later")
}
