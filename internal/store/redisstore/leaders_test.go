package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/redisnode"
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
	expect.Equal(t, beat(a, "a", time.Hour), "a=about a b=about b ", "alive")
	must(t, b.Leave(ctx, "b"))
	expect.Equal(t, beat(a, "a", time.Hour), "a=about a ", "alive when one has left")
	beat(b, "b", time.Millisecond)
	expect.Eventually(t, "b's time is over", func() bool { return beat(a, "a", time.Hour) == "a=about a " })
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
		expect.Equal(t, lead("x", c.replica, time.Hour), c.want, "%s", c.replica)
	}
	expect.Equal(t, lead("y", "b", time.Hour), "1 true", "of something else")
	must(t, s.Resign(ctx, "x", "b"))
	expect.Equal(t, lead("x", "b", time.Hour), "1 false", "when one who did not lead resigned")
	must(t, s.Resign(ctx, "x", "a"))
	// It may have to ask twice, and a term so short be over in between.
	term, leads, err := s.Lead(ctx, "x", "b", time.Millisecond)
	if err != nil || term < 2 || !leads {
		t.Errorf("when a resigned: %d %t, %v", term, leads, err)
	}
	expect.Eventually(t, "b's time is over", func() bool {
		return lead("x", "a", time.Hour) == fmt.Sprint(term+1, true)
	})
}

// Others receive messages in order; a listener that may have missed one gets an error.
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
		expect.Eventually(t, want+" is received", func() bool {
			must(t, a.Send(ctx, "topic", []byte(want)))
			mu.Lock()
			defer mu.Unlock()
			return len(received) > 0 && received[len(received)-1] == want
		})
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
	expect.Equal(t, n, 100, "received …")
	mu.Unlock()
	server.do(t, "CLIENT", "KILL", "TYPE", "pubsub")
	if err := <-ended; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("when its connection was cut: %v", err)
	}
	go listen()
	last("again")
	stop()
	expect.Err(t, <-ended, context.Canceled, "when ctx ended")
	listening, stop = context.WithCancel(ctx)
	defer stop()
	go listen()
	last("and again")
	must(t, b.Close())
	expect.Err(t, <-ended, store.ErrClosed, "when the store closed")
}

// A former leader writes nothing to the side table, and changes nothing, with entries or without, as Forget does;
// the leader does.
func TestAFormerLeaderWritesNothing(t *testing.T) {
	const n = 4
	_, a, b := two(t)
	discard(t, a, n)
	leading := store.WithTerm(ctx, "x", leadSoon(t, a, "a", time.Hour))
	put := func(s store.Store, value string) error {
		return s.PutEntries(leading, []store.Entry{{Name: "e", Value: []byte(value)}})
	}
	change := func(s store.Store) error {
		return errOf(s.Change(leading, keys(t, s), storetest.Keep(func(r *store.Record) { r.Failures++ }),
			func(int) []store.Entry { return []store.Entry{{Name: "e", Value: []byte("changed")}} }))
	}
	remove := func(s store.Store, key store.Key) error {
		return errOf(s.Change(leading, []store.Key{key}, storetest.Remove, nil))
	}
	must(t, put(a, "1"))
	must(t, a.Resign(ctx, "x", "a"))
	expect.Err(t, put(a, "2"), nil, "no later term has begun, and yet the write failed")
	later, all := leadSoon(t, b, "b", time.Hour), keys(t, b)
	for what, err := range map[string]error{"PutEntries": put(a, "3"), "Change": change(a),
		"DeleteEntries": a.DeleteEntries(leading, "")} {
		expect.Err(t, err, store.ErrDeposed, "%s of a former leader", what)
	}
	for _, key := range all {
		expect.Err(t, remove(a, key), store.ErrDeposed, "a former leader deletes %s", key)
	}
	if n, err := a.Forget(leading, late); n != 0 || !errors.Is(err, store.ErrDeposed) {
		t.Errorf("a former leader forgets %d: %v", n, err)
	}
	expect.Equal(t, len(keys(t, b)), n, "are left")
	if e, err := b.Entry(ctx, "e"); string(e) != "2" || err != nil {
		t.Errorf("the entry says %q, %v", e, err)
	}
	leading = store.WithTerm(ctx, "x", later)
	expect.Err(t, change(b), nil, "the leader, with nothing locked by the one before")
	if e, err := b.Entry(ctx, "e"); string(e) != "changed" || err != nil {
		t.Errorf("the entry says %q, %v", e, err)
	}
	for _, key := range all {
		expect.Err(t, remove(b, key), nil, "the leader")
	}
	expect.Equal(t, len(keys(t, b)), 0, "are left")
	must(t, b.DeleteEntries(leading, "x")) // and the terms
	expect.Err(t, put(b, "4"), store.ErrDeposed, "when the terms are forgotten")
}

// leadSoon leads once no other does, and returns the term.
func leadSoon(t *testing.T, s store.Shared, replica string, ttl time.Duration) (term uint64) {
	t.Helper()
	expect.Eventually(t, replica+" leads", func() (leads bool) {
		var err error
		term, leads, err = s.Lead(ctx, "x", replica, ttl)
		must(t, err)
		return leads
	})
	return term
}

// A replica that begins a term while another is changing something stops that only in an earlier term.
func TestANewTermStopsNoOtherChange(t *testing.T) {
	_, a, b := two(t)
	add(t, a, 3)
	a.Steps(func(string) error { leadSoon(t, b, "b", time.Millisecond); return nil })
	led := store.WithTerm(ctx, "x", leadSoon(t, a, "a", time.Millisecond))
	for in, want := range map[context.Context]bool{ctx: true, led: false} {
		_, err := a.Change(in, keys(t, b), storetest.Keep(func(r *store.Record) { r.State = store.Discarded }), nil)
		if (err == nil) != want {
			t.Errorf("in %v: %v", in, err)
		}
	}
}

// discard adds discarded messages.
func discard(t *testing.T, s store.Store, n int) {
	t.Helper()
	for range n {
		r := storetest.Waiting("q", 0, "x")
		r.State = store.Discarded
		must(t, s.Add(ctx, []*store.Record{r}))
	}
}

// stalled returns a store that hangs once, before it changes anything.
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

// A process that hangs in Forget, and continues after others restored some messages and
// discarded some again, deletes none of these, even without a term.
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
					must(t, other.Recover(ctx))
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
			for _, l := range storetest.Listed(t, other, store.Range{}) {
				states[l.Record.State]++
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

// A group that fails again, while a process that wants to forget it hangs, is kept.
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
	expect.Equal(t, known(r.FailedAt.Add(-24*time.Hour)), 1, "groups are known")
	expect.Equal(t, known(r.FailedAt.Add(time.Hour)), 0, "groups are known when it has not failed since")
}

// What a leader had locked when it died is not locked any more when the next one's term
// begins, and was not changed: it finds all of a change, or nothing of it.
func TestALeaderFindsNothingLockedByTheOneBefore(t *testing.T) {
	server, a, b := two(t)
	add(t, a, 12)
	term := leadSoon(t, a, "a", time.Millisecond)
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
	leadSoon(t, b, "b", time.Hour)
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

// Forgetting queues reads a bounded part of a large ledger each time, and all of it in some
// rounds; queues that something is kept for stay.
func TestForgettingQueuesReadsTheLedgerInParts(t *testing.T) {
	const kept, gone, most = 3000, store.EmptyLinesKept + 500, 2000
	_, s, _ := two(t)
	add := func(prefix string, n int, state store.State, due time.Time) {
		t.Helper()
		for at := 0; at < n; at += 500 {
			var all []*store.Record
			for i := at; i < min(n, at+500); i++ {
				all = append(all, &store.Record{ID: uuid.New(), Queue: fmt.Sprintf("%s.%05d", prefix, i), State: state, Due: due, FailedAt: due, FirstFailed: due})
			}
			must(t, s.Add(ctx, all))
		}
	}
	now := time.Now()
	add("kept", kept, store.Parked, now)
	add("gone", gone, store.Discarded, now.Add(-time.Hour))
	s.ForgetMost(most)
	for rounds, whole := 0, kept*2+gone*2; s.Forgetting() < 2*whole; rounds++ {
		before := s.Forgetting()
		must(t, errOf(s.Forget(ctx, now)))
		// Redis looks at whole buckets of its table, so a step reads somewhat more.
		if n := s.Forgetting() - before; n > 2*most {
			t.Fatalf("a round read %d of the ledger, want about %d", n, most)
		}
		if rounds > 100 {
			t.Fatal("it does not get on")
		}
	}
	lines, err := s.Ledger(ctx)
	must(t, err)
	var sum store.Sums
	left := 0
	for _, l := range lines {
		sum.Add(&l.Sums)
		if l.Queue != store.OtherQueues && l.Kept() == 0 {
			left++
		}
	}
	if left != store.EmptyLinesKept || sum[store.In] != kept+gone || sum[store.Parked] != kept || sum[store.Forgotten] != gone {
		t.Errorf("%d queues with nothing kept are left, want %d; in all %v", left, store.EmptyLinesKept, sum)
	}
}

// What a vanished process has written is there however much others store since, since
// RabbitMQ may deliver it again at any time; what it has written is read by others once.
func TestOthersDoNotPushOutAVanishedProcessesReceipts(t *testing.T) {
	on(t, "Redis", func(t *testing.T, o redisnode.Options) {
		at := redisstore.Options{URL: redisnode.New(t, o).URL()}
		vanishes, survives := openAt(t, at), openAt(t, at)
		held := written(t, vanishes, 512)
		for range 3 {
			written(t, survives, store.ReceiptsKept)
		}
		kept, read, err := survives.NewReceipts(ctx, nil)
		must(t, err)
		found, own := 0, len(kept)
		processes := map[string]int{}
		for _, r := range kept {
			process := r.Process
			if r.Process = ""; held[r] {
				found++
				own--
				processes[process]++
			}
		}
		if len(processes) != 1 || processes[""] != 0 {
			t.Errorf("those of the process that vanished are said to be of %v", processes)
		}
		if found != len(held) || own != store.ReceiptsKept {
			t.Errorf("%d of the %d of the process that vanished are kept, and %d others", found, len(held), own)
		}
		written(t, survives, 10)
		more := written(t, vanishes, 300) // it had only been slow
		kept, read, err = survives.NewReceipts(ctx, read)
		for _, r := range kept {
			if r.Process = ""; !more[r] {
				t.Errorf("%+v is read again, or one's own", r)
			}
		}
		if err != nil || len(kept) != len(more) {
			t.Errorf("%d of %d new ones are read, %v", len(kept), len(more), err)
		}
		if kept, _, err = survives.NewReceipts(ctx, read); err != nil || len(kept) != 0 {
			t.Errorf("%d are read again, %v", len(kept), err)
		}
	})
}

// Processes that are started again and again leave no more than a bounded number of
// receipts: those of the newest, and of the last minutes.
func TestReceiptsOfProcessesLongGoneAreForgotten(t *testing.T) {
	on(t, "Redis", func(t *testing.T, o redisnode.Options) {
		server := redisnode.New(t, o)
		at := redisstore.Options{URL: server.URL()}
		var all []map[store.Receipt]bool
		for range store.ReceiptsOwners + 3 {
			s := openAt(t, at)
			all = append(all, written(t, s, 10))
			must(t, s.Close())
		}
		last := openAt(t, at)
		check := func(what string, want int) {
			t.Helper()
			written(t, last, 1)
			kept, err := last.Receipts(ctx)
			gone := 0
			for i := range all {
				n := 0
				for _, r := range kept {
					if all[i][r] {
						n++
					}
				}
				if n == 0 && gone == i {
					gone++
				} else if n != 10 {
					t.Errorf("%s: %d receipts of process %d are kept", what, n, i)
				}
			}
			if err != nil || gone != want {
				t.Errorf("%s: the receipts of the first %d processes are forgotten, want %d; %v", what, gone, want, err)
			}
		}
		check("all are recent", 0)
		processes, err := server.Do(ctx, "ZRANGE", "{redrive}:receipts:by", "0", fmt.Sprint(len(all)-1))
		must(t, err)
		long := time.Now().Add(-store.ReceiptsAge - time.Minute).UnixMilli()
		for i, p := range processes.([]any) {
			must(t, errOf(server.Do(ctx, "ZADD", "{redrive}:receipts:by", fmt.Sprint(long+int64(i)), fmt.Sprint(p))))
		}
		check("all but one are old", len(all)+1-store.ReceiptsOwners)
	})
}

// written are the receipts of n messages that s keeps now.
func written(t *testing.T, s *redisstore.Store, n int) map[store.Receipt]bool {
	t.Helper()
	all := map[store.Receipt]bool{}
	for n > 0 {
		var batch []*store.Record
		for range min(n, 512) {
			r := storetest.Waiting("q", time.Hour, "")
			copy(r.Fingerprint[:], r.ID[:])
			batch = append(batch, r)
			all[r.Receipt()] = true
		}
		n -= len(batch)
		must(t, s.Add(ctx, batch))
	}
	return all
}
