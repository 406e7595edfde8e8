package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// An operation that is planned at one replica, started at another and paused at a
// third runs at the leader, goes on where it was when that dies, and does each message
// once.
func TestAnOperationIsOfAllTogether(t *testing.T) {
	together(t, throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
		ctx := context.Background()
		for range 3 {
			s.join()
		}
		time.Sleep(3 * time.Second)
		const n = 900
		s.park("q", n)
		plan, err := s.nodes[0].Operations.Plan(ctx, boss, operations.PlanRequest{Verb: actions.Discard, Query: "queue:q state:parked"})
		if err != nil || plan.Count != n {
			t.Fatalf("planned %d, %v", plan.Count, err)
		}
		op, err := s.nodes[1].Operations.Start(ctx, boss, plan.ID, operations.Start{Rate: 50}) // at once, and elsewhere
		if err != nil || op.State != operations.Running {
			t.Fatalf("started: %s, %v", op.State, err)
		}
		if _, err := s.nodes[2].Operations.Start(ctx, boss, plan.ID, operations.Start{}); !errors.Is(err, inspect.ErrPrecondition) {
			t.Errorf("started twice: %v", err)
		}
		time.Sleep(4 * time.Second)
		all := func() (done []int64, states []string) {
			for _, r := range s.nodes {
				op, err := r.Operations.Operation(ctx, boss, plan.ID)
				if err != nil {
					t.Fatal(err)
				}
				done, states = append(done, op.Done), append(states, op.State)
			}
			return done, states
		}
		if done, states := all(); slices.Min(done) < 150 || slices.Max(done) > 250 || slices.Max(done)-slices.Min(done) > 15 {
			t.Errorf("after 4 s at 50 a second: %v done, %v", done, states)
		}
		asked := time.Now()
		if op, err = s.follower().Operations.Order(ctx, boss, plan.ID, operations.Pause); err != nil || op.State != operations.Paused {
			t.Fatalf("paused: %s, %v", op.State, err)
		}
		if took := time.Since(asked); took > time.Second {
			t.Errorf("a pause at another replica took %s", took)
		}
		time.Sleep(time.Second)
		paused, states := all()
		time.Sleep(5 * time.Second)
		if later, _ := all(); !slices.Equal(paused, later) || slices.Compact(slices.Clone(paused))[0] != paused[2] || states[0] != operations.Paused || states[2] != operations.Paused {
			t.Errorf("paused: %v, and 5 s later %v; %v", paused, later, states)
		}
		// While it is paused the leader dies; the next one keeps it so.
		s.leader().kill()
		time.Sleep(6 * time.Second)
		if later, states := all(); later[0] != paused[0] || states[0] != operations.Paused {
			t.Errorf("paused, and the leader died: %v, %v", later, states)
		}
		if _, err := s.follower().Operations.Order(ctx, boss, plan.ID, operations.Resume); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		s.join()
		before, _ := all()
		if before[0] <= paused[0] {
			t.Errorf("resumed: %v", before)
		}
		// The others have not heard of the last steps that the leader did.
		old := s.leader()
		old.mute.Store(true)
		time.Sleep(time.Second)
		died := time.Now()
		old.kill()
		for {
			time.Sleep(100 * time.Millisecond)
			if later, _ := all(); slices.Min(later) > slices.Max(before)+10 {
				break
			}
			if time.Since(died) > 6*time.Second {
				t.Fatal("6 s after the leader died the operation does not go on")
			}
		}
		time.Sleep(30 * time.Second)
		seen := map[string]int{}
		for after := ""; ; {
			page, err := s.nodes[0].Operations.Outcomes(ctx, boss, plan.ID, "", after, 1000)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range page.Outcomes {
				if seen[o.ID]++; o.Outcome != "done" {
					t.Errorf("%s: %s, %s", o.ID, o.Outcome, o.Why)
				}
			}
			if after = page.After; after == "" {
				break
			}
		}
		for id, times := range seen {
			if times != 1 {
				t.Errorf("%s is in the account %d times", id, times)
			}
		}
		if _, states := all(); len(seen) != n || states[0] != operations.Finished || states[1] != operations.Finished {
			t.Errorf("%d of %d in the account, %v", len(seen), n, states)
		}
	})
}

// What a leader did last, and did not live to tell, is shown by all in the end.
func TestWhatALeaderDidNotTellIsFound(t *testing.T) {
	together(t, throttle.Rules{}, func(t *testing.T, s *scene) {
		ctx := context.Background()
		for range 3 {
			s.join()
		}
		time.Sleep(3 * time.Second)
		s.park("q", 100)
		plan, err := s.nodes[0].Operations.Plan(ctx, boss, operations.PlanRequest{Verb: actions.Discard, Query: "queue:q"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.nodes[0].Operations.Start(ctx, boss, plan.ID, operations.Start{Rate: 50}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for _, n := range s.nodes { // all have read it
			if op, err := n.Operations.Operation(ctx, boss, plan.ID); err != nil || op.State != operations.Running {
				t.Errorf("%s shows it %s: %v", n.ID, op.State, err)
			}
		}
		s.leader().mute.Store(true)
		time.Sleep(3 * time.Second)
		s.leader().kill()
		time.Sleep(40 * time.Second)
		for _, n := range s.nodes {
			if op, err := n.Operations.Operation(ctx, boss, plan.ID); err != nil || op.State != operations.Finished || op.Done != 100 {
				t.Errorf("%s shows it %s, %d done: %v", n.ID, op.State, op.Done, err)
			}
		}
	})
}

// An order that is given while no one leads is done by who leads next.
func TestAnOrderOutlivesTheLeader(t *testing.T) {
	together(t, throttle.Rules{}, func(t *testing.T, s *scene) {
		ctx := context.Background()
		s.join()
		s.join()
		time.Sleep(3 * time.Second)
		s.park("q", 500)
		plan, err := s.nodes[0].Operations.Plan(ctx, boss, operations.PlanRequest{Verb: actions.Discard, Query: "queue:q"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.nodes[0].Operations.Start(ctx, boss, plan.ID, operations.Start{Rate: 10}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		s.leader().kill()
		at := s.nodes[0]
		op, err := at.Operations.Order(ctx, boss, plan.ID, operations.Pause) // it waits for the next leader
		if err != nil || op.State != operations.Paused {
			t.Fatalf("%s, %v", op.State, err)
		}
		at.able.Store(false)
		done := op.Done
		time.Sleep(5 * time.Second)
		if op, err = at.Operations.Operation(ctx, boss, plan.ID); err != nil || op.Done != done || op.State != operations.Paused {
			t.Errorf("%s, %d done, then %d: %v", op.State, done, op.Done, err)
		}
	})
}

// A leader that is stopped for a while, and another leads meanwhile, writes nothing of
// an operation any more.
func TestAFormerLeaderSpoilsNoOperation(t *testing.T) {
	together(t, throttle.Rules{}, func(t *testing.T, s *scene) {
		ctx := context.Background()
		a := s.join()
		time.Sleep(2 * time.Second)
		s.park("q", 100)
		plan, err := a.Operations.Plan(ctx, boss, operations.PlanRequest{Verb: actions.Discard, Query: "queue:q"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Operations.Start(ctx, boss, plan.ID, operations.Start{Rate: 10}); err != nil {
			t.Fatal(err)
		}
		// Another becomes the leader behind its back, as when it was stopped past its time.
		other := s.store.Join()
		if err := other.Resign(ctx, "service", a.ID); err != nil {
			t.Fatal(err)
		}
		if _, leads, err := other.Lead(ctx, "service", "other", time.Minute); err != nil || !leads {
			t.Fatal(leads, err)
		}
		counts := func() string {
			c, err := other.Counts(ctx)
			p, err2 := other.Entry(ctx, "operation/"+plan.ID+"/progress")
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			return fmt.Sprint(c[0].Parked, c[0].Discarded, string(p))
		}
		before := counts()
		time.Sleep(5 * time.Second)
		if after := counts(); after != before {
			t.Errorf("was %s, is %s", before, after)
		}
	})
}
