package diskstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
)

// Names that nothing is kept for do not cost for ever: beyond a number they are
// forgotten, in memory and on disk, the ledger of the store adds up as before, and that
// of a name that comes again too, also while messages come for it.
func TestQueuesWithNothingLeftAreForgotten(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	s := open(t, dir)
	add := func(names ...string) {
		t.Helper()
		var all []*store.Record
		for _, name := range names {
			all = append(all, &store.Record{ID: uuid.New(), Queue: name, State: store.Waiting, Due: time.Now(), FailedAt: time.Now(), FirstFailed: time.Now()})
		}
		if err := s.Add(ctx, all); err != nil {
			t.Fatal(err)
		}
	}
	finish := func(names ...string) {
		t.Helper()
		var ended []store.Outcome
		for _, name := range names {
			claims, err := s.Claim(ctx, store.Lane{Queue: name}, time.Now(), 10, 1<<20)
			if err != nil || len(claims) == 0 {
				t.Fatal(claims, err)
			}
			for _, c := range claims {
				ended = append(ended, store.Outcome{Claim: c, At: time.Now()})
			}
		}
		if _, err := s.Finish(ctx, ended); err != nil {
			t.Fatal(err)
		}
	}
	lines := func() (names []string, sum store.Sums) {
		t.Helper()
		all, err := s.Ledger(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			if l.Off() != 0 {
				t.Errorf("the line of %s is off by %d: %v", l.Queue, l.Off(), l.Sums)
			}
			names = append(names, l.Queue)
			sum.Add(&l.Sums)
		}
		again, err := s.Recount(ctx)
		if err != nil || !slices.Equal(again, all) {
			t.Errorf("counted again the ledger differs: %v", err)
		}
		return names, sum
	}
	const over = 300
	var names []string
	for i := range store.EmptyLinesKept + over {
		names = append(names, fmt.Sprintf("invented.%04d", i))
	}
	add("kept")
	add(names...)
	finish(names...)
	_, before := lines()

	// While it forgets, messages come for names that it is about to forget.
	var coming sync.WaitGroup
	coming.Go(func() {
		for i := 0; i < over; i += 10 {
			add(names[i])
		}
	})
	if _, err := s.Forget(ctx, time.Now()); err != nil {
		t.Fatal(err)
	}
	coming.Wait()
	before[store.In] += over / 10
	before[store.Waiting] += over / 10
	left, sum := lines()
	if sum != before {
		t.Errorf("the ledger's sums are %v, and were %v", sum, before)
	}
	if n := len(left); n > store.EmptyLinesKept+2+over/10 || !slices.Contains(left, store.OtherQueues) || !slices.Contains(left, "kept") {
		t.Errorf("%d lines are left", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if again, sum := lines(); sum != before || !slices.Equal(again, left) {
		t.Errorf("after a restart there are %d lines, and were %d; the sums are %v, and were %v", len(again), len(left), sum, before)
	}
	finish(names[0])
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir string) *diskstore.Store {
	t.Helper()
	s, err := diskstore.Open(dir, diskstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
