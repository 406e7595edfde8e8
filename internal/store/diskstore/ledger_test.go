package diskstore_test

import (
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

func lines(t *testing.T, s store.Store) map[string]store.Sums {
	t.Helper()
	all, err := s.Recount(ctx)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]store.Sums{}
	for _, l := range all {
		by[l.Queue] = l.Sums
	}
	return by
}

// A record that vanishes without a trace in any counter is missed.
func TestALostRecordIsMissed(t *testing.T) {
	s := openAt(t, t.TempDir(), diskstore.Options{Reserve: 1})
	defer s.Close()
	if err := s.Add(ctx, batchOf(3, func() time.Duration { return 0 })); err != nil {
		t.Fatal(err)
	}
	storetest.Balances(t, s)
	if err := s.Lose("orders"); err != nil {
		t.Fatal(err)
	}
	if sums := lines(t, s)["orders"]; sums.Off() != 1 {
		t.Errorf("one of three is gone, and it is off by %d: %v", sums.Off(), sums)
	}
	if counted, _ := s.Ledger(ctx); counted[0].Off() != 0 {
		t.Errorf("nothing was counted, and yet %v", counted)
	}
}

// The ledger begins with what is kept, again where what was counted is lost.
func TestTheLedgerBegins(t *testing.T) {
	path := t.TempDir()
	s := openAt(t, path, diskstore.Options{Reserve: 1})
	if err := s.Add(ctx, batchOf(5, func() time.Duration { return 0 })); err != nil {
		t.Fatal(err)
	}
	again := func() store.Sums {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openAt(t, path, diskstore.Options{Reserve: 1})
		return storetest.Balances(t, s)["orders"]
	}
	finishOne := func() {
		t.Helper()
		claims, err := s.Claim(ctx, store.Lane{Queue: "orders"}, farAway, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := s.Finish(ctx, []store.Outcome{{Claim: claims[0]}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	finishOne()
	if got := again(); got != (store.Sums{store.In: 5, store.Waiting: 4, store.Retried: 1}) {
		t.Errorf("opened again: %v", got)
	}
	if err := s.LoseLedger(); err != nil {
		t.Fatal(err)
	}
	if got := again(); got != (store.Sums{store.In: 4, store.Waiting: 4}) {
		t.Errorf("after a loss: %v", got)
	}
	finishOne()
	if got := again(); got != (store.Sums{store.In: 4, store.Waiting: 3, store.Retried: 1}) {
		t.Errorf("from then on: %v", got)
	}
	s.Close()
}
