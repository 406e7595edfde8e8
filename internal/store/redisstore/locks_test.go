package redisstore_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

var errCrash = errors.New("crashed")

// keys are those of all records.
func keys(t *testing.T, s store.Store) (all []store.Key) {
	t.Helper()
	err := s.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) {
		all = append(all, l.Key)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Of a Change whose process ends before it is done nothing is there, and nothing stays
// locked; of one that is done all: the records and its account.
func TestACrashInAChangeLeavesNothingLocked(t *testing.T) {
	for _, at := range []string{"apply", "never"} {
		t.Run(at, func(t *testing.T) {
			server := start(t, "")
			s := openAt(t, server.options())
			for range 4 {
				add(t, s, 3)
			}
			s.Steps(func(step string) error {
				if step == at {
					return errCrash
				}
				return nil
			})
			all := keys(t, s)
			// A third is deleted, one moved and copied, one left alone.
			n, err := s.Change(ctx, all, func(k store.Key, r *store.Record) store.Edit {
				switch string(r.Message.Body) {
				case "0":
					return store.Edit{Delete: true}
				case "1":
					copied := *r
					copied.Queue = "copies"
					r.State, r.Queue = store.Parked, "moved"
					return store.Edit{Keep: true, Add: []*store.Record{&copied}}
				}
				return store.Edit{}
			}, func(n int) []store.Entry {
				return []store.Entry{{Name: "account", Value: fmt.Append(nil, n)}}
			})
			if at == "apply" && !errors.Is(err, errCrash) || at != "apply" && (err != nil || n != len(all)) {
				t.Errorf("changed %d, %v", n, err)
			}
			other := openAt(t, server.options())
			server.age(t)
			for range 2 {
				if err := other.Recover(ctx); err != nil {
					t.Fatal(err)
				}
			}
			account, err := other.Entry(ctx, "account")
			want := map[bool]string{true: "", false: fmt.Sprint(len(all))}[at == "apply"]
			if string(account) != want || err != nil {
				t.Errorf("the account says %q, %v", account, err)
			}
			got := map[string]int64{}
			counts, err := other.Counts(ctx)
			for _, c := range counts {
				got[c.Queue+" waiting"], got[c.Queue+" parked"] = c.Waiting, c.Parked
			}
			wanted := "map[copies parked:0 copies waiting:4 moved parked:4 moved waiting:0 q parked:0 q waiting:4]"
			if at == "apply" {
				wanted = "map[q parked:0 q waiting:12]"
			}
			if fmt.Sprint(got) != wanted || err != nil {
				t.Errorf("%v, %v; want %s", got, err, wanted)
			}
			storetest.Balances(t, other)
			// Nothing stays locked.
			if n := len(claim(t, other, 100)); int64(n) != got["q waiting"] {
				t.Errorf("%d of %d can be claimed", n, got["q waiting"])
			}
			left := 0
			if _, err := other.Change(ctx, keys(t, other), func(_ store.Key, r *store.Record) store.Edit {
				if r != nil {
					left++
				}
				return store.Edit{}
			}, nil); err != nil || left != int(got["moved parked"]+got["copies waiting"]) {
				t.Errorf("%d can be changed, %v", left, err)
			}
		})
	}
}

// A process that stood still in a Change, whose locks others have let go meanwhile, does
// nothing when it goes on.
func TestAStalledChangeHasNoSay(t *testing.T) {
	for _, at := range []string{"edit", "apply"} {
		t.Run(at, func(t *testing.T) {
			server := start(t, "")
			s, other := openAt(t, server.options()), openAt(t, server.options())
			add(t, s, 8)
			var once sync.Once
			stall := func(step string) error {
				if step == at {
					once.Do(func() {
						server.age(t)
						if err := other.Recover(ctx); err != nil {
							t.Error(err)
						}
						// And goes on with some of them.
						if n := done(t, other, claim(t, other, 4)); n != 4 {
							t.Errorf("%d of 4 can be finished", n)
						}
					})
				}
				return nil
			}
			s.Steps(stall)
			n, err := s.Change(ctx, keys(t, s), func(_ store.Key, r *store.Record) store.Edit {
				_ = stall("edit")
				return store.Edit{Delete: true}
			}, func(n int) []store.Entry { return []store.Entry{{Name: "account", Value: fmt.Append(nil, n)}} })
			account, _ := s.Entry(ctx, "account")
			lines := storetest.Balances(t, other)
			if err == nil || at == "apply" && !errors.Is(err, redisstore.ErrTooLong) || account != nil || lines["q"][store.Retried] != 4 || waiting(t, s) != 4 {
				t.Errorf("%d, %v, account %q, ledger %v", n, err, account, lines)
			}
		})
	}
}

// A Change that writes its account alone, and none of its records, is forbidden as well
// when its locks were let go.
func TestAForbiddenChangeWritesNoAccount(t *testing.T) {
	server := start(t, "")
	s, other := openAt(t, server.options()), openAt(t, server.options())
	add(t, s, 2)
	s.Steps(func(string) error {
		server.age(t)
		return other.Recover(ctx)
	})
	_, err := s.Change(ctx, keys(t, s), func(store.Key, *store.Record) store.Edit { return store.Edit{} },
		func(int) []store.Entry { return []store.Entry{{Name: "account", Value: []byte("x")}} })
	account, _ := s.Entry(ctx, "account")
	if !errors.Is(err, redisstore.ErrTooLong) || account != nil {
		t.Errorf("%v, account %q", err, account)
	}
}

// Two processes change the same messages: each is given to edit by both, one after the
// other, and none is nil to one because the other has it for a moment.
func TestChangesOfTwoProcessesTakeTurns(t *testing.T) {
	server := start(t, "")
	o := server.options()
	stores := []*redisstore.Store{openAt(t, o), openAt(t, o)}
	for range 4 {
		add(t, stores[0], 3)
	}
	all := keys(t, stores[0])
	var wg sync.WaitGroup
	for _, s := range stores {
		wg.Go(func() {
			for range 10 {
				_, err := s.Change(ctx, all, func(k store.Key, r *store.Record) store.Edit {
					if r == nil {
						t.Errorf("%s was not given to edit", k)
						return store.Edit{}
					}
					r.Failures++
					return store.Edit{Keep: true}
				}, nil)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, key := range all {
		if l, err := stores[0].Get(ctx, key); err != nil || l.Record.Failures != 21 {
			t.Errorf("%s was changed %d times, %v", key, l.Record.Failures-1, err)
		}
	}
}
