package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// These tests are of several replicas in turned time: their gates, loops and consoles
// as the service has them, over one store, without RabbitMQ.

// scene is what they share.
type scene struct {
	t     *testing.T
	store *memstore.Replicas
	rules throttle.Rules

	mu       sync.Mutex
	returned []time.Time
	by       map[*node]int
	failing  bool // what returns fails again
	changes  []string
	down     bool // the consumers, see fail
	nodes    []*node
}

// node is one replica.
type node struct {
	*fleet
	scene  *scene
	member *memstore.Member
	cancel context.CancelFunc
	done   chan struct{}
	rates  rates
	able   atomic.Bool
	mute   atomic.Bool
}

// teller is a node's store, which may be mute.
type teller struct {
	*memstore.Member
	node *node
}

func (t teller) Tell(ctx context.Context, topic string, said []byte) error {
	if t.node.mute.Load() {
		return errors.New("mute")
	}
	return t.Member.Tell(ctx, topic, said)
}

type auditLog struct{}

func (auditLog) Begin(audit.Entry) (func(string, int64), error) { return func(string, int64) {}, nil }
func (auditLog) Before(context.Context, int64, func(audit.Entry) (bool, error)) error {
	return nil
}

type allThere struct{}

func (allThere) Queue(context.Context, string) (console.AtBroker, error) {
	return console.AtBroker{Exists: true, Consumers: 1}, nil
}

// Send is the giver of a node: RabbitMQ takes all, at once.
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

// failed is that the intake of this node has a message that failed.
func (n *node) failed(queue string, id uuid.UUID) {
	e := retry.Event{Kind: retry.Failed, Queue: queue, ID: id, At: time.Now()}
	n.rates.event(e)
	n.event(e, n.gate.Failed(queue, id, e.At))
}

func (s *scene) join() *node {
	n := &node{scene: s, member: s.store.Join(), done: make(chan struct{})}
	n.able.Store(true)
	log := slog.New(slog.DiscardHandler)
	n.fleet = newFleet(teller{n.member, n}, func() cluster.About { return cluster.About{Address: "here", Able: n.able.Load()} }, log)
	f := n.fleet
	f.rates = &n.rates
	f.gate = throttle.New(func(string) throttle.Rules { return s.rules }, func() float64 { return 0.5 }, func(t throttle.Transition) {
		s.mu.Lock()
		if !t.Followed {
			s.changes = append(s.changes, string(t.To))
		}
		s.mu.Unlock()
		f.LookSoon()
		f.loop.Wake()
	})
	f.loop = retry.NewScheduler(n.member, n, f.gate, func(retry.Event) {}, log, func(store.Lane, error) {})
	f.console = console.New(console.Config{Store: n.member, Broker: allThere{}, Audit: auditLog{}, Restorable: time.Hour,
		Policies: func() policy.Set { return policy.Set{{Name: "p", Queues: []string{"*"}}} }, Rates: f.rates,
		SetHeld: f.loop.Hold, Force: func(queue, to, by, why string) { _ = f.gate.Force(queue, to, by, why, time.Now()) },
		Replicas: consoleReplicas{f}})
	f.alone = []func(context.Context){f.console.Lead}
	f.gate.SetLeads(false)
	f.gate.SetPart(throttle.Part{}, time.Now())
	var ctx context.Context
	ctx, n.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	s.nodes = append(s.nodes, n)
	s.mu.Unlock()
	go func() {
		defer close(n.done)
		var all sync.WaitGroup
		all.Go(func() { f.Run(ctx) })
		all.Go(func() { f.loop.Run(ctx, time.Second) })
		all.Go(func() { _ = f.console.Run(ctx) })
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

func (s *scene) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.returned)
}

// due adds n messages that are due at once.
func (s *scene) due(queue string, n int) {
	var all []*store.Record
	for range n {
		all = append(all, &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: store.Waiting, Due: time.Now(), FailedAt: time.Now(), Attempt: 1, Message: wire.Message{Body: []byte("x")}})
	}
	if err := s.nodes[0].member.Add(context.Background(), all); err != nil {
		s.t.Fatal(err)
	}
}

func together(t *testing.T, rules throttle.Rules, test func(t *testing.T, s *scene)) {
	synctest.Test(t, func(t *testing.T) {
		test(t, &scene{t: t, store: memstore.NewReplicas(), rules: rules, by: map[*node]int{}})
	})
}

// The rate of a policy is that of all replicas together, 5 % more or 10 % less, over any ten
// seconds, also while one joins and one dies.
func TestARateIsThatOfAllTogether(t *testing.T) {
	const rate = 40
	together(t, throttle.Rules{Rate: rate, NoConsumer: throttle.Return}, func(t *testing.T, s *scene) {
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
			t.Errorf("over ten seconds from %d to %d returned, of %d that may", least, most, 10*rate)
		}
		t.Logf("over ten seconds from %d to %d returned, of %d that may; by replica %v", least, most, 10*rate, slices.Collect(maps.Values(s.by)))
		for n, by := range s.by {
			if by < 200 {
				t.Errorf("%s returned %d", n.ID, by)
			}
		}
	})
}

// in_flight too, also where there are more replicas than may be in flight.
func TestInFlightIsOfAllTogether(t *testing.T) {
	for _, most := range []int{2, 7, 100} {
		together(t, throttle.Rules{InFlight: most, Settle: time.Hour, NoConsumer: throttle.Return}, func(t *testing.T, s *scene) {
			for range 3 {
				s.join()
			}
			time.Sleep(3 * time.Second)
			s.due("q", 300)
			time.Sleep(10 * time.Second)
			if n := s.count(); n != most {
				t.Errorf("%d are in flight, of %d that may", n, most)
			}
			v := s.follower().gate.View("q", time.Now())
			if v.InFlight != most {
				t.Errorf("a replica shows %d in flight, of %d", v.InFlight, most)
			}
		})
	}
}

var boss = auth.Caller{Name: "ann", How: "token", Role: auth.Admin}

// What a person does at one replica holds at all within a second.
func TestAHoldHoldsEverywhereWithinASecond(t *testing.T) {
	together(t, throttle.Rules{NoConsumer: throttle.Return}, func(t *testing.T, s *scene) {
		for range 3 {
			s.join()
		}
		time.Sleep(3 * time.Second)
		for _, at := range s.nodes {
			if err := at.console.Hold(context.Background(), boss, "q", "why not"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			for _, n := range s.nodes {
				if !slices.Contains(n.loop.Held(), "q") {
					t.Fatal("a second later another replica does not hold the queue")
				}
			}
			before := s.count()
			s.due("q", 50)
			time.Sleep(5 * time.Second)
			if s.count() != before {
				t.Fatal("a held queue got messages back")
			}
			if err := at.console.Release(context.Background(), boss, "q", ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			for _, n := range s.nodes {
				if len(n.loop.Held()) > 0 {
					t.Fatal("a second later another replica holds the queue still")
				}
			}
		}
		// One that joins holds what is held.
		if err := s.nodes[0].console.Hold(context.Background(), boss, "q", ""); err != nil {
			t.Fatal(err)
		}
		n := s.join()
		time.Sleep(time.Second)
		if !slices.Contains(n.loop.Held(), "q") {
			t.Error("who joins does not hold the queue")
		}
	})
}

func TestASetBreakerIsSetEverywhereWithinASecond(t *testing.T) {
	b := throttle.DefaultBreaker()
	together(t, throttle.Rules{Breaker: &b, NoConsumer: throttle.Return}, func(t *testing.T, s *scene) {
		for range 3 {
			s.join()
		}
		time.Sleep(3 * time.Second)
		states := func(want throttle.State, forced bool) {
			t.Helper()
			for _, n := range s.nodes {
				if v := n.gate.View("q", time.Now()); v.State != want || v.Forced != forced {
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
				if err := s.follower().console.Breaker(context.Background(), boss, "q", step.to, "so"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				states(step.want, step.forced)
			}
		}
		// From open, auto probes: at the leader alone, whatever replica it was said at.
		for _, to := range []string{"open", "auto"} {
			if err := s.follower().console.Breaker(context.Background(), boss, "q", to, "so"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		states(throttle.HalfOpen, false)
		s.due("q", 100)
		time.Sleep(5 * time.Second)
		if n := s.count(); n != b.Probes || s.by[s.leader()] != b.Probes {
			t.Errorf("%d returned, %d by the leader; want %d probes", n, s.by[s.leader()], b.Probes)
		}
	})
}

// One breaker for all: it opens by what all of them returned, failures being taken in
// by any; then no one returns but the leader, its probes; and a new leader goes on
// from there.
func TestOneBreakerForAll(t *testing.T) {
	b := throttle.Breaker{Share: 0.5, Least: 30, Window: time.Minute, Wait: 10 * time.Second, MaxWait: 20 * time.Second, Probes: 3, Ramp: 30 * time.Second}
	together(t, throttle.Rules{Rate: 30, Breaker: &b, Settle: 5 * time.Second, NoConsumer: throttle.Return}, func(t *testing.T, s *scene) {
		for range 3 {
			s.join()
		}
		time.Sleep(3 * time.Second)
		s.failing = true
		s.due("q", 2000)
		time.Sleep(4 * time.Second)
		n := s.count()
		// No replica alone has seen 30 return by then.
		if n < 30 || n > 75 {
			t.Errorf("%d returned before the breaker opened; it opens by 30", n)
		}
		for _, r := range s.nodes {
			if v := r.gate.View("q", time.Now()); v.State != throttle.Open || v.Until.IsZero() {
				t.Errorf("at %s it is %s", r.ID, v.State)
			}
		}
		time.Sleep(4 * time.Second)
		if s.count() != n {
			t.Errorf("%d returned while it is open", s.count()-n)
		}
		// The leader dies; the next one keeps it open, and probes when it is time.
		old := s.leader()
		old.kill()
		before := maps.Clone(s.by)
		time.Sleep(7 * time.Second)
		leader := s.leader()
		if got := s.by[leader] - before[leader]; s.count() != n+b.Probes || got != b.Probes {
			t.Errorf("%d returned after the wait, %d by the new leader; want %d probes by it", s.count()-n, got, b.Probes)
		}
		// The probes failed: open again, and longer.
		for _, r := range s.nodes {
			if v := r.gate.View("q", time.Now()); v.State != throttle.Open {
				t.Errorf("after the probes failed it is %s at %s", v.State, r.ID)
			}
		}
		s.mu.Lock()
		s.failing = false
		s.mu.Unlock()
		time.Sleep(30 * time.Second)
		for _, r := range s.nodes {
			if v := r.gate.View("q", time.Now()); v.State != throttle.Ramp {
				t.Errorf("after the probes went well it is %s at %s", v.State, r.ID)
			}
		}
		if s.count() < n+2*b.Probes+20 {
			t.Errorf("%d returned in the ramp", s.count()-n)
		}
		joined := s.join()
		time.Sleep(time.Second)
		if v := joined.gate.View("q", time.Now()); v.State != throttle.Ramp {
			t.Errorf("who joins has it %s", v.State)
		}
		time.Sleep(40 * time.Second)
		for _, r := range s.nodes {
			if v := r.gate.View("q", time.Now()); v.State != throttle.Closed {
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
			if got := n.rates.Minute("q", time.Now()).Failed; got != 42 {
				t.Errorf("%s shows %d failures, not 42", n.ID, got)
			}
		}
	})
}

func (s *scene) park(queue string, n int) {
	var all []*store.Record
	for i := range n {
		all = append(all, &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: store.Parked, Due: time.Now(), ParkedFor: "x",
			FailedAt: time.Now().Add(time.Duration(i) * time.Microsecond), Message: wire.Message{Body: []byte("x")}})
	}
	if err := s.nodes[0].member.Add(context.Background(), all); err != nil {
		s.t.Fatal(err)
	}
}
