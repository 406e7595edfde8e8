package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// Who led writes nothing to the side table once another does, and changes nothing
// together with it; who leads does.
func TestAFormerLeaderWritesNothing(t *testing.T) {
	server := start(t, "")
	a, b := openAt(t, server.options()), openAt(t, server.options())
	add(t, a, 3)
	term, _, err := a.Lead(ctx, "x", "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leading := store.WithTerm(ctx, "x", term)
	put := func(s store.Store, value string) error {
		return s.PutEntries(leading, []store.Entry{{Name: "e", Value: []byte(value)}})
	}
	discard := func(s store.Store) error {
		_, err := s.Change(leading, keys(t, s), func(_ store.Key, r *store.Record) store.Edit {
			r.State = store.Discarded
			return store.Edit{Keep: true}
		}, func(int) []store.Entry { return []store.Entry{{Name: "e", Value: []byte("changed")}} })
		return err
	}
	if err := put(a, "1"); err != nil {
		t.Fatal(err)
	}
	if err := a.Resign(ctx, "x", "a"); err != nil {
		t.Fatal(err)
	}
	if err := put(a, "2"); err != nil {
		t.Errorf("no later term has begun, and yet the write failed: %v", err)
	}
	later, leads, err := b.Lead(ctx, "x", "b", time.Hour)
	if err != nil || !leads {
		t.Fatal(leads, err)
	}
	for what, err := range map[string]error{"PutEntries": put(a, "3"), "Change": discard(a), "DeleteEntries": a.DeleteEntries(leading, "")} {
		if !errors.Is(err, store.ErrDeposed) {
			t.Errorf("%s of a former leader: %v", what, err)
		}
	}
	if e, err := b.Entry(ctx, "e"); string(e) != "2" || err != nil {
		t.Errorf("the entry says %q, %v", e, err)
	}
	leading = store.WithTerm(ctx, "x", later)
	if err := discard(b); err != nil { // nothing is locked by the one before
		t.Errorf("the leader: %v", err)
	}
	if e, err := b.Entry(ctx, "e"); string(e) != "changed" || err != nil {
		t.Errorf("the entry says %q, %v", e, err)
	}
}

// What is changed without an account is fenced as well: forgetting is.
func TestAFormerLeaderDeletesNothing(t *testing.T) {
	const n = 4
	server := start(t, "")
	a, b := openAt(t, server.options()), openAt(t, server.options())
	discard(t, a, n)
	term, _, err := a.Lead(ctx, "x", "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Resign(ctx, "x", "a"); err != nil {
		t.Fatal(err)
	}
	later, leads, err := b.Lead(ctx, "x", "b", time.Hour)
	if err != nil || !leads {
		t.Fatal(leads, err)
	}
	all, former := keys(t, a), store.WithTerm(ctx, "x", term)
	for _, key := range all {
		_, err := a.Change(former, []store.Key{key}, func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, nil)
		if !errors.Is(err, store.ErrDeposed) {
			t.Errorf("%s is deleted by a former leader: %v", key, err)
		}
	}
	if n, err := a.Forget(former, late); n != 0 || !errors.Is(err, store.ErrDeposed) {
		t.Errorf("a former leader forgets %d: %v", n, err)
	}
	if left := len(keys(t, b)); left != n {
		t.Fatalf("%d of %d are left", left, n)
	}
	for _, key := range all {
		if _, err := b.Change(store.WithTerm(ctx, "x", later), []store.Key{key}, func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, nil); err != nil {
			t.Errorf("the leader: %v", err)
		}
	}
	if n := len(keys(t, b)); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// discard adds messages that were discarded.
func discard(t *testing.T, s store.Store, n int) {
	t.Helper()
	for range n {
		r := storetest.Waiting("q", 0, "x")
		r.State = store.Discarded
		if err := s.Add(ctx, []*store.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
}

// stalled is a store that stands still once, before it changes anything.
type stalled struct {
	*redisstore.Store
	meanwhile func()
}

func (s *stalled) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (int, error) {
	if m := s.meanwhile; m != nil {
		s.meanwhile = nil
		m()
	}
	return s.Store.Change(ctx, keys, edit, entries)
}

// Who stands still in forgetting, and goes on when others have restored some messages
// and discarded some again, deletes none of these: with no term to refuse it.
func TestAStalledForgetSparesWhatWasRestored(t *testing.T) {
	for _, at := range []string{"before it locks", "before it commits"} {
		t.Run(at, func(t *testing.T) {
			const n = 12
			server := start(t, "")
			s, other := openAt(t, server.options()), openAt(t, server.options())
			discard(t, s, n)
			var once sync.Once
			meanwhile := func() {
				once.Do(func() {
					server.age(t)
					if err := other.Recover(ctx); err != nil {
						t.Error(err)
					}
					i := 0
					changed, err := other.Change(ctx, keys(t, other), func(_ store.Key, r *store.Record) store.Edit {
						switch i++; {
						case r == nil:
							t.Error("a message is locked by who stands still")
						case i%3 == 0:
							r.State = store.Parked
							return store.Edit{Keep: true}
						case i%3 == 1:
							r.Due = late.Add(time.Hour)
							return store.Edit{Keep: true}
						}
						return store.Edit{}
					}, nil)
					if changed != n || err != nil {
						t.Error(changed, err)
					}
				})
			}
			forgets := &stalled{Store: s}
			want := 0 // it has no say, and the next time it forgets the others
			if at == "before it locks" {
				forgets.meanwhile = meanwhile
				want = n / 3
			} else {
				s.Steps(func(string) error { meanwhile(); return nil })
			}
			if got, err := store.Forget(ctx, forgets, late); (want > 0) != (err == nil) || want > 0 && got != want {
				t.Errorf("it forgot %d, %v", got, err)
			}
			if got, err := s.Forget(ctx, late); got != n/3-want || err != nil {
				t.Errorf("it forgot %d more, %v", got, err)
			}
			states := map[store.State]int{}
			if err := other.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) { states[l.Record.State]++; return true, nil }); err != nil {
				t.Fatal(err)
			}
			if states[store.Parked] != n/3 || states[store.Discarded] != n/3 {
				t.Errorf("left are %v", states)
			}
			if lines := storetest.Balances(t, other); lines["q"][store.Forgotten] != n/3 {
				t.Errorf("the ledger says %v", lines)
			}
		})
	}
}

// A group that fails again, while one who wanted to forget it stands still, is kept.
func TestAGroupThatFailsAgainIsKept(t *testing.T) {
	server := start(t, "")
	s, other := openAt(t, server.options()), openAt(t, server.options())
	r := storetest.Waiting("q", 0, "x")
	r.FailedAt = time.Now()
	if err := other.Add(ctx, []*store.Record{r}); err != nil {
		t.Fatal(err)
	}
	done(t, other, claim(t, other, 1))
	id := r.Group().ID
	known := func(since time.Time) int {
		t.Helper()
		if err := s.Ungroup(ctx, since, string(id[:])); err != nil {
			t.Fatal(err)
		}
		all, err := s.Groups(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := known(r.FailedAt.Add(-24 * time.Hour)); n != 1 {
		t.Errorf("%d groups are known", n)
	}
	if n := known(r.FailedAt.Add(time.Hour)); n != 0 {
		t.Errorf("%d groups are known when it has not failed since", n)
	}
}

// What a leader had locked when it died is not locked any more when the next one's term
// begins, and was not changed: it finds all of a change, or nothing of it.
func TestALeaderFindsNothingLockedByTheOneBefore(t *testing.T) {
	server := start(t, "")
	a, b := openAt(t, server.options()), openAt(t, server.options())
	add(t, a, 12)
	term, _, err := a.Lead(ctx, "x", "a", time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, died := range []bool{false, true} {
		a.Steps(func(string) error {
			if died {
				return errCrash
			}
			return nil
		})
		_, _ = a.Change(store.WithTerm(ctx, "x", term), keys(t, a), func(_ store.Key, r *store.Record) store.Edit {
			r.State = map[bool]store.State{false: store.Parked, true: store.Discarded}[died]
			return store.Edit{Keep: true}
		}, func(int) []store.Entry { return []store.Entry{{Name: "account", Value: fmt.Append(nil, died)}} })
	}
	for leads := false; !leads; {
		if _, leads, err = b.Lead(ctx, "x", "b", time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	locked := server.do(t, "ZCARD", "{redrive}:locks")
	if n, err := locked.AsInt64(); n > 0 || err != nil { // a still lives, and lets go itself soon
		t.Errorf("%d messages are locked, %v", n, err)
	}
	if account, err := b.Entry(ctx, "account"); string(account) != "false" || err != nil {
		t.Errorf("the account says %q, %v", account, err)
	}
	states := map[store.State]int{}
	if _, err := b.Change(ctx, keys(t, b), func(_ store.Key, r *store.Record) store.Edit {
		if r == nil {
			t.Error("a message cannot be changed")
			return store.Edit{}
		}
		states[r.State]++
		return store.Edit{}
	}, nil); err != nil || states[store.Parked] != 12 {
		t.Errorf("by state %v, %v", states, err)
	}
}
