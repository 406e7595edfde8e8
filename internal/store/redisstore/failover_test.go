package redisstore_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// traffic adds, claims, finishes and changes by two stores until it is ended.
type traffic struct {
	t      *testing.T
	stores []*redisstore.Store
	stop   chan struct{}
	wg     sync.WaitGroup

	mu       sync.Mutex
	added    map[uuid.UUID]bool // those that Add has confirmed
	finished int
	failed   int
}

func begin(t *testing.T, o redisstore.Options) *traffic {
	x := &traffic{t: t, stop: make(chan struct{}), added: map[uuid.UUID]bool{}}
	for range 2 {
		s := openAt(t, o)
		x.stores = append(x.stores, s)
		x.wg.Go(func() { x.until(func() error { return x.add(s) }) })
		x.wg.Go(func() { x.until(func() error { return x.finish(s) }) })
	}
	return x
}

// until does something again and again.
func (x *traffic) until(do func() error) {
	for {
		select {
		case <-x.stop:
			return
		default:
		}
		if do() != nil {
			x.mu.Lock()
			x.failed++
			x.mu.Unlock()
		}
	}
}

func (x *traffic) add(s *redisstore.Store) error {
	batch := []*store.Record{storetest.Waiting("q", 0, "x"), storetest.Waiting("q", 1, "y"), storetest.Waiting("r", 0, "z")}
	if err := s.Add(ctx, batch); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range batch {
		x.added[r.ID] = true
	}
	return nil
}

func (x *traffic) finish(s *redisstore.Store) error {
	claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, late, 3, 1<<20)
	if err != nil {
		return err
	}
	var out []store.Outcome
	for _, c := range claims {
		out = append(out, store.Outcome{Claim: c, At: late})
	}
	for err = errors.New("not yet"); err != nil; {
		if _, err = s.Finish(ctx, out); err != nil {
			select {
			case <-x.stop:
				return err
			default:
			}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.finished += len(out)
	return nil
}

// progress waits until some more was added and finished.
func (x *traffic) progress() {
	x.t.Helper()
	was := func() (int, int) {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.added), x.finished
	}
	added, finished := was()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if a, s := was(); a >= added+30 && s >= finished+10 {
			return
		}
		if time.Since(began) > time.Minute {
			a, s := was()
			x.t.Fatalf("in a minute %d were added and %d finished", a-added, s-finished)
		}
	}
}

// end stops it, and accounts for all that was added.
func (x *traffic) end() {
	x.t.Helper()
	close(x.stop)
	x.wg.Wait()
	s := x.stores[0]
	kept := map[uuid.UUID]bool{}
	err := s.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) { kept[l.Record.ID] = true; return true, nil })
	if err != nil {
		x.t.Fatal(err)
	}
	past := map[uuid.UUID]int{}
	if err := s.EachPastFailure(ctx, func(p store.PastFailure) (bool, error) { past[p.ID]++; return true, nil }); err != nil {
		x.t.Fatal(err)
	}
	lost, twice := 0, 0
	for id := range x.added {
		if !kept[id] && past[id] == 0 {
			lost++
		}
		if kept[id] && past[id] > 0 || past[id] > 1 {
			twice++
		}
	}
	if lost > 0 || twice > 0 {
		x.t.Errorf("%d of %d are lost, and %d have ended twice", lost, len(x.added), twice)
	}
	storetest.Balances(x.t, s)
	x.t.Logf("%d added, %d finished, %d calls failed", len(x.added), x.finished, x.failed)
}

// A slot moves to another server, key by key, while messages come and go: a script runs
// whole, where all of the store is, or not at all.
func TestASlotMovesWhileItIsUsed(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		c := redisnode.NewCluster(t, o)
		x := begin(t, redisstore.Options{URL: c.URL()})
		for range 10 { // what takes a while to move
			var batch []*store.Record
			for range 100 {
				batch = append(batch, storetest.Waiting("later", 0, "x"))
			}
			if err := x.stores[0].Add(ctx, batch); err != nil {
				t.Fatal(err)
			}
		}
		x.progress()
		slot, err := c.Slot(ctx, "{redrive}:seq")
		if err != nil {
			t.Fatal(err)
		}
		from := c.Owner(ctx, slot)
		for _, to := range c.Servers[:3] {
			if to == from {
				continue
			}
			if err := c.MoveSlot(ctx, slot, to); err != nil {
				t.Fatal(err)
			}
			x.progress()
		}
		x.end()
	})
}

// A primary is replaced: what was confirmed by a replica is there.
func TestAPrimaryIsReplaced(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		t.Run("Sentinel", func(t *testing.T) {
			s := redisnode.NewSentinel(t, o)
			x := begin(t, redisstore.Options{URL: s.URL(), Durability: redisstore.Replicated, Replicas: 1, Timeout: 2 * time.Second})
			x.progress()
			primary := s.Primary(ctx)
			primary.Kill()
			if _, err := s.AwaitPrimary(ctx, primary); err != nil {
				t.Fatal(err)
			}
			x.progress()
			x.end()
		})
		t.Run("cluster", func(t *testing.T) {
			c := redisnode.NewCluster(t, o)
			x := begin(t, redisstore.Options{URL: c.URL(), Durability: redisstore.Replicated, Timeout: 2 * time.Second})
			x.progress()
			slot, err := c.Slot(ctx, "{redrive}:seq")
			if err != nil {
				t.Fatal(err)
			}
			primary := c.Owner(ctx, slot)
			primary.Kill()
			if _, err := c.AwaitOwner(ctx, slot, primary); err != nil {
				t.Fatal(err)
			}
			// Its replica has no replica now: it is well again with the killed one back.
			if err := primary.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			x.progress()
			x.end()
		})
	})
}

// A term that no replica has is not led: the server that gave it may die, and the next
// one gives its number to another. Who leads already goes on.
func TestATermIsNotGivenTwice(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		sentinel := redisnode.NewSentinel(t, o)
		options := redisstore.Options{URL: sentinel.URL(), Durability: redisstore.Replicated, Timeout: 2 * time.Second}
		first, second, third := openAt(t, options), openAt(t, options), openAt(t, options)
		if term, leads, err := first.Lead(ctx, "x", "first", time.Hour); term != 1 || !leads || err != nil {
			t.Fatal(term, leads, err)
		}
		primary := sentinel.Primary(ctx)
		var still []*redisnode.Server
		for _, s := range sentinel.Servers {
			if s != primary {
				still = append(still, s)
				if err := s.Pause(); err != nil {
					t.Fatal(err)
				}
			}
		}
		// What it has not sent them yet is lost with it.
		if _, err := primary.Do(ctx, "CLIENT", "KILL", "TYPE", "replica"); err != nil {
			t.Fatal(err)
		}
		if term, leads, err := first.Lead(ctx, "x", "first", time.Hour); term != 1 || !leads || err != nil {
			t.Errorf("who leads asks again: %d, %v, %v", term, leads, err)
		}
		if err := first.Resign(ctx, "x", "first"); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time it is not a new term
			if term, leads, err := second.Lead(ctx, "x", "second", time.Hour); leads || !errors.Is(err, redisstore.ErrUnconfirmed) {
				t.Errorf("while no replica has it, term %d: %v, %v", term, leads, err)
			}
		}
		primary.Kill()
		for _, s := range still {
			if err := s.Continue(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := sentinel.AwaitPrimary(ctx, primary); err != nil {
			t.Fatal(err)
		}
		// The resignation was lost, too.
		for name, s := range map[string]*redisstore.Store{"second": second, "third": third} {
			if got := leads(t, s, name); got != "1 false" {
				t.Errorf("%s: %s", name, got)
			}
		}
		if err := third.Resign(ctx, "x", "first"); err != nil {
			t.Fatal(err)
		}
		if got := leads(t, third, "third"); got != "2 true" {
			t.Errorf("third: %s", got)
		}
	})
}

// leads is what Lead says, once it says something: connections follow a primary some
// time later, and so do its replicas.
func leads(t *testing.T, s *redisstore.Store, replica string) string {
	t.Helper()
	for began := time.Now(); ; {
		term, leads, err := s.Lead(ctx, "x", replica, time.Hour)
		if err == nil {
			return fmt.Sprint(term, leads)
		}
		if time.Since(began) > time.Minute {
			t.Fatal(err)
		}
	}
}
