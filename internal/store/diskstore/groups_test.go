package diskstore_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// groupsCount compares what groups count with what is kept.
func groupsCount(t *testing.T, s store.Store) {
	t.Helper()
	kept, counted := map[errorgroup.ID][3]int64{}, map[errorgroup.ID][3]int64{}
	err := s.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) {
		id := s.GroupOf(l.Record)
		n := kept[id]
		n[l.Record.State-1]++
		kept[id] = n
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range storetest.Groups(t, s) {
		if n := [3]int64{g.Waiting, g.Parked, g.Discarded}; n != [3]int64{} {
			counted[g.ID] = n
		}
	}
	if d := cmp.Diff(kept, counted); d != "" {
		t.Errorf("groups count something else than what is kept (-kept +counted):\n%s", d)
	}
}
