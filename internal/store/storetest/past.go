package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

var past = []testCase{
	{"what ended is known by its id, oldest first", pastByID},
	{"pastFailures are visited from the newest on", pastNewest},
	{"pastFailures are there after a crash", pastCrash},
	{"what ends is kept or past, at every moment", pastWithoutGap},
}

// end finishes what is due as done, in batches.
func end(t *testing.T, s store.Store, queue string, at time.Time, batch int) {
	t.Helper()
	for {
		claims := claim(t, s, queue, time.Hour, batch)
		if len(claims) == 0 {
			return
		}
		var out []store.Outcome
		for _, c := range claims {
			out = append(out, store.Outcome{Claim: c, At: at})
		}
		if n, err := s.Finish(context.Background(), out); err != nil || n != len(out) {
			t.Fatal(n, err)
		}
	}
}

func pastOf(t *testing.T, s store.Store, id uuid.UUID) []store.PastFailure {
	t.Helper()
	all, err := s.PastFailures(context.Background(), id)
	must(t, err)
	return all
}

func pastWithoutGap(t *testing.T, e Engine) {
	s := open(t, e)
	ctx := context.Background()
	var all []*store.Record
	for range 200 {
		all = append(all, Waiting("q", 0, "x"))
	}
	add(t, s, all...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end(t, s, "q", epoch, 1)
	}()
	for _, r := range all { // as they are ended
		for kept := 1; kept > 0; {
			found, err := s.Find(ctx, r.ID)
			must(t, err)
			if kept = len(found); kept == 0 && len(pastOf(t, s, r.ID)) == 0 {
				t.Errorf("%s is nowhere", r.ID)
			}
		}
	}
	<-ended
}

func pastByID(t *testing.T, e Engine) {
	s := open(t, e)
	ctx := context.Background()
	r := Waiting("q", time.Second, "")
	r.Policy, r.Error = "p", strings.Repeat("ü", 150)
	wanted := store.PastFailure{ID: r.ID, Queue: "q", Failures: 1, Reason: "rejected", Error: strings.Repeat("ü", 100), Policy: "p",
		FailedAt: epoch, Due: r.Due, Ended: epoch.Add(time.Minute), Ending: store.EndedRetried}
	add(t, s, Waiting("q", 0, ""), r, Waiting("q", 2*time.Second, ""))
	end(t, s, "q", wanted.Ended, 10)
	if d := cmp.Diff([]store.PastFailure{wanted}, pastOf(t, s, r.ID)); d != "" {
		t.Errorf("retried (-want +got):\n%s", d)
	}

	again := *r
	again.Failures, again.Error, again.Forward, again.FailedAt = 2, "", &store.Destination{Exchange: "x"}, time.Time{}
	add(t, s, &again)
	if n, err := s.Finish(ctx, []store.Outcome{{Claim: claimLane(t, s, again.Lane(), time.Hour, 1)[0], At: epoch.Add(time.Hour)}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	second := wanted
	second.Failures, second.Error, second.FailedAt, second.Ended, second.Ending = 2, "", time.Time{}, epoch.Add(time.Hour), store.EndedForwarded
	if d := cmp.Diff([]store.PastFailure{wanted, second}, pastOf(t, s, r.ID)); d != "" {
		t.Errorf("forwarded (-want +got):\n%s", d)
	}

	// What is parked or discarded has not ended; what is forgotten has.
	gone, still, kept := discarded("q", time.Second, ""), discarded("q", time.Hour, ""), Waiting("q", 0, "")
	add(t, s, gone, still, kept)
	if _, err := s.Finish(ctx, []store.Outcome{{Claim: claim(t, s, "q", 0, 1)[0], Park: "why", At: epoch}}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Forget(ctx, epoch.Add(time.Minute)); n != 1 || err != nil {
		t.Fatalf("forgot %d, %v", n, err)
	}
	if p := pastOf(t, s, gone.ID); len(p) != 1 || p[0].Ending != store.EndedDiscarded || !p[0].Ended.Equal(gone.Due) {
		t.Errorf("forgotten: %+v", p)
	}
	for _, id := range []uuid.UUID{still.ID, kept.ID, uuid.New(), {}} {
		if p := pastOf(t, s, id); len(p) != 0 {
			t.Errorf("%+v has not ended", p)
		}
	}
}

func pastNewest(t *testing.T, e Engine) {
	s := open(t, e)
	ctx := context.Background()
	var ids []uuid.UUID
	for i := range 1500 {
		r := Waiting("q", time.Duration(i), "")
		r.Failures = i
		ids = append(ids, r.ID)
		add(t, s, r)
		if i == 3 || i == 4 || i == 999 {
			end(t, s, "q", epoch, 1000)
		}
	}
	end(t, s, "q", epoch, 1000)
	next := len(ids)
	err := s.EachPastFailure(ctx, func(p store.PastFailure) (bool, error) {
		if next--; next < 0 || p.ID != ids[next] || p.Failures != next {
			return false, fmt.Errorf("number %d is %+v", next, p)
		}
		if next%500 == 0 {
			if all := pastOf(t, s, p.ID); len(all) != 1 || all[0] != p {
				t.Errorf("%+v by its id: %+v", p, all)
			}
		}
		return true, nil
	})
	if err != nil || next != 0 {
		t.Errorf("%d were left out, %v", next, err)
	}
	n, why := 0, errors.New("no")
	if err := s.EachPastFailure(ctx, func(store.PastFailure) (bool, error) { n++; return n < 3, nil }); n != 3 || err != nil {
		t.Errorf("visited %d, %v", n, err)
	}
	if err := s.EachPastFailure(ctx, func(store.PastFailure) (bool, error) { return true, why }); !errors.Is(err, why) {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.EachPastFailure(ended, func(store.PastFailure) (bool, error) { return true, nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func pastCrash(t *testing.T, e Engine) {
	if e.Reopen == nil {
		t.Skip("engine " + e.Name + " keeps nothing, and declares that")
	}
	s := open(t, e)
	var ids, seen []uuid.UUID
	for range 4 {
		for range 3 {
			r := Waiting("q", 0, "")
			ids = append(ids, r.ID)
			add(t, s, r)
		}
		end(t, s, "q", epoch, 2)
		s = e.Reopen(t, s)
	}
	if err := s.EachPastFailure(context.Background(), func(p store.PastFailure) (bool, error) { seen = append(seen, p.ID); return true, nil }); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(seen)
	if d := cmp.Diff(ids, seen); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, id := range ids {
		if p := pastOf(t, s, id); len(p) != 1 {
			t.Errorf("%s ended %d times", id, len(p))
		}
	}
}
