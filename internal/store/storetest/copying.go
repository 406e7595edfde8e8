package storetest

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/redrive-mq/redrive/internal/store"
)

var takings = []testCase{
	{"what another store kept is copied as it was, once", copying},
}

// Lived gives a store something of everything: records of all kinds, of which some
// came and went, and an operation's outcomes.
func Lived(t *testing.T, s store.Store) {
	t.Helper()
	ctx := context.Background()
	mixed(t, s)
	twin := Everything()
	again := *twin
	add(t, s, twin, &again, failing("q", store.Parked, "order 3 not found"), failing("p", store.Waiting, "order 4 not found"))
	for range 30 {
		add(t, s, Waiting("gone", 0, "gone"), Waiting("q", time.Hour, "later"))
	}
	end(t, s, "gone", epoch, 7)
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		r.Queue = "elsewhere"
		return store.Edit{Keep: true}
	}, keyOf(t, s, "p1"))
	s.CountUnstored("never kept", store.Delayed, 3)
	if err := s.PutEntries(ctx, []store.Entry{{Name: "pause/q", Value: []byte("x")}, {Name: "operation/1", Value: []byte{0, 255}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Remember(ctx, []store.Receipt{{Fingerprint: [16]byte{1}, ID: twin.ID}, {Fingerprint: [16]byte{2}, ID: twin.ID}}); err != nil {
		t.Fatal(err)
	}
}

// all are a store's records, by key.
func all(t *testing.T, s store.Store) (found []store.Listed) {
	t.Helper()
	err := s.Scan(context.Background(), store.Range{Body: true}, func(l store.Listed) (bool, error) {
		l.Cursor = ""
		found = append(found, l)
		return true, nil
	})
	must(t, err)
	slices.SortFunc(found, func(a, b store.Listed) int { return cmp.Compare(a.Key, b.Key) })
	return found
}

// Same compares all that two stores return.
func Same(t *testing.T, want, got store.Store) {
	t.Helper()
	ctx := context.Background()
	compare := func(what string, read func(store.Store) (any, error)) {
		t.Helper()
		a, errA := read(want)
		b, errB := read(got)
		if d := gocmp.Diff(a, b); d != "" || errA != nil || errB != nil {
			t.Errorf("%s: %v %v (-want +got):\n%s", what, errA, errB, d)
		}
	}
	compare("records", func(s store.Store) (any, error) { return all(t, s), nil })
	compare("ledger", func(s store.Store) (any, error) { return s.Ledger(ctx) })
	compare("recount", func(s store.Store) (any, error) { return s.Recount(ctx) })
	compare("groups", func(s store.Store) (any, error) { return Groups(t, s), nil })
	compare("receipts", func(s store.Store) (any, error) { return s.Receipts(ctx) })
	compare("side table", func(s store.Store) (any, error) {
		entries := map[string]string{}
		err := s.Entries(ctx, "", "", func(e store.Entry) (bool, error) { entries[e.Name] = string(e.Value); return true, nil })
		return entries, err
	})
	compare("history", func(s store.Store) (past any, err error) {
		var all []store.PastFailure
		err = s.EachPastFailure(ctx, func(p store.PastFailure) (bool, error) { all = append(all, p); return true, nil })
		return all, err
	})
}

func copying(t *testing.T, e Engine) {
	ctx := context.Background()
	from := open(t, e)
	Lived(t, from)
	to, ok := open(t, e).(store.CopyTarget)
	if !ok {
		t.Fatalf("engine %s takes nothing over", e.Name)
	}
	records := all(t, from)
	for _, batch := range [][]store.Listed{records[:5], records[3:20], records, records[:1]} {
		must(t, to.AddListed(ctx, batch))
		Balances(t, to)
	}
	metadata, err := store.MetadataOf(ctx, from)
	must(t, err)
	for range 2 {
		must(t, to.SetMetadata(ctx, metadata))
	}
	receipts, err := from.Receipts(ctx)
	must(t, err)
	must(t, to.Remember(ctx, receipts))
	must(t, from.Entries(ctx, "", "", func(e store.Entry) (bool, error) { return true, to.PutEntries(ctx, []store.Entry{e}) }))
	Same(t, from, to)
	if r := reopened(t, e, to); r != nil {
		Same(t, from, r)
		to = r.(store.CopyTarget)
	}
	// And life goes on, in both alike: no number is given twice.
	r := Waiting("q", 0, "new")
	for _, s := range []store.Store{from, to} {
		add(t, s, r)
		end(t, s, "q", epoch.Add(time.Minute), 100)
		Balances(t, s)
		if b := newest(t, s); b <= metadata.Newest {
			t.Errorf("a new record has the number %d of an old one", b)
		}
	}
	Same(t, from, to)
}
