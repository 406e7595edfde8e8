package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// These tests are of several replicas in fake time: their throttles, schedulers and consoles
// as the service has them, over one store, without RabbitMQ.

// All replicas together keep a policy's rate, 5 % more or 10 % less, over any ten seconds, also while one joins and one
// dies.
func TestARateIsThatOfAllTogether(t *testing.T) {
	const rate = 40
	together(t, 2, throttle.Rules{Rate: rate, NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
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

// They also keep in_flight, even with more replicas than messages that may be in flight.
func TestInFlightIsOfAllTogether(t *testing.T) {
	for _, most := range []int{2, 7, 100} {
		together(t, 3, throttle.Rules{InFlight: most, Settle: time.Hour, NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
			s.due("q", 300)
			time.Sleep(10 * time.Second)
			expect.Equal(t, s.count(), most, "are in flight, of %d that may", most)
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
	together(t, 3, throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
		for _, at := range s.nodes {
			must(t, at.Actions.PauseQueue(context.Background(), boss, "q", "why not"))
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
			must(t, at.Actions.ResumeQueue(context.Background(), boss, "q", ""))
			time.Sleep(time.Second)
			for _, n := range s.nodes {
				if len(n.Scheduler.Paused()) > 0 {
					t.Fatal("a second later another replica still pauses the queue")
				}
			}
		}
		// One that joins pauses what is paused.
		must(t, s.nodes[0].Actions.PauseQueue(context.Background(), boss, "q", ""))
		n := s.join()
		time.Sleep(time.Second)
		if !slices.Contains(n.Scheduler.Paused(), "q") {
			t.Error("a replica that joins has not paused the queue")
		}
	})
}

func TestASetBreakerIsSetEverywhereWithinASecond(t *testing.T) {
	b := throttle.DefaultBreaker()
	together(t, 3, throttle.Rules{Breaker: &b, NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
		for range 2 {
			for _, step := range []struct {
				to     string
				want   throttle.State
				forced bool
			}{{"open", throttle.Open, true}, {"closed", throttle.Closed, true}, {"auto", throttle.Closed, false}} {
				must(t, s.follower().Actions.Breaker(context.Background(), boss, "q", step.to, "so"))
				time.Sleep(time.Second)
				s.breakerIs("a second later", step.want, step.forced)
			}
		}
		// From open, auto probes: at the leader alone, whatever replica it was said at.
		for _, to := range []string{"open", "auto"} {
			must(t, s.follower().Actions.Breaker(context.Background(), boss, "q", to, "so"))
			time.Sleep(time.Second)
		}
		s.breakerIs("a second later", throttle.HalfOpen, false)
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
	together(t, 3, throttle.Rules{Rate: 30, Breaker: &b, Settle: 5 * time.Second, NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
		s.failing = true
		s.due("q", 2000)
		time.Sleep(4 * time.Second)
		n := s.count()
		// No replica alone has retried 30 by then.
		if n < 30 || n > 75 {
			t.Errorf("%d retried before the breaker opened; it opens by 30", n)
		}
		s.breakerIs("by then", throttle.Open, false)
		for _, r := range s.nodes {
			if r.Throttle.View("q", time.Now()).Until.IsZero() {
				t.Errorf("%s does not say until when it is open", r.ID)
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
		s.breakerIs("after the probes failed", throttle.Open, false)
		s.mu.Lock()
		s.failing = false
		s.mu.Unlock()
		time.Sleep(30 * time.Second)
		s.breakerIs("after the probes went well", throttle.Ramp, false)
		if s.count() < n+2*b.Probes+20 {
			t.Errorf("%d retried in the ramp", s.count()-n)
		}
		s.join()
		time.Sleep(time.Second)
		s.breakerIs("when one has joined", throttle.Ramp, false)
		time.Sleep(40 * time.Second)
		s.breakerIs("in the end", throttle.Closed, false)
		s.mu.Lock()
		defer s.mu.Unlock()
		if want := []string{"open", "half-open", "open", "half-open", "ramp", "closed"}; !slices.Equal(s.changes, want) {
			t.Errorf("it was decided: %v; want %v, each once", s.changes, want)
		}
	})
}

// All replicas show what one counts.
func TestFlowsAreOfAllTogether(t *testing.T) {
	together(t, 2, throttle.Rules{}, func(t *testing.T, s *scene) {
		for i := range 42 {
			s.nodes[min(i/30, 1)].failed("q", uuid.New())
		}
		time.Sleep(time.Second)
		for _, n := range s.nodes {
			expect.Equal(t, n.activity.Minute("q", time.Now()).Failed, 42, "%s shows … failures", n.ID)
		}
	})
}

// scene is what they share.
type scene struct {
	t     *testing.T
	store *memstore.Replicas
	rules throttle.Rules

	mu       sync.Mutex
	returned []time.Time
	by       map[*node]int
	failing  bool // what is retried fails again
	changes  []string
	nodes    []*node
}

// node is one replica.
type node struct {
	*Replica
	scene    *scene
	member   *memstore.Member
	cancel   context.CancelFunc
	done     chan struct{}
	activity activity
	able     atomic.Bool
	mute     atomic.Bool
}

// teller is a node's store, which may be mute.
type teller struct {
	*memstore.Member
	node *node
}

func (t teller) Send(ctx context.Context, topic string, message []byte) error {
	if t.node.mute.Load() {
		return errors.New("mute")
	}
	return t.Member.Send(ctx, topic, message)
}

// Send is the giver of a node: RabbitMQ takes all, at once.
func (*node) IsBinding(string) bool { return false }

func (n *node) Send(_ context.Context, queue string, claims []store.Claim) func(context.Context) []retry.Result {
	s := n.scene
	s.mu.Lock()
	defer s.mu.Unlock()
	fates := make([]retry.Result, len(claims))
	for i, c := range claims {
		fates[i].Done = true
		s.returned = append(s.returned, time.Now())
		s.by[n]++
		if s.failing { // and a moment later another replica takes in that it failed
			id, at := c.Record.ID, s.nodes[(slices.Index(s.nodes, n)+1)%len(s.nodes)]
			time.AfterFunc(300*time.Millisecond, func() { at.failed(queue, id) })
		}
	}
	return func(context.Context) []retry.Result { return fates }
}

// failed passes a failed message to the node's intake.
func (n *node) failed(queue string, id uuid.UUID) {
	e := retry.Event{Kind: retry.Failed, Queue: queue, ID: id, At: time.Now()}
	n.activity.event(e)
	announce(n.Replica, e, n.Throttle.Failed(queue, id, e.At))
}

func (s *scene) join() *node {
	n := &node{scene: s, member: s.store.Join(), done: make(chan struct{})}
	n.able.Store(true)
	log := slog.New(slog.DiscardHandler)
	n.Replica = NewReplica(teller{n.member, n}, func() cluster.About { return cluster.About{Address: "here", CanPublish: n.able.Load()} }, log)
	f := n.Replica
	f.CountFlow = n.activity.count
	f.Throttle = throttle.New(func(string) throttle.Rules { return s.rules }, func() float64 { return 0.5 }, func(t throttle.Transition) {
		s.mu.Lock()
		if !t.OnFollower {
			s.changes = append(s.changes, string(t.To))
		}
		s.mu.Unlock()
		f.PollSoon()
		f.Scheduler.Wake()
	})
	f.Scheduler = retry.NewScheduler(n.member, n, f.Throttle, retry.NewWakeup(), func(retry.Event) {}, log, func(store.Lane, error) {})
	book, there := &inspecttest.AuditLog{}, inspecttest.NewQueues()
	there.Set("q", inspect.AtBroker{Exists: true, Consumers: 1})
	f.Inspect = inspect.New(inspect.Config{Store: n.member, Broker: there, Audit: book, Activity: &n.activity,
		Policies: inspecttest.Everything,
		Replicas: f.Shown, Changed: f.Changed})
	f.Actions = actions.New(actions.Config{Inspect: f.Inspect, Store: n.member, Audit: book, Restorable: time.Hour,
		SetPaused: f.Scheduler.Pause, Force: func(queue, to, by, why string) { _ = f.Throttle.Force(queue, to, by, why, time.Now()) }})
	f.Operations = operations.New(operations.Config{Inspect: f.Inspect, Actions: f.Actions, Store: n.member, Replica: f.ID})
	f.LeaderTasks = []func(context.Context){f.Inspect.Lead, f.Operations.Lead}
	f.Throttle.SetLeads(false)
	f.Throttle.SetShare(throttle.Share{}, time.Now())
	var ctx context.Context
	ctx, n.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	s.nodes = append(s.nodes, n)
	s.mu.Unlock()
	go func() {
		defer close(n.done)
		var all sync.WaitGroup
		all.Go(func() { f.Run(ctx) })
		all.Go(func() { f.Scheduler.Run(ctx, time.Second) })
		all.Go(func() { f.Inspect.Run(ctx) })
		all.Go(func() { f.Operations.Run(ctx) })
		all.Wait()
	}()
	s.t.Cleanup(func() { n.cancel(); <-n.done })
	return n
}

// kill ends a node as SIGKILL does.
func (n *node) kill() {
	n.member.Kill()
	n.scene.mu.Lock()
	n.scene.nodes = slices.DeleteFunc(n.scene.nodes, func(o *node) bool { return o == n })
	n.scene.mu.Unlock()
	n.cancel()
}

func (s *scene) leader() *node {
	s.t.Helper()
	var leads []*node
	for _, n := range s.nodes {
		if n.Leads() {
			leads = append(leads, n)
		}
	}
	if len(leads) != 1 {
		s.t.Fatalf("%d lead", len(leads))
	}
	return leads[0]
}

func (s *scene) follower() *node {
	s.t.Helper()
	leader := s.leader()
	return s.nodes[slices.IndexFunc(s.nodes, func(n *node) bool { return n != leader })]
}

// breakerIs checks the state of a breaker at each node.
func (s *scene) breakerIs(when string, want throttle.State, forced bool) {
	s.t.Helper()
	for _, n := range s.nodes {
		v := n.Throttle.View("q", time.Now())
		expect.Equal(s.t, v.State, want, "%s at %s", when, n.ID)
		expect.Equal(s.t, v.Forced, forced, "%s at %s: forced", when, n.ID)
	}
}

func (s *scene) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.returned)
}

// due adds n messages that are due at once.
func (s *scene) due(queue string, n int) { s.add(queue, store.Waiting, n) }

func (s *scene) add(queue string, state store.State, n int) {
	var all []*store.Record
	for range n {
		all = append(all, &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: state, Due: time.Now(),
			FailedAt: time.Now(), Failures: 1, Message: wire.Message{Body: []byte("x")}})
	}
	must(s.t, s.nodes[0].member.Add(context.Background(), all))
}

// together runs a test with n replicas, one of which leads.
func together(t *testing.T, n int, rules throttle.Rules, test func(t *testing.T, s *scene)) {
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, store: memstore.NewReplicas(), rules: rules, by: map[*node]int{}}
		for range n {
			s.join()
		}
		time.Sleep(3 * time.Second)
		test(t, s)
	})
}

// planned makes a plan, at the first replica, to discard n parked messages.
func (s *scene) planned(n int) operations.Plan {
	s.t.Helper()
	s.add("q", store.Parked, n)
	request := operations.PlanRequest{Verb: actions.Discard, Query: "queue:q state:parked"}
	plan, err := s.nodes[0].Operations.Plan(context.Background(), boss, request)
	if err != nil || plan.Count != int64(n) {
		s.t.Fatalf("planned %d, %v", plan.Count, err)
	}
	return plan
}

// started starts an operation, at the first replica, that discards n messages, and returns its id.
func (s *scene) started(n int, rate float64) string {
	s.t.Helper()
	id := s.planned(n).ID
	must(s.t, errOf(s.nodes[0].Operations.Start(context.Background(), boss, id, operations.Start{Rate: rate})))
	return id
}

// An operation planned at one replica, started at another and paused at a third continues when that dies, and changes
// each message once.
func TestAnOperationIsOfAllTogether(t *testing.T) {
	together(t, 3, throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
		ctx := context.Background()
		const n = 900
		plan := s.planned(n)
		op, err := s.nodes[1].Operations.Start(ctx, boss, plan.ID, operations.Start{Rate: 50}) // at once, and elsewhere
		if err != nil || op.State != operations.Running {
			t.Fatalf("started: %s, %v", op.State, err)
		}
		expect.Err(t, errOf(s.nodes[2].Operations.Start(ctx, boss, plan.ID, operations.Start{})),
			inspect.ErrPrecondition, "started twice")
		time.Sleep(4 * time.Second)
		all := func() (done []int64, states []string) {
			for _, r := range s.nodes {
				op, err := r.Operations.Operation(ctx, boss, plan.ID)
				must(t, err)
				done, states = append(done, op.Done), append(states, op.State)
			}
			return done, states
		}
		if done, states := all(); slices.Min(done) < 150 || slices.Max(done) > 250 || slices.Max(done)-slices.Min(done) > 15 {
			t.Errorf("after 4 s at 50 a second: %v done, %v", done, states)
		}
		asked := time.Now()
		if op, err = s.nodes[2].Operations.Order(ctx, boss, plan.ID, operations.Pause); err != nil || op.State != operations.Paused {
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
		// While it is paused the replica that has it dies; the next one keeps it so.
		s.nodes[2].kill()
		time.Sleep(6 * time.Second)
		if later, states := all(); later[0] != paused[0] || states[0] != operations.Paused {
			t.Errorf("paused, and the replica died: %v, %v", later, states)
		}
		old := s.nodes[1]
		must(t, errOf(old.Operations.Order(ctx, boss, plan.ID, operations.Resume)))
		time.Sleep(3 * time.Second)
		s.join()
		before, _ := all()
		if before[0] <= paused[0] {
			t.Errorf("resumed: %v", before)
		}
		// The others have not heard of the last steps that it did.
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
				t.Fatal("6 s after the replica died the operation does not go on")
			}
		}
		time.Sleep(30 * time.Second)
		seen := map[string]int{}
		for after := ""; ; {
			page, err := s.nodes[0].Operations.Outcomes(ctx, boss, plan.ID, after, 1000)
			must(t, err)
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
			expect.Equal(t, times, 1, "%s is in the account … times", id)
		}
		if _, states := all(); len(seen) != n || states[0] != operations.Finished || states[1] != operations.Finished {
			t.Errorf("%d of %d in the account, %v", len(seen), n, states)
		}
	})
}

// All replicas finally show the last change of a replica that died before it announced it.
func TestWhatAReplicaDidNotTellIsFound(t *testing.T) {
	together(t, 3, throttle.Rules{}, func(t *testing.T, s *scene) {
		ctx := context.Background()
		id := s.started(100, 50)
		time.Sleep(time.Second)
		for _, n := range s.nodes { // all have read it
			if op, err := n.Operations.Operation(ctx, boss, id); err != nil || op.State != operations.Running {
				t.Errorf("%s shows it %s: %v", n.ID, op.State, err)
			}
		}
		s.nodes[0].mute.Store(true)
		time.Sleep(3 * time.Second)
		s.nodes[0].kill()
		time.Sleep(40 * time.Second)
		for _, n := range s.nodes {
			if op, err := n.Operations.Operation(ctx, boss, id); err != nil || op.State != operations.Finished || op.Done != 100 {
				t.Errorf("%s shows it %s, %d done: %v", n.ID, op.State, op.Done, err)
			}
		}
	})
}

// Repeated failures are still counted after the replica that ran the operation dies, and all show them.
func TestWhatFailedAgainIsCountedByWhoeverIsLeft(t *testing.T) {
	together(t, 3, throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers}, func(t *testing.T, s *scene) {
		ctx := context.Background()
		s.add("q", store.Parked, 10)
		request := operations.PlanRequest{Verb: actions.Replay, Query: "queue:q"}
		plan, err := s.nodes[0].Operations.Plan(ctx, boss, request)
		must(t, err)
		must(t, errOf(s.nodes[0].Operations.Start(ctx, boss, plan.ID, operations.Start{CanaryWait: "1m"})))
		shown := func(sent, again int64, over bool) {
			t.Helper()
			for _, n := range s.nodes {
				op, err := n.Operations.Operation(ctx, boss, plan.ID)
				must(t, err)
				is := op.Replayed
				if is == nil || is.Sent != sent || is.FailedAgain != again || (is.Until != nil) != over {
					t.Errorf("%s shows %+v, want %d sent, %d failed again; over: %t", n.ID, is, sent, again, over)
				}
			}
		}
		fails := func(i int) {
			id, err := uuid.Parse(plan.Samples[i].ID)
			must(t, err)
			must(t, s.nodes[1].member.Add(ctx, []*store.Record{{
				ID: id, Queue: "q", State: store.Parked, Due: time.Now(),
				FailedAt: time.Now(), Failures: 1, Error: "no stock", Message: wire.Message{Body: []byte("x")},
			}}))
		}
		time.Sleep(5 * time.Second)
		fails(0)
		time.Sleep(10 * time.Second)
		shown(10, 1, false)
		s.nodes[0].kill()
		fails(1)
		time.Sleep(20 * time.Second)
		shown(10, 2, false)
		time.Sleep(2 * time.Minute)
		shown(10, 2, true)
	})
}

// A request is done at once, even if the replica with the operation has just died and there is no leader.
func TestAnOrderWaitsForNoReplica(t *testing.T) {
	together(t, 2, throttle.Rules{}, func(t *testing.T, s *scene) {
		ctx := context.Background()
		id := s.started(500, 10)
		time.Sleep(3 * time.Second)
		s.nodes[0].kill()
		at, asked := s.nodes[0], time.Now()
		op, err := at.Operations.Order(ctx, boss, id, operations.Pause)
		if err != nil || op.State != operations.Paused {
			t.Fatalf("%s, %v", op.State, err)
		}
		if took := time.Since(asked); took > 0 {
			t.Errorf("it took %s", took)
		}
		done := op.Done
		time.Sleep(5 * time.Second)
		if op, err = at.Operations.Operation(ctx, boss, id); err != nil || op.Done != done || op.State != operations.Paused {
			t.Errorf("%s, %d done, then %d: %v", op.State, done, op.Done, err)
		}
	})
}

// A replica that stood still while another took its operation over writes no more of it.
func TestAStoppedReplicaSpoilsNoOperation(t *testing.T) {
	together(t, 1, throttle.Rules{}, func(t *testing.T, s *scene) {
		ctx, other := context.Background(), s.store.Join()
		beats := 0
		beat := func() {
			beats++
			_, err := other.Beat(ctx, "other", fmt.Appendf(nil, `{"n":%d}`, beats), time.Minute)
			must(t, err)
			time.Sleep(time.Second)
		}
		id := s.started(100, 10)
		beat()
		// The other takes it behind its back.
		if _, leads, err := other.Lead(ctx, "operation/"+id+"/", "other", time.Minute); err != nil || !leads {
			t.Fatal(leads, err)
		}
		progress, err := other.Entry(ctx, "operation/"+id+"/progress")
		must(t, err)
		progress = bytes.Replace(progress, []byte(s.nodes[0].ID), []byte("other"), 1)
		must(t, other.PutEntries(ctx, []store.Entry{{Name: "operation/" + id + "/progress", Value: progress}}))
		counts := func() string {
			c, err := other.Counts(ctx)
			p, err2 := other.Entry(ctx, "operation/"+id+"/progress")
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			return fmt.Sprint(c[0].Parked, c[0].Discarded, string(p))
		}
		before := counts()
		for range 5 {
			beat()
		}
		expect.Equal(t, counts(), before, "was %s, is", before)
	})
}
