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

func ids(all []store.Replica) (s string) {
	for _, r := range all {
		s += r.ID + "=" + string(r.About) + " "
	}
	return s
}

func TestReplicasAreAliveUntilTheirTimeIsOver(t *testing.T) {
	_, a, b := two(t)
	beat := func(s store.Shared, id string, ttl time.Duration) string {
		t.Helper()
		all, err := s.Beat(ctx, id, []byte("about "+id), ttl)
		must(t, err)
		return ids(all)
	}
	beat(b, "b", time.Hour)
	if got := beat(a, "a", time.Hour); got != "a=about a b=about b " {
		t.Errorf("alive: %s", got)
	}
	must(t, b.Leave(ctx, "b"))
	if got := beat(a, "a", time.Hour); got != "a=about a " {
		t.Errorf("alive when one has left: %s", got)
	}
	beat(b, "b", time.Millisecond)
	for began := time.Now(); beat(a, "a", time.Hour) != "a=about a "; {
		if time.Since(began) > time.Minute {
			t.Fatal("b is alive after its time")
		}
	}
}

func TestOneLeads(t *testing.T) {
	_, s, _ := two(t)
	lead := func(what, replica string, ttl time.Duration) string {
		t.Helper()
		term, leads, err := s.Lead(ctx, what, replica, ttl)
		must(t, err)
		return fmt.Sprint(term, leads)
	}
	for _, c := range []struct{ replica, want string }{{"a", "1 true"}, {"a", "1 true"}, {"b", "1 false"}, {"a", "1 true"}} {
		if got := lead("x", c.replica, time.Hour); got != c.want {
			t.Errorf("%s: %s, want %s", c.replica, got, c.want)
		}
	}
	if got := lead("y", "b", time.Hour); got != "1 true" {
		t.Errorf("of something else: %s", got)
	}
	must(t, s.Resign(ctx, "x", "b"))
	if got := lead("x", "b", time.Hour); got != "1 false" {
		t.Errorf("when one who did not lead resigned: %s", got)
	}
	must(t, s.Resign(ctx, "x", "a"))
	// It may have to ask twice, and a term so short be over in between.
	term, leads, err := s.Lead(ctx, "x", "b", time.Millisecond)
	if err != nil || term < 2 || !leads {
		t.Errorf("when a resigned: %d %t, %v", term, leads, err)
	}
	for began := time.Now(); lead("x", "a", time.Hour) != fmt.Sprint(term+1, true); {
		if time.Since(began) > time.Minute {
			t.Fatal("b leads after its time")
		}
	}
}

// What one sends, others receive in order; one that may have missed something learns so.
func TestAnnouncementsReachListeners(t *testing.T) {
	server, a, b := two(t)
	var mu sync.Mutex
	var received []string
	ended := make(chan error, 1)
	listening, stop := context.WithCancel(ctx)
	listen := func() {
		ended <- b.Listen(listening, "topic", func(message []byte) {
			mu.Lock()
			defer mu.Unlock()
			received = append(received, string(message))
		})
	}
	last := func(want string) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			must(t, a.Send(ctx, "topic", []byte(want)))
			mu.Lock()
			is := len(received) > 0 && received[len(received)-1] == want
			mu.Unlock()
			if is {
				return
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("%s was not received", want)
			}
		}
	}
	go listen()
	last("first")
	mu.Lock()
	received = nil
	mu.Unlock()
	for i := range 100 {
		must(t, errors.Join(a.Send(ctx, "topic", fmt.Appendf(nil, "%d\x00\xff", i)), a.Send(ctx, "other", []byte("x"))))
	}
	last("end")
	mu.Lock()
	n := 0
	for _, message := range received {
		if message == fmt.Sprintf("%d\x00\xff", n) {
			n++
		} else if message != "first" && message != "end" {
			t.Errorf("received %q when it was the turn of %d", message, n)
		}
	}
	if n != 100 {
		t.Errorf("received %d of 100", n)
	}
	mu.Unlock()
	server.do(t, "CLIENT", "KILL", "TYPE", "pubsub")
	if err := <-ended; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("when its connection was cut: %v", err)
	}
	go listen()
	last("again")
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("when ctx ended: %v", err)
	}
	listening, stop = context.WithCancel(ctx)
	defer stop()
	go listen()
	last("and again")
	must(t, b.Close())
	if err := <-ended; !errors.Is(err, store.ErrClosed) {
		t.Errorf("when the store closed: %v", err)
	}
}

// Who led writes nothing to the side table once another does, and changes nothing
// together with it; who leads does.
func TestAFormerLeaderWritesNothing(t *testing.T) {
	_, a, b := two(t)
	add(t, a, 3)
	term, _, err := a.Lead(ctx, "x", "a", time.Hour)
	must(t, err)
	leading := store.WithTerm(ctx, "x", term)
	put := func(s store.Store, value string) error {
		return s.PutEntries(leading, []store.Entry{{Name: "e", Value: []byte(value)}})
	}
	discard := func(s store.Store) error {
		_, err := s.Change(leading, keys(t, s), storetest.Keep(func(r *store.Record) { r.State = store.Discarded }), func(int) []store.Entry { return []store.Entry{{Name: "e", Value: []byte("changed")}} })
		return err
	}
	must(t, put(a, "1"))
	must(t, a.Resign(ctx, "x", "a"))
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
	must(t, b.DeleteEntries(leading, "x")) // and the terms
	if err := put(b, "4"); !errors.Is(err, store.ErrDeposed) {
		t.Errorf("when the terms are forgotten: %v", err)
	}
}

// A replica that begins a term while another is changing something stops that only in an earlier term.
func TestANewTermStopsNoOtherChange(t *testing.T) {
	_, a, b := two(t)
	add(t, a, 3)
	begin := func(s store.Shared, replica string) (term uint64) {
		for leads := false; !leads; {
			var err error
			term, leads, err = s.Lead(ctx, "x", replica, time.Millisecond)
			must(t, err)
		}
		return term
	}
	a.Steps(func(string) error { begin(b, "b"); return nil })
	for in, want := range map[context.Context]bool{ctx: true, store.WithTerm(ctx, "x", begin(a, "a")): false} {
		_, err := a.Change(in, keys(t, b), storetest.Keep(func(r *store.Record) { r.State = store.Discarded }), nil)
		if (err == nil) != want {
			t.Errorf("in %v: %v", in, err)
		}
	}
}

// What is changed without an account is fenced as well: forgetting is.
func TestAFormerLeaderDeletesNothing(t *testing.T) {
	const n = 4
	_, a, b := two(t)
	discard(t, a, n)
	term, _, err := a.Lead(ctx, "x", "a", time.Hour)
	must(t, err)
	must(t, a.Resign(ctx, "x", "a"))
	later, leads, err := b.Lead(ctx, "x", "b", time.Hour)
	if err != nil || !leads {
		t.Fatal(leads, err)
	}
	all, former := keys(t, a), store.WithTerm(ctx, "x", term)
	for _, key := range all {
		_, err := a.Change(former, []store.Key{key}, storetest.Remove, nil)
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
		if _, err := b.Change(store.WithTerm(ctx, "x", later), []store.Key{key}, storetest.Remove, nil); err != nil {
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
		must(t, s.Add(ctx, []*store.Record{r}))
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
			_, s, other := two(t)
			discard(t, s, n)
			var once sync.Once
			meanwhile := func() {
				once.Do(func() {
					age(t, other)
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
	_, s, other := two(t)
	r := storetest.Waiting("q", 0, "x")
	r.FailedAt = time.Now()
	must(t, other.Add(ctx, []*store.Record{r}))
	done(t, other, claim(t, other, 1))
	id := r.Group().ID
	known := func(since time.Time) int {
		t.Helper()
		must(t, s.Ungroup(ctx, since, string(id[:])))
		all, err := s.Groups(ctx)
		must(t, err)
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
	server, a, b := two(t)
	add(t, a, 12)
	term, _, err := a.Lead(ctx, "x", "a", time.Millisecond)
	must(t, err)
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
