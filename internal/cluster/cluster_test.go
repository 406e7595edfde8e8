package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica is one under test, with what happened to it.
type replica struct {
	*cluster.Member
	store  *faulty
	leads  atomic.Bool
	able   atomic.Bool
	term   atomic.Pointer[context.Context]
	polled atomic.Int64
	missed atomic.Int64

	mu       sync.Mutex
	part     cluster.Share
	received []cluster.Announcement

	cancel context.CancelFunc
	done   chan struct{}
}

// faulty is a store that can be made to fail.
type faulty struct {
	*memstore.Member
	mute, dropped atomic.Bool
}

var errFaulty = errors.New("it does not work")

func (f *faulty) Send(ctx context.Context, topic string, sent []byte) error {
	if f.mute.Load() {
		return errFaulty
	}
	return f.Member.Send(ctx, topic, sent)
}

func (f *faulty) Listen(ctx context.Context, topic string, receive func([]byte)) error {
	return f.Member.Listen(ctx, topic, func(b []byte) {
		if !f.dropped.Load() {
			receive(b)
		}
	})
}

func join(t *testing.T, replicas *memstore.Replicas, id string) *replica {
	r := &replica{store: &faulty{Member: replicas.Join()}, done: make(chan struct{})}
	r.able.Store(true)
	r.Member = cluster.New(cluster.Config{
		Store: r.store, ID: id, Log: slog.New(slog.DiscardHandler),
		About: func() cluster.About { return cluster.About{Address: id + ":1", CanPublish: r.able.Load()} },
		OnShare: func(p cluster.Share) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.part = p
		},
		Lead: func(ctx context.Context) {
			r.leads.Store(true)
			r.term.Store(&ctx)
			<-ctx.Done()
			r.leads.Store(false)
		},
		Poll:     func(context.Context) { r.polled.Add(1) },
		OnMissed: func(context.Context) error { r.missed.Add(1); return nil },
		Receive: func(s cluster.Announcement) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.received = append(r.received, s)
		},
	})
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	go func() { defer close(r.done); r.Run(ctx) }()
	t.Cleanup(r.stop)
	return r
}

// stop ends it as SIGTERM does, and kill as SIGKILL.
func (r *replica) stop() { r.cancel(); <-r.done }
func (r *replica) kill() { r.store.Kill(); r.stop() }

func (r *replica) share(now time.Time) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.part.N == 0 || !now.Before(r.part.Until) {
		return 0
	}
	return 1 / float64(r.part.N)
}

func leaders(all ...*replica) (leading []*replica) {
	for _, r := range all {
		if r.leads.Load() {
			leading = append(leading, r)
		}
	}
	return leading
}

// inFakeTime runs a test in fake time.
func inFakeTime(t *testing.T, test func(t *testing.T, replicas *memstore.Replicas)) {
	synctest.Test(t, func(t *testing.T) { test(t, memstore.NewReplicas()) })
}

func TestAllLiveReplicasAreListed(t *testing.T) {
	inFakeTime(t, func(t *testing.T, replicas *memstore.Replicas) {
		a := join(t, replicas, "a")
		b := join(t, replicas, "b")
		time.Sleep(2 * time.Second)
		all := a.All()
		if len(all) != 2 || !all[0].Self || all[1].Self || all[0].Address != "a:1" || all[0].Leads == all[1].Leads {
			t.Errorf("shown are %+v", all)
		}
		b.kill()
		time.Sleep(6 * time.Second)
		if all := a.All(); len(all) != 1 {
			t.Errorf("6 s after one was killed, shown are %+v", all)
		}
		c := join(t, replicas, "c")
		time.Sleep(time.Second)
		c.stop()
		time.Sleep(500 * time.Millisecond)
		if all := a.All(); len(all) != 1 {
			t.Errorf("after one left, shown are %+v", all)
		}
	})
}

// There is never more than one leader, and one within 5 s of the death of another,
// however that falls in its time.
func TestALeaderThatDiesHasASuccessorWithin5s(t *testing.T) {
	for after := 10 * time.Second; after < 11*time.Second; after += 90 * time.Millisecond {
		inFakeTime(t, func(t *testing.T, replicas *memstore.Replicas) {
			all := []*replica{join(t, replicas, "a"), join(t, replicas, "b"), join(t, replicas, "c")}
			time.Sleep(after)
			leading := leaders(all...)
			if len(leading) != 1 {
				t.Fatalf("there are %d leaders", len(leading))
			}
			old := leading[0]
			oldTerm := *old.term.Load()
			died := time.Now()
			old.store.Kill()
			go old.stop()
			for {
				if n := len(leaders(all...)); n > 1 {
					t.Fatalf("%d lead at once", n)
				}
				if now := leaders(all...); len(now) == 1 && now[0] != old {
					break
				}
				if time.Since(died) > 5*time.Second {
					t.Fatal("there is no leader 5 s after the last one died")
				}
				time.Sleep(10 * time.Millisecond)
			}
			// What the former one still writes is refused, though its store works again.
			err := replicas.Join().PutEntries(context.WithoutCancel(oldTerm), []store.Entry{{Name: "x", Value: []byte("1")}})
			if !errors.Is(err, store.ErrDeposed) {
				t.Errorf("a former leader writes: %v", err)
			}
			err = leaders(all...)[0].store.PutEntries(*leaders(all...)[0].term.Load(), []store.Entry{{Name: "x", Value: []byte("1")}})
			expect.Err(t, err, nil, "the leader writes")
		})
	}
}

func TestALeaderThatEndsHasASuccessorAtOnce(t *testing.T) {
	inFakeTime(t, func(t *testing.T, replicas *memstore.Replicas) {
		all := []*replica{join(t, replicas, "a"), join(t, replicas, "b")}
		time.Sleep(10 * time.Second)
		leaders(all...)[0].stop()
		time.Sleep(600 * time.Millisecond)
		expect.Equal(t, len(leaders(all...)), 1, "lead")
	})
}

// The leader probes breakers, so it must be able to retry messages.
func TestALeaderThatCannotRetryResigns(t *testing.T) {
	inFakeTime(t, func(t *testing.T, replicas *memstore.Replicas) {
		all := []*replica{join(t, replicas, "a"), join(t, replicas, "b")}
		time.Sleep(10 * time.Second)
		old := leaders(all...)[0]
		old.able.Store(false)
		time.Sleep(10 * time.Second)
		if now := leaders(all...); len(now) != 1 || now[0] == old {
			t.Error("a leader that cannot return messages goes on")
		}
		// When no one can, somebody leads all the same.
		for _, r := range all {
			r.able.Store(false)
		}
		time.Sleep(20 * time.Second)
		expect.Equal(t, len(leaders(all...)), 1, "lead when none can return messages")
	})
}

// All shares never add up to more than the limit, and over ten seconds to no less than nine tenths of it, also while a
// replica joins, dies, or has no RabbitMQ.
func TestSharesAddUpToTheLimit(t *testing.T) {
	for after := time.Duration(0); after < 250*time.Millisecond; after += 60 * time.Millisecond {
		inFakeTime(t, func(t *testing.T, replicas *memstore.Replicas) {
			began := time.Now()
			all := []*replica{join(t, replicas, "b")}
			events := map[time.Duration]func(){
				12*time.Second + after:   func() { all = append(all, join(t, replicas, "a")) },
				24*time.Second + after*2: func() { all = append(all, join(t, replicas, "c")) },
				36*time.Second + after*3: func() { all[1].store.Kill(); go all[1].stop() },
				48*time.Second + after:   func() { all[2].able.Store(false) },
				60*time.Second + after:   func() { all[2].able.Store(true) },
				72*time.Second + after*2: func() { go all[2].stop() },
				84*time.Second + after:   func() { all = append(all, join(t, replicas, "d")) },
				96*time.Second + after:   func() { all[3].store.Kill(); go all[3].stop() },
			}
			const step = 10 * time.Millisecond
			var sums []float64
			for now := time.Duration(0); now < 110*time.Second; now += step {
				for at, do := range events {
					if at <= now {
						delete(events, at)
						do()
					}
				}
				sum := 0.0
				for _, r := range all {
					select {
					case <-r.done:
					default:
						if r.able.Load() {
							sum += r.share(time.Now())
						}
					}
				}
				if sum > 1.0001 {
					t.Fatalf("after %s the parts add up to %.3f", time.Since(began), sum)
				}
				sums = append(sums, sum)
				time.Sleep(step)
			}
			const window = int(10 * time.Second / step)
			least := 1.0
			for i := window; i+window <= len(sums); i++ {
				sum := 0.0
				for _, s := range sums[i : i+window] {
					sum += s
				}
				least = min(least, sum/float64(window))
			}
			if least < 0.9 {
				t.Errorf("over ten seconds the shares added up to %.3f only; want 0.9", least)
			}
			t.Logf("least over ten seconds: %.3f", least)
		})
	}
}

// A replica that cannot send heartbeats loses its share before others use it.
func TestAShareEndsBeforeOthersUseIt(t *testing.T) {
	inFakeTime(t, func(t *testing.T, replicas *memstore.Replicas) {
		a, b := join(t, replicas, "a"), join(t, replicas, "b")
		time.Sleep(5 * time.Second)
		if a.share(time.Now()) != 0.5 || b.share(time.Now()) != 0.5 {
			t.Fatalf("the shares are %v and %v", a.share(time.Now()), b.share(time.Now()))
		}
		a.store.Kill() // but the process goes on
		for range 300 {
			if sum := a.share(time.Now()) + b.share(time.Now()); sum > 1.0001 {
				t.Fatalf("the shares add up to %v, which is more than 1", sum)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if a.share(time.Now()) != 0 || b.share(time.Now()) != 1 {
			t.Errorf("the shares are %v and %v", a.share(time.Now()), b.share(time.Now()))
		}
	})
}

func TestAnnouncementsArrive(t *testing.T) {
	inFakeTime(t, func(t *testing.T, replicas *memstore.Replicas) {
		a, b := join(t, replicas, "a"), join(t, replicas, "b")
		time.Sleep(time.Second)
		if a.missed.Load() != 1 || b.missed.Load() != 1 {
			t.Errorf("at first it may have missed something %d and %d times", a.missed.Load(), b.missed.Load())
		}
		for i := range 1000 {
			a.Announce(func(s *cluster.Announcement) {
				s.AddFailed("q", [16]byte{byte(i), byte(i >> 8)})
				s.AddFlows(map[string][4]int64{"q": {1, 0, 2, 0}})
				s.AddChanged("op")
			})
		}
		time.Sleep(250 * time.Millisecond)
		b.mu.Lock()
		defer b.mu.Unlock()
		var ids, failed, parked int64
		for _, s := range b.received {
			ids += int64(len(s.Failed["q"]) / 16)
			failed, parked = failed+s.Flows["q"][0], parked+s.Flows["q"][2]
			if s.From != "a" || !slices.Equal(s.Operations, []string{"op"}) {
				t.Errorf("received %+v", s)
			}
		}
		if ids != 1000 || failed != 1000 || parked != 2000 || len(b.received) > 3 {
			t.Errorf("received %d ids, %d failed, %d parked in %d announcements; want 1000, 1000, 2000 in at most 3", ids, failed, parked, len(b.received))
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.received) > 0 {
			t.Errorf("it received its own announcements: %+v", a.received)
		}
	})
}

// Changes in the store are announced even if that fails for a while, and a replica that receives nothing reads the
// store.
func TestMissedAnnouncementsAreFound(t *testing.T) {
	inFakeTime(t, func(t *testing.T, replicas *memstore.Replicas) {
		a, b := join(t, replicas, "a"), join(t, replicas, "b")
		time.Sleep(time.Second)
		a.store.mute.Store(true)
		a.Announce(func(s *cluster.Announcement) {
			s.SideTableChanged = true
			s.AddChanged("op")
			s.AddFlows(map[string][4]int64{"q": {7}})
		})
		time.Sleep(3 * time.Second)
		a.store.mute.Store(false)
		time.Sleep(time.Second)
		b.mu.Lock()
		if len(b.received) != 1 || !b.received[0].SideTableChanged || b.received[0].Flows["q"][0] != 7 || !slices.Equal(b.received[0].Operations, []string{"op"}) {
			t.Errorf("received %+v", b.received)
		}
		b.mu.Unlock()

		polled, missed := b.polled.Load(), b.missed.Load()
		b.store.dropped.Store(true)
		time.Sleep(10 * time.Second)
		if n := b.polled.Load() - polled; n < 19 {
			t.Errorf("a replica that receives nothing has polled %d times in 10 s; want 19", n)
		}
		b.store.dropped.Store(false)
		time.Sleep(5 * time.Second)
		if b.missed.Load() == missed {
			t.Error("OnMissed was not called after 10 s without announcements")
		}
	})
}
