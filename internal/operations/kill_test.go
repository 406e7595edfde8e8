package operations_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/proxy"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

const (
	childFolder = "REDRIVE_TEST_CHILD_FOLDER"
	killed      = 2500 // messages
)

// A service that is killed at any point of an operation goes on where it was: in
// the end each message was processed once, and has one outcome, in order.
func TestAKilledOperationDoesEachMessageOnce(t *testing.T) {
	path := t.TempDir()
	s := openDisk(t, path)
	d := newDesk(s)
	all := map[string][]*store.Record{"orders": d.parked(t, "orders", killed), "mail": d.parked(t, "mail", killed)}
	p := d.planAs(t, operator, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders"})
	copies, err := d.Plan(ctx, caller(auth.Editor), operations.PlanRequest{Verb: actions.Copy, Query: "queue:mail", To: "other"})
	must(t, err)
	d.begin(t, p, operations.Start{Rate: 2000, CanarySize: 10, CanaryWait: "100ms"})
	must(t, errOf(d.Start(ctx, caller(auth.Editor), copies.ID, operations.Start{Rate: 2000})))
	must(t, s.Close())
	lives := 0
	for ended := false; !ended; lives++ {
		if lives == 100 {
			t.Fatal("after 100 lives it has not ended")
		}
		ended = live(t, path, 1+rand.IntN(10))
	}
	t.Logf("%d lives", lives)
	if lives < 2 {
		t.Error("it was never killed: that shows nothing")
	}

	s = openDisk(t, path)
	defer s.Close()
	d = newDesk(s)
	d.is(t, p.ID, operations.Finished, killed)
	d.is(t, copies.ID, operations.Finished, killed)
	made := map[string]bool{}
	for queue, id := range map[string]string{"orders": p.ID, "mail": copies.ID} {
		got := d.outcomes(t, id)
		if len(got) != killed {
			t.Fatalf("%d outcomes of %d messages", len(got), killed)
		}
		for i, o := range got {
			if o.ID != all[queue][i].ID.String() || o.Outcome != "done" || made[o.New] {
				t.Fatalf("outcome %d: %+v, want one of %s", i, o, all[queue][i].ID)
			}
			if o.New != "" {
				made[o.New] = true
			}
		}
	}
	// The copies that the outcomes name are those in the store.
	page := map[string]int{}
	err = s.Scan(ctx, store.Range{Queues: []string{"other"}}, func(l store.Listed) (bool, error) {
		page[l.Record.ID.String()]++
		return true, nil
	})
	if err != nil || len(page) != killed || !maps.EqualFunc(page, made, func(n int, _ bool) bool { return n == 1 }) {
		t.Errorf("%d copies are kept, and the outcomes name %d, %v", len(page), len(made), err)
	}
	counts, err := s.Counts(ctx)
	if at := slices.IndexFunc(counts, func(c store.QueueCount) bool { return c.Queue == "orders" }); err != nil || at >= 0 && counts[at].Parked != 0 {
		t.Errorf("%+v, %v", counts, err)
	}
}

// live starts a child and kills it after it has said so many lines. It tells
// whether the child ended by itself, with nothing left to do.
func live(t *testing.T, path string, lines int) (ended bool) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestChildThatIsKilled$")
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%s", childFolder, path))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	said := bufio.NewScanner(out)
	n := 0
	for said.Scan() {
		if n++; n == lines {
			_ = child.Process.Kill()
		}
	}
	// Whoever else kills it, such as a machine that is out of memory, does the same.
	if err = child.Wait(); err != nil && !wasKilled(err) {
		t.Fatalf("the child failed: %v", err)
	}
	return err == nil
}

func wasKilled(err error) bool {
	var ended *exec.ExitError
	if !errors.As(err, &ended) {
		return false
	}
	status, ok := ended.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// TestChildThatIsKilled is the other process: it goes on with the operations, and
// says a line for each step, until it is killed or they have ended. What it
// replays returns to a queue and does not fail again.
func TestChildThatIsKilled(t *testing.T) {
	path := os.Getenv(childFolder)
	if path == "" {
		t.Skip("only as the child of another test")
	}
	s := openDisk(t, path)
	d := newDesk(s)
	steps := make(chan struct{}, 1)
	d.Actions.Events = func(e retry.Event) {
		fmt.Println(e.Kind, e.N)
		select {
		case steps <- struct{}{}:
		default:
		}
	}
	running, cancel := context.WithCancel(ctx)
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		d.Runner.Run(running)
	}()
	left := func() (n int) {
		all, err := d.Operations(ctx, operator)
		if err != nil {
			panic(err)
		}
		for _, o := range all {
			if o.Ended == nil {
				n++
			}
		}
		return n
	}
	for left() > 0 {
		select {
		case <-steps:
		case <-s.Changed():
		}
		d.give(t, "orders", func(*store.Record) bool { return false })
	}
	cancel()
	<-stop
	if err := s.Close(); err != nil {
		panic(err)
	}
}

var must, errOf = expect.NoError, expect.ErrOf

// losing is a store on Redis whose answers to the first few changes do not arrive.
type losing struct {
	*redisstore.Store
	between *proxy.Proxy
	lose    atomic.Int64
}

func (l *losing) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (int, error) {
	if l.lose.Add(-1) < 0 {
		return l.Store.Change(ctx, keys, edit, entries)
	}
	release := func() {}
	defer func() { release() }()
	return l.Store.Change(ctx, keys, edit, func(n int) []store.Entry {
		_, _, _ = l.Free() // how much room there is is known now, so nothing but the change is asked
		release = l.between.HoldAnswers()
		return entries(n)
	})
}

// An operation whose steps Redis executes, but whose answers are lost, copies each message
// once, and skips none as one that no longer exists.
func TestAStepWhoseAnswerWasLostIsDoneOnce(t *testing.T) {
	const n = 1500
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		o.Config = "maxmemory 1gb"
		server := redisnode.New(t, o)
		for _, verb := range []actions.Verb{actions.Copy, actions.Discard} {
			t.Run(string(verb), func(t *testing.T) {
				between := proxy.New(t, server.Addr())
				ro := redisstore.Options{URL: "redis://" + between.Addr(), Prefix: string(verb), Timeout: 4 * time.Second}
				s, err := redisstore.Open(ctx, ro)
				must(t, err)
				defer s.Close()
				l := &losing{Store: s, between: between}
				d := newDesk(l)
				d.parked(t, "orders", n)
				request := operations.PlanRequest{Verb: verb, Query: "queue:orders"}
				if verb == actions.Copy {
					request.To = "other"
				}
				p := d.planAs(t, caller(auth.Editor), request)
				l.lose.Store(1)
				must(t, errOf(d.Start(ctx, caller(auth.Editor), p.ID, operations.Start{})))
				stop := d.run(t)
				defer stop()
				brokertest.Eventually(t, "the operation has ended", func() bool { return d.look(t, p.ID).Ended != nil })
				d.is(t, p.ID, operations.Finished, n)
				counts, err := s.Counts(ctx)
				must(t, err)
				got := map[string]int64{}
				for _, c := range counts {
					got[c.Queue] = c.Waiting + c.Discarded
				}
				if got[map[actions.Verb]string{actions.Copy: "other", actions.Discard: "orders"}[verb]] != n {
					t.Errorf("%s of %d messages did %v", verb, n, got)
				}
				all := d.outcomes(t, p.ID)
				seen := map[string]bool{}
				for _, o := range all {
					seen[o.ID] = true
				}
				if len(all) != n || len(seen) != n {
					t.Errorf("%d outcomes, of %d messages", len(all), len(seen))
				}
			})
		}
	})
}
