package redisstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Who led writes nothing to the side table once another does, and changes nothing
// together with it, in one shard or in several; who leads does.
func TestAFormerLeaderWritesNothing(t *testing.T) {
	for _, shards := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			server := start(t, "")
			o := server.options()
			o.Shards = shards
			a, b := openAt(t, o), openAt(t, o)
			for range shards {
				add(t, a, 3)
			}
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
				t.Errorf("nobody leads by a later term, and yet: %v", err)
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
		})
	}
}

// What a leader had committed when it died is done before the next one's term begins,
// and what it had not committed is not locked any more: both at once.
func TestALeaderFindsAllThatTheOneBeforeDid(t *testing.T) {
	for _, died := range []string{"intend", "apply", "finish"} {
		t.Run(died, func(t *testing.T) {
			const shards = 4
			server := start(t, "")
			o := server.options()
			o.Shards = shards
			a, b := openAt(t, o), openAt(t, o)
			for range shards {
				add(t, a, 3)
			}
			term, _, err := a.Lead(ctx, "x", "a", time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			a.Steps(func(step string) error {
				if step == died {
					return errCrash
				}
				return nil
			})
			_, _ = a.Change(store.WithTerm(ctx, "x", term), keys(t, a), func(_ store.Key, r *store.Record) store.Edit {
				r.State = store.Discarded
				return store.Edit{Keep: true}
			}, func(n int) []store.Entry { return []store.Entry{{Name: "account", Value: fmt.Append(nil, n)}} })
			for leads := false; !leads; {
				if _, leads, err = b.Lead(ctx, "x", "b", time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			account, err := b.Entry(ctx, "account")
			committed := died != "intend"
			if err != nil || (string(account) == fmt.Sprint(3*shards)) != committed {
				t.Errorf("the account says %q, %v", account, err)
			}
			var states [4]int
			gone := 0
			if _, err := b.Change(ctx, keys(t, b), func(_ store.Key, r *store.Record) store.Edit {
				if r == nil {
					gone++
				} else {
					states[r.State]++
				}
				return store.Edit{}
			}, nil); err != nil {
				t.Fatal(err)
			}
			if gone > 0 || (states[store.Discarded] == 3*shards) != committed || !committed && states[store.Discarded] > 0 {
				t.Errorf("%d cannot be changed, by state %v", gone, states)
			}
		})
	}
}
