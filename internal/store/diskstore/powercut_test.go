package diskstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// After a power cut everything is there for which Add returned, nothing that
// Finish ended comes back, and what was being written is there whole or not at
// all; also when the last write was torn.
func TestAPowerCutLosesNothingThatWasPromised(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			disk := vfs.NewCrashableMem()
			kept := map[string]bool{}  // by body: promised to be there
			ended := map[string]bool{} // promised to be gone
			for life := range 4 {
				s := openAt(t, "data", diskstore.Options{FS: roomy{disk}})
				check(t, s, kept, ended)
				for range 1 + random.IntN(10) {
					var batch []*store.Record
					for range 1 + random.IntN(40) {
						batch = append(batch, storetest.Waiting("q", time.Duration(random.IntN(1000)), fmt.Sprintf("%d-%d-%d", seed, life, len(kept)+len(batch)+random.IntN(1e9))))
					}
					if err := s.Add(context.Background(), batch); err != nil {
						t.Fatal(err)
					}
					for _, r := range batch {
						kept[string(r.Message.Body)] = true
					}
					finish(t, s, random, kept, ended)
					if err := mutate(s, random.IntN); err != nil {
						t.Fatal(err)
					}
				}
				// The power goes while the store is open and writes more.
				under := storetest.Waiting("q", 0, fmt.Sprint("under way ", life))
				written := make(chan error, 2)
				go func() { written <- s.Add(context.Background(), []*store.Record{under}) }()
				go func() { written <- mutate(s, rand.New(rand.NewPCG(seed, 2)).IntN) }()
				disk2 := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: random.IntN(101), RNG: random})
				for range cap(written) {
					if err := <-written; err != nil {
						t.Error(err)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				disk = disk2
			}
		})
	}
}

// roomy is a disk in memory, which cannot tell how much room it has.
type roomy struct{ vfs.FS }

func (roomy) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 40}, nil
}

// finish ends some claims: half are deleted, half parked.
func finish(t *testing.T, s store.Store, random *rand.Rand, kept, ended map[string]bool) {
	t.Helper()
	claims, err := s.Claim(context.Background(), store.Lane{Queue: "q"}, time.Now().Add(1e6*time.Hour), 1+random.IntN(30), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var out []store.Outcome
	for i, c := range claims {
		o := store.Outcome{Claim: c}
		if i%2 == 0 {
			o.Park, o.At = "why", time.Now()
		}
		out = append(out, o)
	}
	if _, err := s.Finish(context.Background(), out); err != nil {
		t.Fatal(err)
	}
	for _, o := range out {
		if o.Park == "" {
			body := string(o.Claim.Record.Message.Body)
			delete(kept, body)
			ended[body] = true
		}
	}
}

// movedQueue holds what mutate changes; nothing claims from it.
const movedQueue = "moved"

// mutate moves records of a queue of its own from state to state, adds some and
// deletes some, and writes in the same step what has become of each: what accounts
// for compares.
func mutate(s store.Store, intN func(int) int) error {
	var keys []store.Key
	err := s.Scan(ctx, store.Range{Queues: []string{movedQueue}}, func(l store.Listed) (bool, error) {
		if intN(3) > 0 {
			keys = append(keys, l.Key)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	var entries []store.Entry
	tell := func(r *store.Record, value []byte) {
		entries = append(entries, store.Entry{Name: "moved/" + r.ID.String(), Value: value})
	}
	// A key of nothing, so that the first change has one too.
	_, err = s.Change(ctx, append(keys, ""), func(_ store.Key, r *store.Record) (e store.Edit) {
		switch {
		case r == nil:
			for range 1 + intN(4) {
				r := storetest.Waiting(movedQueue, time.Duration(intN(1000))*time.Second, "")
				tell(r, accountOf(r))
				e.Add = append(e.Add, r)
			}
		case intN(5) == 0:
			e.Delete = true
			tell(r, nil)
		default:
			r.State, r.Failures = store.State(1+intN(3)), r.Failures+1
			e.Keep = true
			tell(r, accountOf(r))
		}
		return e
	}, func(int) []store.Entry { return entries })
	return err
}

func accountOf(r *store.Record) []byte {
	return fmt.Appendf(nil, "state %d, attempt %d", r.State, r.Failures)
}

// accountsFor checks that what was changed and the account of it are the same.
func accountsFor(t *testing.T, s store.Store) {
	t.Helper()
	told, is := map[string]string{}, map[string]string{}
	err := s.Entries(ctx, "moved/", "", func(e store.Entry) (bool, error) {
		told[e.Name] = string(e.Value)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Scan(ctx, store.Range{Queues: []string{movedQueue}}, func(l store.Listed) (bool, error) {
		is["moved/"+l.Record.ID.String()] = string(accountOf(l.Record))
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(told, is); d != "" {
		t.Errorf("what was done differs from the account of it (-account +is):\n%s", d)
	}
}

// check compares what is there, and the counts, with what was promised.
func check(t *testing.T, s *diskstore.Store, kept, ended map[string]bool) {
	t.Helper()
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	accountsFor(t, s)
	groupsCount(t, s)
	// What was under way is in the ledger when it is there.
	if q := storetest.Balances(t, s)["q"]; q[store.In] < int64(len(kept)+len(ended)) || q[store.Retried] < int64(len(ended)) {
		t.Errorf("%d were kept and %d have ended, and the ledger says %v", len(kept), len(ended), q)
	}
	there := map[string]int{}
	total := int64(0)
	err := s.Scan(ctx, store.Range{Body: true}, func(l store.Listed) (bool, error) {
		total++
		there[string(l.Record.Message.Body)]++
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for body := range kept {
		if there[body] != 1 {
			t.Errorf("%q is there %d times after the power cut", body, there[body])
		}
	}
	for body := range ended {
		if there[body] != 0 {
			t.Errorf("%q has come back", body)
		}
	}
	counts, err := s.Counts(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range counts {
		total -= c.Waiting + c.Parked + c.Discarded
	}
	if total != 0 {
		t.Errorf("the counts are %d off", total)
	}
}
