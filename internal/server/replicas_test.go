package server

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// These tests are of several replicas in fake time: their throttles, schedulers and consoles
// as the service has them, over one store, without RabbitMQ.

// The rate of a policy is that of all replicas together, 5 % more or 10 % less, over any ten
// seconds, also while one joins and one dies.
func TestARateIsThatOfAllTogether(t *testing.T) {
	const rate = 40
	together(t, throttle.Rules{Rate: rate, NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
		s.join()
		s.join()
		time.Sleep(3 * time.Second)
		s.due("q", 3000)
		began := time.Now()
		time.Sleep(12 * time.Second)
		s.join()
		time.Sleep(12 * time.Second)
		s.leader().kill()
		time.Sleep(12 * time.Second)
		s.follower().able.Store(false) // it goes on, in this test; its part is the other's
		time.Sleep(12 * time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		most, least := 0, 1<<30
		for at := began.Add(time.Second); at.Before(began.Add(37 * time.Second)); at = at.Add(100 * time.Millisecond) {
			n := 0
			for _, r := range s.returned {
				if !r.Before(at) && r.Before(at.Add(10*time.Second)) {
					n++
				}
			}
			most, least = max(most, n), min(least, n)
		}
		if float64(least) < 0.9*10*rate || float64(most) > 1.05*10*rate {
			t.Errorf("over ten seconds from %d to %d retried, of %d that may", least, most, 10*rate)
		}
		t.Logf("over ten seconds from %d to %d retried, of %d that may; by replica %v", least, most, 10*rate, slices.Collect(maps.Values(s.by)))
		for n, by := range s.by {
			if by < 200 {
				t.Errorf("%s retried %d", n.ID, by)
			}
		}
	})
}

// in_flight too, also where there are more replicas than may be in flight.
func TestInFlightIsOfAllTogether(t *testing.T) {
	for _, most := range []int{2, 7, 100} {
		together(t, throttle.Rules{InFlight: most, Settle: time.Hour, NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
			for range 3 {
				s.join()
			}
			time.Sleep(3 * time.Second)
			s.due("q", 300)
			time.Sleep(10 * time.Second)
			if n := s.count(); n != most {
				t.Errorf("%d are in flight, of %d that may", n, most)
			}
			v := s.follower().Throttle.View("q", time.Now())
			if v.InFlight != most {
				t.Errorf("a replica shows %d in flight, of %d", v.InFlight, most)
			}
		})
	}
}

var boss = auth.Caller{Name: "ann", How: "token", Role: auth.Admin}

// What a person does at one replica is in force at all within a second.
func TestAPauseIsInForceEverywhereWithinASecond(t *testing.T) {
	together(t, throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
		for range 3 {
			s.join()
		}
		time.Sleep(3 * time.Second)
		for _, at := range s.nodes {
			if err := at.Actions.PauseQueue(context.Background(), boss, "q", "why not"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			for _, n := range s.nodes {
				if !slices.Contains(n.Scheduler.Paused(), "q") {
					t.Fatal("a second later another replica has not paused the queue")
				}
			}
			before := s.count()
			s.due("q", 50)
			time.Sleep(5 * time.Second)
			if s.count() != before {
				t.Fatal("messages of a paused queue were retried")
			}
			if err := at.Actions.ResumeQueue(context.Background(), boss, "q", ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			for _, n := range s.nodes {
				if len(n.Scheduler.Paused()) > 0 {
					t.Fatal("a second later another replica still pauses the queue")
				}
			}
		}
		// One that joins pauses what is paused.
		if err := s.nodes[0].Actions.PauseQueue(context.Background(), boss, "q", ""); err != nil {
			t.Fatal(err)
		}
		n := s.join()
		time.Sleep(time.Second)
		if !slices.Contains(n.Scheduler.Paused(), "q") {
			t.Error("a replica that joins has not paused the queue")
		}
	})
}

func TestASetBreakerIsSetEverywhereWithinASecond(t *testing.T) {
	b := throttle.DefaultBreaker()
	together(t, throttle.Rules{Breaker: &b, NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
		for range 3 {
			s.join()
		}
		time.Sleep(3 * time.Second)
		states := func(want throttle.State, forced bool) {
			t.Helper()
			for _, n := range s.nodes {
				if v := n.Throttle.View("q", time.Now()); v.State != want || v.Forced != forced {
					t.Errorf("a second later %s is %s, forced %v; want %s", n.ID, v.State, v.Forced, want)
				}
			}
		}
		for range 2 {
			for _, step := range []struct {
				to     string
				want   throttle.State
				forced bool
			}{{"open", throttle.Open, true}, {"closed", throttle.Closed, true}, {"auto", throttle.Closed, false}} {
				if err := s.follower().Actions.Breaker(context.Background(), boss, "q", step.to, "so"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				states(step.want, step.forced)
			}
		}
		// From open, auto probes: at the leader alone, whatever replica it was said at.
		for _, to := range []string{"open", "auto"} {
			if err := s.follower().Actions.Breaker(context.Background(), boss, "q", to, "so"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		states(throttle.HalfOpen, false)
		s.due("q", 100)
		time.Sleep(5 * time.Second)
		if n := s.count(); n != b.Probes || s.by[s.leader()] != b.Probes {
			t.Errorf("%d retried, %d by the leader; want %d probes", n, s.by[s.leader()], b.Probes)
		}
	})
}

// One breaker for all: it opens by the retries of all replicas, whichever receives the
// failures. Then only the leader retries, its probes, and a new leader continues from there.
func TestOneBreakerForAll(t *testing.T) {
	b := throttle.Breaker{FailureRatio: 0.5, MinRetries: 30, Window: time.Minute, Wait: 10 * time.Second, MaxWait: 20 * time.Second, Probes: 3, Ramp: 30 * time.Second}
	together(t, throttle.Rules{Rate: 30, Breaker: &b, Settle: 5 * time.Second, NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
		for range 3 {
			s.join()
		}
		time.Sleep(3 * time.Second)
		s.failing = true
		s.due("q", 2000)
		time.Sleep(4 * time.Second)
		n := s.count()
		// No replica alone has retried 30 by then.
		if n < 30 || n > 75 {
			t.Errorf("%d retried before the breaker opened; it opens by 30", n)
		}
		for _, r := range s.nodes {
			if v := r.Throttle.View("q", time.Now()); v.State != throttle.Open || v.Until.IsZero() {
				t.Errorf("at %s it is %s", r.ID, v.State)
			}
		}
		time.Sleep(4 * time.Second)
		if s.count() != n {
			t.Errorf("%d retried while it is open", s.count()-n)
		}
		// The leader dies; the next one keeps it open, and probes when it is time.
		old := s.leader()
		old.kill()
		before := maps.Clone(s.by)
		time.Sleep(7 * time.Second)
		leader := s.leader()
		if got := s.by[leader] - before[leader]; s.count() != n+b.Probes || got != b.Probes {
			t.Errorf("%d retried after the wait, %d by the new leader; want %d probes by it", s.count()-n, got, b.Probes)
		}
		// The probes failed: open again, and longer.
		for _, r := range s.nodes {
			if v := r.Throttle.View("q", time.Now()); v.State != throttle.Open {
				t.Errorf("after the probes failed it is %s at %s", v.State, r.ID)
			}
		}
		s.mu.Lock()
		s.failing = false
		s.mu.Unlock()
		time.Sleep(30 * time.Second)
		for _, r := range s.nodes {
			if v := r.Throttle.View("q", time.Now()); v.State != throttle.Ramp {
				t.Errorf("after the probes went well it is %s at %s", v.State, r.ID)
			}
		}
		if s.count() < n+2*b.Probes+20 {
			t.Errorf("%d retried in the ramp", s.count()-n)
		}
		joined := s.join()
		time.Sleep(time.Second)
		if v := joined.Throttle.View("q", time.Now()); v.State != throttle.Ramp {
			t.Errorf("who joins has it %s", v.State)
		}
		time.Sleep(40 * time.Second)
		for _, r := range s.nodes {
			if v := r.Throttle.View("q", time.Now()); v.State != throttle.Closed {
				t.Errorf("in the end it is %s at %s", v.State, r.ID)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if want := []string{"open", "half-open", "open", "half-open", "ramp", "closed"}; !slices.Equal(s.changes, want) {
			t.Errorf("it was decided: %v; want %v, each once", s.changes, want)
		}
	})
}

// What is counted at one is shown at all.
func TestFlowsAreOfAllTogether(t *testing.T) {
	together(t, throttle.Rules{}, func(t *testing.T, s *scene) {
		a, b := s.join(), s.join()
		time.Sleep(2 * time.Second)
		for range 30 {
			a.failed("q", uuid.New())
		}
		for range 12 {
			b.failed("q", uuid.New())
		}
		time.Sleep(time.Second)
		for _, n := range s.nodes {
			if got := n.activity.Minute("q", time.Now()).Failed; got != 42 {
				t.Errorf("%s shows %d failures, not 42", n.ID, got)
			}
		}
	})
}
