package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/proxy"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// Renewing keeps claims, and logs those that were lost.
func TestRenewing(t *testing.T) {
	server, other, _ := two(t)
	var log bytes.Buffer
	o := server.options()
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := openAt(t, o)
	add(t, s, 2)
	kept := claim(t, s, 1)
	age(t, other)
	before := time.Now().Truncate(time.Millisecond)
	must(t, s.Renew(ctx))
	if ends, err := s.Ends(ctx); err != nil || ends.Before(before.Add(s.Lease)) || ends.After(time.Now().Add(s.Lease)) {
		t.Errorf("renewed for %s at %s, a lease ends at %s, %v", s.Lease, before, ends, err)
	}
	if got := claim(t, other, 2); len(got) != 1 || got[0].Key == kept[0].Key {
		t.Errorf("what was renewed was claimed by another: %v", got)
	}
	if strings.Contains(log.String(), "renewed in time") {
		t.Errorf("nothing was lost, and yet: %s", log.String())
	}
	age(t, other)
	if n := len(claim(t, other, 2)); n != 2 { // its own as well
		t.Errorf("%d were claimed when all leases were over", n)
	}
	for range 2 {
		must(t, s.Renew(ctx))
	}
	expect.Equal(t, strings.Count(log.String(), "renewed in time"), 1,
		"told … times of what was lost: %s", log.String())
}

// A Change whose process ends before it is applied leaves nothing, and nothing locked; an
// applied one leaves the records and its entries.
func TestACrashInAChangeLeavesNothingLocked(t *testing.T) {
	for _, at := range []string{"apply", "never"} {
		t.Run(at, func(t *testing.T) {
			_, s, other := two(t)
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
			age(t, other)
			for range 2 {
				must(t, other.Recover(ctx))
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

// A process that hangs in a Change, whose locks others release meanwhile, changes nothing
// when it continues.
func TestAStalledChangeHasNoSay(t *testing.T) {
	for _, c := range []struct {
		name, at string
		edit     store.Edit
	}{{"edit", "edit", store.Edit{Delete: true}}, {"apply", "apply", store.Edit{Delete: true}},
		{"entries alone", "apply", store.Edit{}}} {
		t.Run(c.name, func(t *testing.T) {
			_, s, other := two(t)
			add(t, s, 8)
			var once sync.Once
			stall := func(step string) error {
				if step == c.at {
					once.Do(func() {
						age(t, other)
						must(t, other.Recover(ctx))
						// And goes on with some of them.
						expect.Equal(t, done(t, other, claim(t, other, 4)), 4, "can be finished")
					})
				}
				return nil
			}
			s.Steps(stall)
			n, err := s.Change(ctx, keys(t, s), func(_ store.Key, r *store.Record) store.Edit {
				_ = stall("edit")
				return c.edit
			}, func(n int) []store.Entry { return []store.Entry{{Name: "account", Value: fmt.Append(nil, n)}} })
			account, _ := s.Entry(ctx, "account")
			lines := storetest.Balances(t, other)
			if err == nil || c.at == "apply" && !errors.Is(err, redisstore.ErrTooLong) || account != nil ||
				lines["q"][store.Retried] != 4 || waiting(t, s) != 4 {
				t.Errorf("%d, %v, account %q, ledger %v", n, err, account, lines)
			}
		})
	}
}

// Two processes change the same messages: both edit each, one after the other, and none is
// nil because the other has it for a moment.
func TestChangesOfTwoProcessesTakeTurns(t *testing.T) {
	_, a, b := two(t)
	for range 4 {
		add(t, a, 3)
	}
	all := keys(t, a)
	var wg sync.WaitGroup
	for _, s := range []store.Store{a, b} {
		wg.Go(func() {
			for range 10 {
				expect.Err(t, errOf(s.Change(ctx, all, func(k store.Key, r *store.Record) store.Edit {
					if r == nil {
						t.Errorf("%s was not given to edit", k)
						return store.Edit{}
					}
					r.Failures++
					return store.Edit{Keep: true}
				}, nil)), nil, "changing")
			}
		})
	}
	wg.Wait()
	for _, key := range all {
		if l, err := a.Get(ctx, key); err != nil || l.Record.Failures != 21 {
			t.Errorf("%s was changed %d times, %v", key, l.Record.Failures-1, err)
		}
	}
}

// doubtful returns a store whose connections can be held, with one message and loaded scripts.
func doubtful(t *testing.T, o redisnode.Options) (*server, *proxy.Proxy, *redisstore.Store) {
	t.Helper()
	server := startOn(t, o, "")
	between := proxy.New(t, server.Addr())
	s := openAt(t, redisstore.Options{URL: "redis://" + between.Addr(), Timeout: time.Minute})
	must(t, s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "first")}))
	return server, between, s
}

// A call that waits for a connection is not ended by the deadline of the first call that waits for it.
func TestACallOutlivesTheOneWhoseConnectionItWaitsFor(t *testing.T) {
	on(t, "Redis", func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "")
		var made []net.Conn
		var mu sync.Mutex
		var armed atomic.Bool
		dials, late := make(chan struct{}), make(chan struct{})
		s := openAt(t, redisstore.Options{URL: server.url, Timeout: time.Minute, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			if armed.Swap(false) {
				close(dials)
				<-late
				return nil, context.DeadlineExceeded
			}
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			mu.Lock()
			defer mu.Unlock()
			made = append(made, c)
			return c, err
		}})
		armed.Store(true)
		mu.Lock()
		for _, c := range made {
			_ = c.Close()
		}
		mu.Unlock()
		calls := make(chan error, 20)
		for range cap(calls) {
			go func() { _, err := s.Counts(ctx); calls <- err }()
		}
		<-dials
		close(late)
		for range cap(calls) {
			if err := <-calls; errors.Is(err, context.DeadlineExceeded) { // but perhaps the end of a connection
				t.Error(err)
			}
		}
	})
}

// unanswered adds a batch to a server that does not answer.
func unanswered(t *testing.T, s *redisstore.Store, batch []*store.Record) {
	t.Helper()
	s.Within(time.Second)
	defer s.Within(time.Minute)
	if err := s.Add(ctx, batch); err == nil || errors.Is(err, store.ErrFull) {
		t.Fatalf("added by a server that does not answer: %v", err)
	}
}

// A batch that Redis may have is added again as the same one, and only then: records that are
// added twice are stored twice.
func TestABatchInDoubtIsAddedOnce(t *testing.T) {
	on(t, "Redis", func(t *testing.T, o redisnode.Options) {
		_, between, s := doubtful(t, o)
		batch := []*store.Record{storetest.Waiting("q", 0, "a"), storetest.Waiting("q", time.Second, "b")}
		release := between.Hold()
		defer release()
		for range 3 {
			unanswered(t, s, batch)
		}
		release()
		for _, want := range []int64{3, 5} {
			untilAnswered(t, func() error { return s.Add(ctx, batch) })
			expect.Equal(t, waiting(t, s), want, "are kept")
		}
	})
}

// A stored batch is recognized when Redis is full, too: the intake splits a batch that is
// refused for lack of room, and would store it twice.
func TestABatchInDoubtNeedsNoRoom(t *testing.T) {
	on(t, "Redis", func(t *testing.T, o redisnode.Options) {
		server, between, s := doubtful(t, o)
		batch := []*store.Record{storetest.Waiting("q", 0, "a"), storetest.Waiting("q", time.Second, "b")}
		_, _, err := s.Free() // and the room is known, for a moment: what follows is sent
		must(t, err)
		release := between.HoldAnswers()
		unanswered(t, s, batch)
		release()
		server.do(t, "CONFIG", "SET", "maxmemory", "1mb")
		untilAnswered(t, func() error {
			s.Forgot()
			err := s.Add(ctx, batch)
			if errors.Is(err, store.ErrFull) {
				t.Fatalf("a batch that is there already: %v", err)
			}
			return err
		})
		expect.Err(t, s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "c")}), store.ErrFull, "another batch")
		expect.Equal(t, waiting(t, s), 3, "are kept")
	})
}

// A message that a person has replayed fails as often again. A batch of it alone may have been in
// doubt when it failed first, and never have been tried again, since its connection was lost.
func TestAFailureAfterAReplayIsNoBatchInDoubt(t *testing.T) {
	on(t, "Redis", func(t *testing.T, o redisnode.Options) {
		_, between, s := doubtful(t, o)
		failed := storetest.Waiting("q", 0, "a")
		release := between.HoldAnswers()
		unanswered(t, s, []*store.Record{failed})
		release()
		again := *failed
		again.FailedAt = again.FailedAt.Add(time.Minute)
		untilAnswered(t, func() error { return s.Add(ctx, []*store.Record{&again}) })
		expect.Equal(t, waiting(t, s), 3, "are kept")
	})
}

// A Change whose commands, or whose answers, are lost on the way is done or never will
// be once the side table was read: what arrives at Redis later does nothing.
func TestAChangeWhoseAnswerWasLostIsDoneOrNeverWillBe(t *testing.T) {
	on(t, "Redis", func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "")
		for lost, hold := range map[string]func(*proxy.Proxy) func(){"command": (*proxy.Proxy).Hold, "answer": (*proxy.Proxy).HoldAnswers} {
			t.Run(lost, func(t *testing.T) {
				var conns held
				so := server.options()
				so.Prefix = lost
				direct := openAt(t, so)
				so.Timeout = 5 * time.Second // after which it leaves a connection that is held
				s := openAt(t, conns.options(t, so))
				add(t, direct, 3)
				all := keys(t, direct)
				// Its script is there, and the connection that confirms writes: what is held on
				// that does arrive later, and is no script that Redis does not know.
				must(t, errOf(s.Change(ctx, all[:1], storetest.Keep(func(*store.Record) {}), nil)))
				_, _, err := s.Free() // for a second nothing but the Change asks Redis
				must(t, err)
				n, err := s.Change(ctx, all, func(_ store.Key, r *store.Record) store.Edit {
					if r == nil {
						return store.Edit{}
					}
					copied := *r
					copied.Queue = "copies"
					return store.Edit{Add: []*store.Record{&copied}}
				}, func(n int) []store.Entry {
					conns.holdAll(hold)
					t.Cleanup(conns.arrive)
					return []store.Entry{{Name: "account", Value: fmt.Append(nil, n)}}
				})
				conns.free()
				if err == nil || n != 0 {
					t.Fatalf("%d are changed by a server that does not answer", n)
				}
				var account []byte
				untilAnswered(t, func() (err error) { account, err = s.Entry(ctx, "account"); return err })
				copies := func() (n int64) {
					counts, err := direct.Counts(ctx)
					must(t, err)
					for _, c := range counts {
						if c.Queue == "copies" {
							n = c.Waiting
						}
					}
					return n
				}
				want := int64(0)
				if account != nil {
					want = int64(len(all))
				}
				if got := copies(); got != want || lost == "command" && account != nil {
					t.Errorf("%d copies, and the account says %q", got, account)
				}
				conns.arrive()
				for range 100 { // what was held is there by then, since each question is behind it
					later, err := direct.Entry(ctx, "account")
					if got := copies(); got != want || string(later) != string(account) || err != nil {
						t.Fatalf("later: %d copies, and the account says %q, %v; it was %q", got, later, err, account)
					}
				}
				storetest.Balances(t, direct)
				// Nothing stays locked.
				expect.Equal(t, len(claim(t, direct, 100)), len(all), "can be claimed")
			})
		}
	})
}

// What is done again, since its safety was not confirmed, is not taken for safe
// because there was nothing to write: with a replica that stands still, or a disk that
// nothing syncs, each try is unconfirmed, and one after that has ended is not.
func TestWhatIsRepeatedIsConfirmed(t *testing.T) {
	on(t, "", func(t *testing.T, o redisnode.Options) {
		t.Run("replicated", func(t *testing.T) {
			server, replica := startOn(t, o, ""), redisnode.New(t, o)
			var port string
			must(t, errOf(fmt.Sscanf(server.Addr(), "127.0.0.1:%s", &port)))
			must(t, errOf(replica.Do(ctx, "REPLICAOF", "127.0.0.1", port)))
			expect.Eventually(t, "the replica follows", func() bool {
				return replica.Info(ctx, "replication", "master_link_status") == "up"
			})
			so := server.options()
			so.Durability = redisstore.Replicated
			repeated(t, server, so, func() { must(t, replica.Pause()) }, func() { must(t, replica.Continue()) })
		})
		t.Run("everysec", func(t *testing.T) {
			server := startOn(t, o, "")
			so := server.options()
			all, _, err := redisstore.Survey(ctx, so)
			if must(t, err); !all[0].TellsSyncs() {
				return // a Redis that cannot say when it has synced is refused with everysec
			}
			server.do(t, "CONFIG", "SET", "appendfsync", "everysec")
			repeated(t, server, so, func() { server.do(t, "CONFIG", "SET", "appendfsync", "no") }, func() { server.do(t, "CONFIG", "SET", "appendfsync", "everysec") })
		})
	})
}

// repeated writes while nothing is confirmed, and again when it is.
func repeated(t *testing.T, server *server, o redisstore.Options, stop, goOn func()) {
	s := openAt(t, o)
	untilAnswered(t, func() error { return s.PutEntries(ctx, []store.Entry{{Name: "n", Value: []byte("v")}}) })
	add(t, s, 3)
	claims := claim(t, s, 1)
	all := keys(t, s)[1:]
	stop()
	s.Within(2 * time.Second)
	calls := map[string]func() error{
		"Finish":        func() error { return errOf(s.Finish(ctx, []store.Outcome{{Claim: claims[0], At: late}})) },
		"PutEntries":    func() error { return s.PutEntries(ctx, []store.Entry{{Name: "n"}}) },
		"DeleteEntries": func() error { return s.DeleteEntries(ctx, "n") },
		"Change": func() error { // is done again by itself, within its time
			return errOf(s.Change(ctx, all, storetest.Keep(func(*store.Record) {}), nil))
		},
	}
	// Each try is on another connection: of the first one Redis still knows what it wrote.
	cut := func() { server.do(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") }
	for name, call := range calls {
		for try := range 2 {
			// Connections that were cut before are found out.
			untilAnswered(t, func() error { _, err := s.Counts(ctx); return err })
			var cutting sync.WaitGroup
			cutting.Go(func() {
				time.Sleep(300 * time.Millisecond) // it is written, and waits to be confirmed
				cut()
			})
			if err := call(); err == nil {
				t.Errorf("%s, try %d, while nothing is confirmed: %v", name, try+1, err)
			}
			cutting.Wait()
		}
	}
	goOn()
	s.Within(time.Minute)
	for name, call := range calls {
		untilAnswered(t, call)
		t.Log(name)
	}
	// Each connection that was cut costs one question.
	untilAnswered(t, func() error { _, err := s.Ledger(ctx); return err })
	untilAnswered(t, func() error { _, err := s.Recount(ctx); return err })
	storetest.Balances(t, s)
}

// A batch that was added again, because its command had no answer in time, is not added a second
// time when that command arrives at last, whatever was added meanwhile.
func TestABatchThatArrivesLateIsNotAddedTwice(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "")
		var conns held
		so := server.options()
		so.Timeout = time.Second
		s := openAt(t, conns.options(t, so))
		add(t, s, 1) // and the script is there
		batch := []*store.Record{storetest.Waiting("q", 0, "first")}
		conns.holdAll((*proxy.Proxy).Hold)
		t.Cleanup(conns.arrive)
		if err := s.Add(ctx, batch); err == nil || errors.Is(err, store.ErrFull) {
			t.Fatalf("added by a server that does not answer: %v", err)
		}
		conns.free()
		untilAnswered(t, func() error { return s.Add(ctx, batch) })
		for range 5 {
			another := []*store.Record{storetest.Waiting("q", 0, "another")}
			untilAnswered(t, func() error { return s.Add(ctx, another) })
		}
		scripts := func() string { return server.Info(ctx, "commandstats", "cmdstat_evalsha") }
		before := scripts()
		conns.arrive()
		expect.Eventually(t, "the late command arrives", func() bool { return scripts() != before })
		expect.Equal(t, waiting(t, s), 7, "messages are kept")
	})
}
