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
	"syscall"
	"testing"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
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
	p, err := d.Plan(ctx, operator, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders"})
	must(t, err)
	copies, err := d.Plan(ctx, caller(auth.Editor), operations.PlanRequest{Verb: actions.Copy, Query: "queue:mail", To: "other"})
	must(t, err)
	d.begin(t, p, operations.Start{Rate: 2000, CanarySize: 10, CanaryWait: "100ms"})
	if _, err := d.Start(ctx, caller(auth.Editor), copies.ID, operations.Start{Rate: 2000}); err != nil {
		t.Fatal(err)
	}
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

// must ends a test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
