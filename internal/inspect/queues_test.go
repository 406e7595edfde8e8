package inspect_test

import (
	"fmt"
	"testing"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// At very many names each look shows some of them, with sums of all; the list has each
// name once, a page at a time, whatever it is made of.
func TestQueuesArePaged(t *testing.T) {
	s := memstore.New()
	names := []string{"", "\xbe\xff"}
	for i := range 2*inspect.MostQueues + 300 {
		names = append(names, fmt.Sprintf("invented.%05d", i))
	}
	var all []*store.Record
	for _, name := range names {
		all = append(all, record(name, store.Parked, "x"))
	}
	if err := s.Add(ctx, all); err != nil {
		t.Fatal(err)
	}
	d := newDesk(s)
	o, err := d.Overview(ctx, caller(auth.Viewer))
	if err != nil || len(o.Queues) != 100 || o.MoreQueues != len(names)-100 || o.Parked != int64(len(names)) {
		t.Errorf("the overview has %d queues and %d more, and %d messages: %v", len(o.Queues), o.MoreQueues, o.Parked, err)
	}
	for _, limit := range []int{0, 1, 700} {
		seen, after := map[string]int{}, ""
		for pages := 0; pages == 0 || after != ""; pages++ {
			page, err := d.Queues(ctx, caller(auth.Viewer), inspect.QueueQuery{After: after, Limit: limit})
			if err != nil || page.Total != len(names) {
				t.Fatal(page.Total, err)
			}
			after = page.After
			for _, q := range page.Queues {
				seen[q.Name]++
			}
			if limit == 1 && pages == 5 {
				break
			}
			if most := max(limit, 1); limit > 0 && len(page.Queues) > most || len(page.Queues) > inspect.MostQueues {
				t.Fatalf("a page of %d has %d", limit, len(page.Queues))
			}
		}
		if want := len(names); limit != 1 && len(seen) != want || limit == 1 && len(seen) != 6 {
			t.Errorf("in pages of %d there are %d names of %d", limit, len(seen), want)
		}
		for name, n := range seen {
			if n != 1 {
				t.Errorf("%q is on %d pages", name, n)
			}
		}
	}
	if _, err := d.Queues(ctx, caller(auth.Viewer), inspect.QueueQuery{After: "!"}); err == nil {
		t.Error("a page that none ends with was given")
	}
}
