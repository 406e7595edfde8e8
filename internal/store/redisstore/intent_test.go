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

// Wherever a process ends in a Change over several shards, another finishes it or lets
// it be, whole: all of the records and its account, or none.
func TestACrashInAChangeIsFinishedOrUndone(t *testing.T) {
	const shards, each = 4, 3
	steps := []string{"intend", "apply 1", "apply 2", "apply 3", "apply 4", "finish", "never"}
	for _, at := range steps {
		t.Run(at, func(t *testing.T) {
			server := start(t, "")
			o := server.options()
			o.Shards = shards
			s := openAt(t, o)
			for range shards {
				add(t, s, each)
			}
			var mu sync.Mutex
			applied := 0
			s.Steps(func(step string) error {
				mu.Lock()
				defer mu.Unlock()
				if step == "apply" {
					applied++
					step = fmt.Sprintf("apply %d", applied)
				}
				if step == at || at[0] == 'a' && step > at && step[0] == 'a' {
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
			if at == "intend" && !errors.Is(err, errCrash) || at != "intend" && (err != nil || n != len(all)) {
				t.Errorf("changed %d, %v", n, err)
			}
			other := openAt(t, o)
			server.age(t, "redrive", shards)
			for range 2 {
				if err := other.Recover(ctx); err != nil {
					t.Fatal(err)
				}
			}
			account, err := other.Entry(ctx, "account")
			want := map[bool]string{true: "", false: fmt.Sprint(len(all))}[at == "intend"]
			if string(account) != want || err != nil {
				t.Errorf("the account says %q, %v", account, err)
			}
			got := map[string]int64{}
			counts, err := other.Counts(ctx)
			for _, c := range counts {
				got[c.Queue+" waiting"], got[c.Queue+" parked"] = c.Waiting, c.Parked
			}
			wanted := "map[copies parked:0 copies waiting:4 moved parked:4 moved waiting:0 q parked:0 q waiting:4]"
			if at == "intend" {
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

// A process that stood still in a Change, which others have undone or finished
// meanwhile, does nothing when it goes on.
func TestAStalledChangeHasNoSay(t *testing.T) {
	for _, at := range []string{"intend", "apply", "finish"} {
		t.Run(at, func(t *testing.T) {
			server := start(t, "")
			o := server.options()
			o.Shards = 4
			s, other := openAt(t, o), openAt(t, o)
			for range 4 {
				add(t, s, 2)
			}
			var once sync.Once
			s.Steps(func(step string) error {
				if step == at {
					once.Do(func() {
						server.age(t, "redrive", 4)
						if err := other.Recover(ctx); err != nil {
							t.Error(err)
						}
						// And goes on with them.
						for _, c := range claim(t, other, 100) {
							if n := done(t, other, []store.Claim{c}); n != 1 {
								t.Errorf("%s cannot be settled", c.Key)
							}
						}
					})
				}
				return nil
			})
			n, err := s.Change(ctx, keys(t, s), func(_ store.Key, r *store.Record) store.Edit {
				if string(r.Message.Body) == "0" {
					return store.Edit{Delete: true}
				}
				return store.Edit{Keep: true}
			}, func(n int) []store.Entry { return []store.Entry{{Name: "account", Value: fmt.Append(nil, n)}} })
			account, _ := s.Entry(ctx, "account")
			lines := storetest.Balances(t, other)
			if at == "intend" {
				if !errors.Is(err, redisstore.ErrTooLong) || account != nil || lines["q"][store.Returned] != 8 {
					t.Errorf("%d, %v, account %q, ledger %v", n, err, account, lines)
				}
				return
			}
			if err != nil || n != 8 || string(account) != "8" || lines["q"][store.Forgotten] != 4 || lines["q"][store.Returned] != 4 {
				t.Errorf("%d, %v, account %q, ledger %v", n, err, account, lines)
			}
		})
	}
}

// The same in one shard, where a change is one step.
func TestAStalledChangeOfOneShardHasNoSay(t *testing.T) {
	server := start(t, "")
	s, other := openAt(t, server.options()), openAt(t, server.options())
	add(t, s, 2)
	_, err := s.Change(ctx, keys(t, s), func(store.Key, *store.Record) store.Edit {
		server.age(t, "redrive", 1)
		if err := other.Recover(ctx); err != nil {
			t.Error(err)
		}
		return store.Edit{Delete: true}
	}, func(int) []store.Entry { return []store.Entry{{Name: "account", Value: []byte("x")}} })
	account, _ := s.Entry(ctx, "account")
	if !errors.Is(err, redisstore.ErrTooLong) || account != nil || waiting(t, s) != 2 || len(claim(t, other, 9)) != 2 {
		t.Errorf("%v, account %q, %d left", err, account, waiting(t, s))
	}
}

// Two processes change the same messages: each is given to edit by both, one after the
// other, and none is nil to one because the other has it for a moment.
func TestChangesOfTwoProcessesTakeTurns(t *testing.T) {
	server := start(t, "")
	o := server.options()
	o.Shards = 4
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
					r.Attempt++
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
		if l, err := stores[0].Get(ctx, key); err != nil || l.Record.Attempt != 21 {
			t.Errorf("%s was changed %d times, %v", key, l.Record.Attempt-1, err)
		}
	}
}
