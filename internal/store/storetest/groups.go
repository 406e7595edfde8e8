package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

var groups = []testCase{
	{"groups count what is kept with the same error", groupCounts},
	{"groups know when their failures were", groupTimes},
	{"a group of which nothing is kept is listed for a day", groupForADay},
	{"a group has its note", groupNote},
	{"groups are bounded, and what is beyond is counted too", groupBound},
	{"groups are the same after a crash", groupCrash},
}

// Groups returns what a store counts of its groups at one hour, in the order of IDs.
func Groups(t fataler, s store.Store) []store.GroupCount {
	for {
		hour := time.Now().Unix() / 3600
		all, err := s.Groups(context.Background())
		must(t, err)
		if hour == time.Now().Unix()/3600 {
			slices.SortFunc(all, func(a, b store.GroupCount) int { return cmp.Compare(a.ID.String(), b.ID.String()) })
			return all
		}
	}
}

// wantGroups compares queue, pattern or reason, and counts, in the order of these.
func wantGroups(t *testing.T, s store.Store, when string, wanted ...string) {
	t.Helper()
	var got []string
	for _, g := range Groups(t, s) {
		got = append(got, fmt.Sprintf("%s/%s%s%s %d %d %d", g.Queue, g.Pattern, g.Reason, g.Type, g.Waiting, g.Parked, g.Discarded))
	}
	slices.Sort(got)
	if d := gocmp.Diff(wanted, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", when, d)
	}
}

// failing makes a record of an error.
func failing(queue string, state store.State, errText string) *store.Record {
	r := Waiting(queue, 0, errText)
	r.State, r.Error = state, errText
	return r
}

func groupCounts(t *testing.T, e Engine) {
	s := open(t, e)
	ctx := context.Background()
	add(t, s, failing("q", store.Waiting, "order 1 not found"), failing("q", store.Waiting, "order 22 not found"), failing("q", store.Waiting, ""),
		failing("q", store.Parked, "order 3 not found"), failing("p", store.Parked, "order 4 not found"), failing("q", store.Discarded, "no stock"))
	wantGroups(t, s, "at first", "p/order # not found 0 1 0", "q/no stock 0 0 1", "q/order # not found 2 1 0", "q/rejected 1 0 0")

	late := failing("q", store.Parked, "order 9 not found")
	late.Reason = "reported"
	add(t, s, late)
	for _, g := range Groups(t, s) {
		want := []string{"rejected"}
		if g.Queue == "q" && g.Pattern == "order # not found" {
			want = append(want, "reported")
		}
		if got := g.Reasons.Names(); !slices.Equal(got, want) {
			t.Errorf("%s of %s failed for %q, want %q", g.Pattern, g.Queue, got, want)
		}
	}
	if _, err := s.Change(ctx, []store.Key{keyOf(t, s, "order 9 not found")}, func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, nil); err != nil {
		t.Fatal(err)
	}

	c := claim(t, s, "q", time.Second, 3)
	wantGroups(t, s, "with claims", "p/order # not found 0 1 0", "q/no stock 0 0 1", "q/order # not found 2 1 0", "q/rejected 1 0 0")
	if _, err := s.Finish(ctx, []store.Outcome{{Claim: c[0]}, {Claim: c[1], Park: "why", At: epoch}, {Claim: c[2]}, {Claim: c[2]}}); err != nil {
		t.Fatal(err)
	}
	wantGroups(t, s, "finished", "p/order # not found 0 1 0", "q/no stock 0 0 1", "q/order # not found 0 2 0", "q/rejected 0 0 0")
	if _, err := Replay(ctx, s, "q", epoch); err != nil {
		t.Fatal(err)
	}
	wantGroups(t, s, "replayed", "p/order # not found 0 1 0", "q/no stock 0 0 1", "q/order # not found 2 0 0", "q/rejected 0 0 0")

	// A person makes one of them another, adds one, and deletes one.
	_, err := s.Change(ctx, keysIn(t, s, store.Range{}), func(_ store.Key, r *store.Record) store.Edit {
		switch r.Error {
		case "no stock":
			r.State, r.Error = store.Waiting, "order 5 not found"
			return store.Edit{Keep: true, Add: []*store.Record{failing("p", store.Parked, "no stock")}}
		case "order 4 not found":
			return store.Edit{Delete: true}
		}
		return store.Edit{}
	}, nil)
	must(t, err)
	wantGroups(t, s, "changed", "p/no stock 0 1 0", "p/order # not found 0 0 0", "q/no stock 0 0 0", "q/order # not found 3 0 0", "q/rejected 0 0 0")
	for _, g := range Groups(t, s) {
		if g.Pattern == "no stock" && g.Queue == "p" && g.Hours != [24]int64{} {
			t.Error("what a person added is counted as a failure")
		}
	}
}

func groupTimes(t *testing.T, e Engine) {
	s := open(t, e)
	now := time.Now()
	for _, ago := range []time.Duration{0, 0, 90 * time.Minute, 30 * time.Hour, -time.Hour} {
		r := failing("q", store.Waiting, "e")
		r.FailedAt = now.Add(-ago)
		add(t, s, r)
	}
	unknown := failing("q", store.Waiting, "e")
	unknown.FailedAt = time.Time{}
	add(t, s, unknown)
	var g store.GroupCount
	var shown int64
	for shown = now.Unix() / 3600; ; shown = time.Now().Unix() / 3600 {
		if g = Groups(t, s)[0]; shown == time.Now().Unix()/3600 {
			break
		}
	}
	var hours [24]int64
	total := int64(0)
	for i, n := range g.Hours {
		hours[i] = n
		total += n
	}
	// One that failed in the future failed now: some clock was wrong.
	if at := 23 - (shown - now.Unix()/3600); hours[at] < 2 || total != 4 {
		t.Errorf("hours %v", g.Hours)
	}
	if at := 23 - (shown - now.Add(-90*time.Minute).Unix()/3600); hours[at] < 1 {
		t.Errorf("hours %v", g.Hours)
	}
	if first := g.First.Sub(now.Add(-30 * time.Hour)); first > 0 || first <= -time.Minute {
		t.Errorf("first %s", g.First)
	}
	if g.Last.Before(now.Add(-time.Minute)) || g.Last.After(time.Now()) {
		t.Errorf("last %s", g.Last)
	}
}

func groupForADay(t *testing.T, e Engine) {
	s := open(t, e)
	old, recent, kept := failing("q", store.Waiting, "old"), failing("q", store.Waiting, "recent"), failing("p", store.Parked, "kept")
	old.FailedAt, recent.FailedAt, kept.FailedAt = time.Now().Add(-25*time.Hour), time.Now().Add(-time.Hour), old.FailedAt
	kept.FailedAt = old.FailedAt
	add(t, s, old, recent, kept)
	wantGroups(t, s, "kept", "p/kept 0 1 0", "q/old 1 0 0", "q/recent 1 0 0")
	var out []store.Outcome
	for _, c := range claim(t, s, "q", 0, 2) {
		out = append(out, store.Outcome{Claim: c})
	}
	if _, err := s.Finish(context.Background(), out); err != nil {
		t.Fatal(err)
	}
	wantGroups(t, s, "retried", "p/kept 0 1 0", "q/recent 0 0 0")
}

func groupNote(t *testing.T, e Engine) {
	s := open(t, e)
	add(t, s, failing("q", store.Parked, "noted"), failing("q", store.Parked, "not"))
	id := errorgroup.Of("q", "", "noted", "").ID
	if err := s.PutEntries(context.Background(), []store.Entry{{Name: "group/" + id.String() + "/note", Value: []byte("call Ann")}}); err != nil {
		t.Fatal(err)
	}
	for _, g := range Groups(t, s) {
		want(t, "note of "+g.Pattern, g.Note, map[string]string{"noted": "call Ann"}[g.Pattern])
	}
}

// word is the nth word of letters only.
func word(n int) string {
	var b []byte
	for range 5 {
		b = append(b, byte('a'+n%26))
		n /= 26
	}
	return string(b)
}

func groupBound(t *testing.T, e Engine) {
	s := open(t, e)
	ctx := context.Background()
	for from := 0; from < store.GroupsKept; from += 1000 {
		var batch []*store.Record
		for i := range 1000 {
			batch = append(batch, failing("many", store.Parked, "no "+word(from+i)))
		}
		add(t, s, batch...)
	}
	beyond := func(text string) *store.Record { return failing("q", store.Parked, text) }
	add(t, s, beyond("a"), beyond("b"), failing("many", store.Parked, "no "+word(7)))
	others := func() (found []store.GroupCount) {
		all := Groups(t, s)
		if len(all) > store.GroupsKept+1 {
			t.Fatalf("%d groups", len(all))
		}
		for _, g := range all {
			if g.Queue == "q" {
				found = append(found, g)
			}
			if g.Pattern == "no "+word(7) && g.Parked != 2 {
				t.Errorf("one of those known has %d", g.Parked)
			}
		}
		return found
	}
	found := others()
	if len(found) != 1 || found[0].Parked != 2 || !strings.Contains(found[0].Pattern, "other errors") {
		t.Fatalf("beyond the bound: %+v", found)
	}
	id := found[0].ID
	want(t, "looked for by that group", scan(t, s, store.Range{Groups: []errorgroup.ID{id}}), "a b")
	if got := s.GroupOf(beyond("a")); got != id {
		t.Errorf("it counts in %s, not in %s", got, id)
	}
	// Where there is room again, those that were beyond are still counted together.
	forget := func(r store.Range) {
		t.Helper()
		if _, err := s.Change(ctx, keysIn(t, s, r), func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, nil); err != nil {
			t.Fatal(err)
		}
	}
	if e.Reopen != nil {
		s = e.Reopen(t, s)
	}
	forget(store.Range{Groups: []errorgroup.ID{errorgroup.Of("many", "", "no "+word(8), "").ID}})
	add(t, s, beyond("b"), beyond("c"))
	if found = others(); len(found) != 1 || found[0].Parked != 4 {
		t.Errorf("with two more: %+v", found)
	}
	forget(store.Range{Groups: []errorgroup.ID{id}})
	if found = others(); len(found) != 1 || found[0].Parked != 0 {
		t.Errorf("all gone: %+v", found)
	}
}

func groupCrash(t *testing.T, e Engine) {
	if e.Reopen == nil {
		t.Skip("engine " + e.Name + " keeps nothing, and declares that")
	}
	s := open(t, e)
	now := time.Now()
	for i := range 100 {
		r := failing("q", store.Waiting, []string{"", "no stock", "order 7 not found"}[i%3])
		r.FailedAt = now.Add(-time.Duration(i) * 20 * time.Minute)
		add(t, s, r)
	}
	var out []store.Outcome
	for i, c := range claim(t, s, "q", 0, 50) {
		out = append(out, store.Outcome{Claim: c, Park: []string{"", "why"}[i%2], At: epoch})
	}
	if _, err := s.Finish(context.Background(), out); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		before, hour := Groups(t, s), time.Now().Unix()/3600
		s = e.Reopen(t, s)
		after := Groups(t, s)
		if d := gocmp.Diff(before, after); d != "" && hour == time.Now().Unix()/3600 {
			t.Errorf("after the crash (-before +after):\n%s", d)
		}
	}
}
