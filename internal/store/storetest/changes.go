package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/redrive-mq/redrive/internal/store"
)

var changes = []testCase{
	{"a change moves from any state to any other", changeStates},
	{"a waiting record is claimed at its new time, not before", changeDue},
	{"what is claimed, gone or named twice is nil to edit", changeNil},
	{"a change does what edit returns, adds, and writes entries, in one step", changeOneStep},
	{"nothing is changed on an error", changeNothing},
	{"a change takes no more than its bounds", changeBounds},
	{"what is being changed is not claimed", changeOrClaim},
	{"the side table", sideTable},
	{"what is discarded is forgotten when its time is over", forget},
}

// change changes records, and expects all of them to be taken.
func change(t *testing.T, s store.Store, edit func(store.Key, *store.Record) store.Edit, keys ...store.Key) {
	t.Helper()
	if n, err := s.Change(context.Background(), keys, edit, nil); err != nil || n != len(keys) {
		t.Fatalf("changed %d of %d, %v", n, len(keys), err)
	}
}

// next returns what Next returns, in the order of lanes.
func next(t *testing.T, s store.Store) string {
	t.Helper()
	all, err := s.Next(context.Background())
	must(t, err)
	var out []string
	for _, n := range all {
		out = append(out, n.Lane.String()+" "+n.Due.Sub(epoch).String())
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// total is Counts of all queues together.
func total(t *testing.T, s store.Store) string {
	t.Helper()
	counts, err := s.Counts(context.Background())
	must(t, err)
	var w, p, d int64
	for _, c := range counts {
		w, p, d = w+c.Waiting, p+c.Parked, d+c.Discarded
	}
	return fmt.Sprintf("%d waiting, %d parked, %d discarded", w, p, d)
}

func changeStates(t *testing.T, e Engine) {
	states := []store.State{store.Waiting, store.Parked, store.Discarded}
	for _, from := range states {
		for _, to := range states {
			s := open(t, e)
			r := Everything()
			r.State = from
			add(t, s, r)
			key := keyOf(t, s, string(r.Message.Body))
			for len(s.Changed()) > 0 {
				<-s.Changed()
			}
			change(t, s, func(k store.Key, got *store.Record) store.Edit {
				if d := cmp.Diff(r, got); d != "" || k != key {
					t.Errorf("edit is given for %s (-want +got):\n%s", k, d)
				}
				got.State, got.Due, got.Failures, got.MadeInto, got.Forward = to, epoch.Add(time.Minute), 7, got.ID, nil
				got.Message.Body, got.Message.Headers = []byte("new"), nil
				return store.Edit{Keep: true}
			}, key)
			r.State, r.Due, r.Failures, r.MadeInto, r.Forward = to, epoch.Add(time.Minute), 7, r.ID, nil
			r.Message.Body, r.Message.Headers = []byte("new"), nil
			check := func() {
				t.Helper()
				l, err := s.Get(context.Background(), key)
				if d := cmp.Diff(r, l.Record); d != "" || err != nil {
					t.Errorf("from %d to %d: %v (-want +got):\n%s", from, to, err, d)
				}
				for _, state := range states {
					want(t, "scanned", scan(t, s, store.Range{State: state}), map[bool]string{true: "new"}[state == to])
				}
				want(t, "counted", total(t, s), map[store.State]string{
					store.Waiting: "1 waiting, 0 parked, 0 discarded", store.Parked: "0 waiting, 1 parked, 0 discarded", store.Discarded: "0 waiting, 0 parked, 1 discarded"}[to])
				want(t, "next", next(t, s), map[bool]string{true: r.Queue + " 1m0s"}[to == store.Waiting])
			}
			check()
			if to == store.Waiting && len(s.Changed()) == 0 {
				t.Error("Changed has no value when something began to wait")
			}
			if s = reopened(t, e, s); s != nil {
				check()
			}
		}
	}
}

func changeDue(t *testing.T, e Engine) {
	s := open(t, e)
	add(t, s, Waiting("q", time.Minute, "a"), Waiting("q", time.Hour, "b"), Waiting("p", time.Minute, "c"))
	to := func(due time.Duration, body string) {
		change(t, s, func(_ store.Key, r *store.Record) store.Edit {
			r.Due = epoch.Add(due)
			return store.Edit{Keep: true}
		}, keyOf(t, s, body))
	}
	to(2*time.Hour, "a")
	want(t, "next when the first was put off", next(t, s), "p 1m0s, q 1h0m0s")
	to(time.Second, "b")
	want(t, "next when one was hastened", next(t, s), "p 1m0s, q 1s")
	want(t, "too early", bodies(claim(t, s, "q", time.Second-time.Microsecond, 10)), "")
	want(t, "in time", bodies(claim(t, s, "q", time.Second, 10)), "b")
	want(t, "not yet", bodies(claim(t, s, "q", 2*time.Hour-time.Microsecond, 10)), "")
	to(-time.Hour, "a")
	want(t, "hastened to before what was claimed", bodies(claim(t, s, "q", 0, 10)), "a")
	to(time.Hour, "c")
	want(t, "next when the only one was put off", next(t, s), "p 1h0m0s")
}

func changeNil(t *testing.T, e Engine) {
	s := open(t, e)
	add(t, s, Waiting("q", 0, "claimed"), Waiting("q", time.Hour, "free"), parked("q", "parked"))
	free, claimed, twice := keyOf(t, s, "free"), keyOf(t, s, "claimed"), keyOf(t, s, "parked")
	claims := claim(t, s, "q", 0, 10)
	var got []string
	edit := func(k store.Key, r *store.Record) store.Edit {
		text := "nil"
		if r != nil {
			text = string(r.Message.Body)
			r.Failures++
		}
		got = append(got, text)
		return store.Edit{Keep: true, Delete: r == nil}
	}
	change(t, s, edit, slices.Concat([]store.Key{claimed, free, free, twice, twice}, noKeys)...)
	want(t, "given to edit", strings.Join(got, " "), "nil free nil parked nil"+strings.Repeat(" nil", len(noKeys)))
	if l, err := s.Get(context.Background(), free); err != nil || l.Record.Failures != 2 {
		t.Errorf("named twice: %+v, %v", l.Record, err)
	}
	if n, err := s.Finish(context.Background(), []store.Outcome{{Claim: claims[0]}}); n != 1 || err != nil {
		t.Errorf("finished %d, %v: a change of what is claimed must not end the claim", n, err)
	}
	got = nil
	change(t, s, edit, claimed)
	want(t, "given to edit when it was retried", strings.Join(got, " "), "nil")
	claims = claim(t, s, "q", time.Hour, 10)
	must(t, s.Release(context.Background(), claims))
	got = nil
	change(t, s, edit, free)
	want(t, "given to edit when it was released", strings.Join(got, " "), "free")
}

func changeOneStep(t *testing.T, e Engine) {
	s, ctx := open(t, e), context.Background()
	add(t, s, parked("q", "keep"), parked("q", "delete"), parked("q", "leave"))
	var keys []store.Key
	for _, body := range []string{"keep", "delete", "leave"} {
		keys = append(keys, keyOf(t, s, body))
	}
	if err := s.PutEntries(ctx, []store.Entry{{Name: "old", Value: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	receipts, _ := s.Receipts(ctx)
	n, err := s.Change(ctx, keys, func(_ store.Key, r *store.Record) store.Edit {
		r.Failures = 9
		r.State = store.Waiting
		body := string(r.Message.Body)
		copied := *r
		copied.Message.Body, copied.Fingerprint = []byte("copy of "+body), [16]byte{1}
		return store.Edit{Keep: body == "keep", Delete: body == "delete", Add: []*store.Record{&copied}}
	}, func(n int) []store.Entry {
		return []store.Entry{{Name: "n", Value: fmt.Append(nil, n)}, {Name: "old"}}
	})
	if n != 3 || err != nil {
		t.Fatal(n, err)
	}
	check := func() {
		t.Helper()
		want(t, "all", scan(t, s, store.Range{}), "keep leave copy of keep copy of delete copy of leave")
		want(t, "left alone", scan(t, s, store.Range{State: store.Parked}), "leave")
		if l, err := s.Get(ctx, keys[2]); err != nil || l.Record.Failures != 1 {
			t.Errorf("left alone, and yet %+v, %v", l.Record, err)
		}
		want(t, "entries", entries(t, s, "", ""), "n=3")
		want(t, "counts", total(t, s), "4 waiting, 1 parked, 0 discarded")
		if now, _ := s.Receipts(ctx); !slices.Equal(now, receipts) {
			t.Error("what a person adds was never delivered, and has no receipt")
		}
	}
	check()
	if again := reopened(t, e, s); again != nil {
		s = again
		check()
	}
	want(t, "added ones are claimed", bodies(claim(t, s, "q", 0, 10)), "keep copy of keep copy of delete copy of leave")
	if n, err := s.Change(ctx, nil, nil, func(n int) []store.Entry { return []store.Entry{{Name: "n"}} }); n != 0 || err != nil {
		t.Errorf("no keys: %d, %v", n, err)
	}
	want(t, "entries of a change of nothing", entries(t, s, "", ""), "")
}

func changeNothing(t *testing.T, e Engine) {
	s, ctx := open(t, e), context.Background()
	add(t, s, Waiting("q", 0, "a"), parked("q", "b"))
	keys := []store.Key{keyOf(t, s, "a"), keyOf(t, s, "b")}
	for name, spoil := range map[string]func(*store.Record) store.Edit{
		"another id":      func(r *store.Record) store.Edit { r.ID[0]++; return store.Edit{Keep: true} },
		"no state":        func(r *store.Record) store.Edit { r.State = 0; return store.Edit{Keep: true} },
		"a state unknown": func(r *store.Record) store.Edit { r.State = 4; return store.Edit{Keep: true} },
		"added with none": func(r *store.Record) store.Edit { return store.Edit{Add: []*store.Record{{Queue: "q"}}} },
		"a name too long": func(r *store.Record) store.Edit { r.Queue = strings.Repeat("q", 256); return store.Edit{Keep: true} },
		"added to such one": func(r *store.Record) store.Edit {
			return store.Edit{Add: []*store.Record{Waiting(strings.Repeat("q", 256), 0, "")}}
		},
	} {
		_, err := s.Change(ctx, keys, func(k store.Key, r *store.Record) store.Edit {
			if k == keys[1] {
				return spoil(r)
			}
			return store.Edit{Delete: true}
		}, func(int) []store.Entry { return []store.Entry{{Name: "x", Value: []byte("y")}} })
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	want(t, "all", scan(t, s, store.Range{}), "a b")
	want(t, "entries", entries(t, s, "", ""), "")
	want(t, "counts", total(t, s), "1 waiting, 1 parked, 0 discarded")
	want(t, "next", next(t, s), "q 0s")
	want(t, "claimed", bodies(claim(t, s, "q", 0, 10)), "a")
}

func changeBounds(t *testing.T, e Engine) {
	s, ctx := open(t, e), context.Background()
	big := make([]byte, store.ChangeBytes/2)
	for range 3 {
		add(t, s, parked("big", string(big)))
	}
	for range 5 {
		var many []*store.Record
		for i := range 201 {
			many = append(many, Waiting("many", time.Duration(i)*time.Second, "x"))
		}
		add(t, s, many...)
	}
	for queue, most := range map[string]int{"big": 2, "many": store.ChangeMost} {
		keys := keysIn(t, s, store.Range{Queues: []string{queue}})
		edits, entered := 0, 0
		n, err := s.Change(ctx, keys, func(store.Key, *store.Record) store.Edit {
			edits++
			return store.Edit{Delete: true}
		}, func(n int) []store.Entry { entered = n; return nil })
		if n != most || edits != most || entered != most || err != nil {
			t.Errorf("%s: took %d of %d, %d edits, entered %d, %v; want %d", queue, n, len(keys), edits, entered, err, most)
		}
	}
	want(t, "left", total(t, s), "5 waiting, 1 parked, 0 discarded")
	if n := len(claim(t, s, "many", time.Hour, 10)); n != 5 {
		t.Errorf("%d are claimed of the 5 that were left", n)
	}
}

func forget(t *testing.T, e Engine) {
	s := open(t, e)
	const n = 600 // more than a step
	var all []*store.Record
	for i := range n {
		all = append(all, discarded("q", time.Duration(i)*time.Microsecond, "x"))
	}
	add(t, s, all...)
	add(t, s, parked("q", "parked"), Waiting("q", 0, "waiting"), discarded("p", -time.Hour, "p"), discarded("p", time.Hour, "later"))
	now := epoch.Add((n - 2) * time.Microsecond)
	if got, err := s.Forget(context.Background(), now); got != n || err != nil {
		t.Errorf("forgot %d, %v; want %d", got, err, n)
	}
	want(t, "left", scan(t, s, store.Range{}), "parked waiting x later")
	want(t, "counts", total(t, s), "1 waiting, 1 parked, 2 discarded")
	if got, err := s.Forget(context.Background(), now); got != 0 || err != nil {
		t.Errorf("forgot %d more, %v", got, err)
	}
	if again := reopened(t, e, s); again != nil {
		want(t, "after a crash", scan(t, again, store.Range{}), "parked waiting x later")
	}
}
