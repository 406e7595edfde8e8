package diskstore_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// same compares all that can be seen.
func (p *pair) same(t *rapid.T) {
	if err := p.disk.Check(); err != nil {
		t.Fatal(err)
	}
	p.alike(t, "next", func(s store.Store) any {
		next, err := s.Next(ctx)
		slices.SortFunc(next, func(a, b store.NextDue) int { return cmp.Compare(a.Lane.String(), b.Lane.String()) })
		return fmt.Sprint(next, err)
	})
	p.alike(t, "counts", func(s store.Store) any {
		counts, err := s.Counts(ctx)
		slices.SortFunc(counts, func(a, b store.QueueCount) int { return cmp.Compare(a.Queue, b.Queue) })
		return fmt.Sprint(counts, err)
	})
	p.alike(t, "ledger", func(s store.Store) any {
		counted, err := s.Ledger(ctx)
		return fmt.Sprint(counted, err)
	})
	p.alike(t, "recount", func(s store.Store) any {
		found, err := s.Recount(ctx)
		return fmt.Sprint(found, err)
	})
	p.alike(t, "receipts", func(s store.Store) any {
		receipts, err := s.Receipts(ctx)
		return fmt.Sprint(receipts, err)
	})
	r := store.Range{NewestFirst: rapid.Bool().Draw(t, "newest first"), Body: true}
	some := func(what string) bool { return rapid.IntRange(0, 2).Draw(t, what) == 0 }
	if some("by state") {
		r.State = aState(t)
	}
	if some("by queue") {
		r.Queues = []string{aQueue(t), aQueue(t)}
	}
	if some("by group") {
		r.Groups = []errorgroup.ID{errorgroup.Of(aQueue(t), "rejected", "e", "").ID, errorgroup.Of(aQueue(t), "rejected", "", "").ID}
	}
	if some("from") {
		r.From = storetest.Waiting("", someTime(t), "").Due
	}
	if some("to") {
		r.To = storetest.Waiting("", someTime(t), "").Due
	}
	most := rapid.IntRange(1, 9).Draw(t, "page")
	p.alike(t, "scan", func(s store.Store) any {
		whole, _, _, err := scanned(s, r, math.MaxInt)
		if err != nil {
			return err
		}
		var paged []string
		for at := r; ; {
			page, cursors, _, err := scanned(s, at, most)
			if paged = append(paged, page...); err != nil || len(page) < most {
				if d := gocmp.Diff(whole, paged); d != "" {
					t.Fatalf("by pages (-whole +paged):\n%s", d)
				}
				return fmt.Sprint(whole, err)
			}
			at.After = cursors[most-1]
		}
	})
	for { // of one hour
		hour := time.Now().Unix() / 3600
		if d := gocmp.Diff(storetest.Groups(t, p.model), storetest.Groups(t, p.disk)); hour == time.Now().Unix()/3600 {
			if d != "" {
				t.Fatalf("groups (-model +disk):\n%s", d)
			}
			break
		}
	}
	p.alike(t, "returned", func(s store.Store) any {
		var all []store.PastFailure
		err := s.EachPastFailure(ctx, func(e store.PastFailure) (bool, error) { all = append(all, e); return true, nil })
		return fmt.Sprintf("%+v %v", all, err)
	})
	if len(p.ids) == 0 {
		return
	}
	id := rapid.SampledFrom(p.ids).Draw(t, "id")
	p.alike(t, "past", func(s store.Store) any {
		all, err := s.PastFailures(ctx, id)
		return fmt.Sprintf("%+v %v", all, err)
	})
	p.alike(t, "find", func(s store.Store) any {
		found, err := s.Find(ctx, id)
		var got []string
		for _, l := range found {
			one, err := s.Get(ctx, l.Key)
			if d := gocmp.Diff(l, one); d != "" || err != nil {
				t.Fatalf("get: %v (-find +get):\n%s", err, d)
			}
			got = append(got, fmt.Sprintf("%+v", *l.Record))
		}
		return fmt.Sprint(got, err)
	})
}

// alike asks both the same.
func (p *pair) alike(t *rapid.T, what string, ask func(store.Store) any) {
	t.Helper()
	if d := gocmp.Diff(ask(p.model), ask(p.disk)); d != "" {
		t.Fatalf("%s (-model +disk):\n%s", what, d)
	}
}
