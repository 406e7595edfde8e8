package server

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

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/replica"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

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
	*replica.Replica
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

type auditLog struct{}

func (auditLog) Begin(audit.Entry) (func(string, int64), error) { return func(string, int64) {}, nil }

func (auditLog) Before(context.Context, int64, func(audit.Entry) (bool, error)) error {
	return nil
}

type allThere struct{}

func (allThere) Queue(context.Context, string) (inspect.AtBroker, error) {
	return inspect.AtBroker{Exists: true, Consumers: 1}, nil
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

// failed is that the intake of this node has a message that failed.
func (n *node) failed(queue string, id uuid.UUID) {
	e := retry.Event{Kind: retry.Failed, Queue: queue, ID: id, At: time.Now()}
	n.activity.event(e)
	announce(n.Replica, e, n.Throttle.Failed(queue, id, e.At))
}

func (s *scene) join() *node {
	n := &node{scene: s, member: s.store.Join(), done: make(chan struct{})}
	n.able.Store(true)
	log := slog.New(slog.DiscardHandler)
	n.Replica = replica.New(teller{n.member, n}, func() cluster.About { return cluster.About{Address: "here", CanPublish: n.able.Load()} }, log)
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
	f.Scheduler = retry.NewScheduler(n.member, n, f.Throttle, func(retry.Event) {}, log, func(store.Lane, error) {})
	f.Inspect = inspect.New(inspect.Config{Store: n.member, Broker: allThere{}, Audit: auditLog{}, Activity: &n.activity,
		Policies: func() policy.Set { return policy.Set{{Name: "p", Queues: []string{"*"}}} },
		Replicas: func() []inspect.Replica { return replicasForInspect(f) }, Changed: f.Changed})
	f.Actions = actions.New(actions.Config{Inspect: f.Inspect, Store: n.member, Audit: auditLog{}, Restorable: time.Hour,
		SetPaused: f.Scheduler.Pause, Force: func(queue, to, by, why string) { _ = f.Throttle.Force(queue, to, by, why, time.Now()) }})
	f.Operations = operations.New(operations.Config{Inspect: f.Inspect, Actions: f.Actions, Store: n.member})
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

func (s *scene) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.returned)
}

// due adds n messages that are due at once.
func (s *scene) due(queue string, n int) {
	var all []*store.Record
	for range n {
		all = append(all, &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: store.Waiting, Due: time.Now(), FailedAt: time.Now(), Failures: 1, Message: wire.Message{Body: []byte("x")}})
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
