package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// breakerPrefix and a queue's name is the state of its breaker, when that is not closed,
// as the leader has decided it. All replicas go by it, and so does the next leader.
const breakerPrefix = "breaker-state/"

// replica is what this service does as one of several replicas. Without a store that
// several can share there is none.
type replica struct {
	*cluster.Replicas
	store      store.Shared
	gate       *throttle.Throttle
	scheduler  *retry.Scheduler
	inspect    *inspect.Inspector
	actions    *actions.Actions
	operations *operations.Runner
	rates      *rates
	log        *slog.Logger
	// alone does, while this replica leads, what only one may.
	alone []func(context.Context)
	// others tells whether there are any, so that what is only for them is not said.
	others atomic.Bool

	mu    sync.Mutex
	term  context.Context // in which this replica leads; nil: it does not
	told  map[string]bool // operations that others have changed
	blind bool            // the side table could not be read last time

	// of Look alone
	reread time.Time // when what is known of operations was read again last

	// of Parted alone
	judged map[string]throttle.RetryStats
	judge  time.Time // when it was said last
}

func newReplica(shared store.Shared, about func() cluster.About, log *slog.Logger) *replica {
	f := &replica{store: shared, log: log, told: map[string]bool{}}
	f.Replicas = cluster.New(cluster.Config{Store: shared, ID: cluster.NewID(), About: about,
		OnShare: f.parted, Lead: f.lead, Poll: f.look, Receive: f.hear, OnMissed: f.missed, Log: log})
	return f
}

// id is that of this replica; "" without others.
func (f *replica) id() string {
	if f == nil {
		return ""
	}
	return f.ID
}

// parted divides what is limited, with each beat.
func (f *replica) parted(p cluster.Share) {
	now := time.Now()
	f.others.Store(len(f.All()) > 1)
	if f.gate.SetShare(throttle.Share(p), now) {
		f.scheduler.Wake()
	}
	judged := f.gate.RetryStats(now)
	if !f.others.Load() || len(judged)+len(f.judged) == 0 || now.Sub(f.judge) < time.Second && reflect.DeepEqual(judged, f.judged) {
		return
	}
	f.judged, f.judge = judged, now
	if said, err := json.Marshal(judged); err == nil {
		f.Announce(func(s *cluster.Announcement) { s.Breakers = said })
	}
}

// lead does what only one replica may, until ctx ends. All that goes by what is in
// memory reads it again at its begin.
func (f *replica) lead(ctx context.Context) {
	const first = 50 * time.Millisecond
	for wait := first; ; wait *= 2 {
		err := f.follow(ctx) // the breakers, as the leader before has left them
		if err == nil {
			break
		}
		if wait == first {
			f.log.Warn("this replica leads, and cannot read how the breakers are; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(wait, time.Second)):
		}
	}
	f.gate.SetLeads(true)
	f.inTerm(ctx)
	defer f.gate.SetLeads(false)
	defer f.inTerm(nil)
	f.scheduler.Wake() // for probes
	var all sync.WaitGroup
	for _, do := range f.alone {
		all.Go(func() { do(ctx) })
	}
	all.Wait()
}

func (f *replica) inTerm(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.term = ctx
}

// rereadEvery is for what a replica wrote of an operation and did not live to tell.
const rereadEvery = 30 * time.Second

// look takes over what others have written, and writes what this replica decides.
func (f *replica) look(ctx context.Context) {
	f.mu.Lock()
	term, told := f.term, f.told
	f.told = map[string]bool{}
	f.mu.Unlock()
	for id := range told {
		f.operations.Told(ctx, id)
	}
	err := f.actions.Look(ctx, f.scheduler.SetPauses)
	f.operations.Awake() // for orders
	if err == nil {
		err = f.inspect.LookAtLedger(ctx)
	}
	if err == nil && time.Since(f.reread) >= rereadEvery {
		f.reread = time.Now()
		f.operations.Reread()
	}
	if err == nil && term != nil {
		err = f.decide(term)
	} else if err == nil {
		err = f.follow(ctx)
	}
	f.mu.Lock()
	was := f.blind
	f.blind = err != nil && ctx.Err() == nil
	is := f.blind
	f.mu.Unlock()
	switch {
	case is && !was:
		f.log.Warn("the changes of other replicas cannot be read for now: pauses, breakers, orders", "error", err)
	case was && !is:
		f.log.Info("what other replicas change is seen here again")
	}
}

// follow does to the breakers what the leader has decided.
func (f *replica) follow(ctx context.Context) error {
	all, err := f.standings(ctx)
	if err == nil {
		f.gate.Follow(all, time.Now())
	}
	return err
}

func (f *replica) standings(ctx context.Context) (map[string]throttle.BreakerState, error) {
	all := map[string]throttle.BreakerState{}
	err := f.store.Entries(ctx, breakerPrefix, "", func(e store.Entry) (bool, error) {
		var s throttle.BreakerState
		if err := json.Unmarshal(e.Value, &s); err != nil {
			return false, fmt.Errorf("the state of breaker %q: %w", e.Name, err)
		}
		all[strings.TrimPrefix(e.Name, breakerPrefix)] = s
		return true, nil
	})
	return all, err
}

// decide writes how the breakers are, for the others to follow.
func (f *replica) decide(term context.Context) error {
	written, err := f.standings(term)
	if err != nil {
		return err
	}
	var entries []store.Entry
	is := f.gate.BreakerStates(time.Now())
	for queue, s := range is {
		if was, ok := written[queue]; ok && was.Number == s.Number {
			continue
		}
		value, err := json.Marshal(s)
		if err != nil {
			return err
		}
		entries = append(entries, store.Entry{Name: breakerPrefix + queue, Value: value})
	}
	for queue := range written {
		if _, still := is[queue]; !still {
			entries = append(entries, store.Entry{Name: breakerPrefix + queue})
		}
	}
	if len(entries) == 0 {
		return nil
	}
	if err := f.store.PutEntries(term, entries); err != nil {
		return err
	}
	f.Announce(func(s *cluster.Announcement) { s.Look = true })
	return nil
}

// hear receives what another replica says.
func (f *replica) hear(s cluster.Announcement) {
	now := time.Now()
	if len(s.Operations) > 0 {
		f.mu.Lock()
		for _, id := range s.Operations {
			f.told[id] = true
		}
		f.mu.Unlock()
		f.PollSoon()
	}
	for queue, ids := range s.Failed {
		for ; len(ids) >= 16; ids = ids[16:] {
			f.gate.Failed(queue, uuid.UUID(ids[:16]), now)
		}
	}
	for queue, n := range s.Flows {
		f.rates.heard(queue, n, now)
	}
	if s.Breakers != nil {
		var all map[string]throttle.RetryStats
		if json.Unmarshal(s.Breakers, &all) == nil {
			f.gate.Receive(s.From, all, now)
		}
	}
}

// missed looks up what may have been said unheard.
func (f *replica) missed(context.Context) error {
	f.PollSoon()
	f.operations.Reread()
	return nil
}

// event tells the others of what they count too.
func (f *replica) event(e retry.Event, elsewhere bool) {
	kind, counted := counted[e.Kind]
	if !f.others.Load() || !counted && !elsewhere {
		return
	}
	f.Announce(func(s *cluster.Announcement) {
		if elsewhere {
			s.AddFailed(e.Queue, e.ID)
		}
		if counted {
			var n [rateKinds]int64
			n[kind] = int64(max(1, e.N))
			s.AddFlows(map[string][rateKinds]int64{e.Queue: n})
		}
	})
}

// Changed is for inspect.Config.
func (f *replica) Changed(operations ...string) {
	f.Announce(func(s *cluster.Announcement) {
		s.Look = s.Look || len(operations) == 0
		s.AddChanged(operations...)
	})
	if len(operations) == 0 {
		f.PollSoon() // what is ordered here may be for this one to do
	}
}

// inspected are the replicas as people see them.
func (f *replica) inspected() (all []inspect.Replica) {
	for _, r := range f.All() {
		all = append(all, inspect.Replica{ID: r.ID, Address: r.Address, Version: r.Version, Since: r.Since, Beat: r.Beat,
			Leads: r.Leads, Self: r.Self, Ready: !r.NotReady, Problems: problemsOf(r.Problems)})
	}
	return all
}

// shown are the replicas as the metrics have them.
func (f *replica) shown() (all []metrics.Replica) {
	for _, r := range f.All() {
		all = append(all, metrics.Replica{ID: r.ID, Address: r.Address, Version: r.Version, Since: r.Since, Beat: r.Beat, Leads: r.Leads})
	}
	return all
}

// openReplica makes this service one of several, when the store can have several.
func (s *vhost) openReplica(listen string) {
	shared, ok := s.store.(store.Shared)
	if !ok {
		return
	}
	address := advertised(listen)
	s.replica = newReplica(shared, func() cluster.About {
		return cluster.About{Address: address, Version: s.Version, Since: s.since, Problems: s.health.all(), NotReady: !s.health.ready(), CanPublish: s.publisher.Ready()}
	}, s.Log)
	s.metrics.Replicas(s.replica.shown)
}

// joinReplicas hands the replicas what it works on, once all of that is there. Nothing that
// has a limit is retried before this replica has its part of it.
func (s *vhost) joinReplicas(ctx context.Context) error {
	f := s.replica
	f.gate, f.scheduler, f.rates = s.gate, s.scheduler, &s.rates
	f.inspect, f.actions, f.operations = s.inspect, s.actions, s.operations
	f.alone = []func(context.Context){s.inspect.Lead, s.operations.Lead, s.notify.Run, s.guarded.Forget}
	f.gate.SetLeads(false)
	f.gate.SetShare(throttle.Share{}, time.Now())
	if err := f.actions.Look(ctx, f.scheduler.SetPauses); err != nil {
		return err
	}
	return f.follow(ctx)
}

// advertised is an address as others may reach it.
func advertised(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return listen
	}
	name, err := os.Hostname()
	if err != nil {
		return listen
	}
	return net.JoinHostPort(name, port)
}

// wrongAnywhere is what is wrong at each replica that is alive.
func (s *vhost) wrongAnywhere() []map[string]string {
	all := []map[string]string{s.health.all()}
	if s.replica != nil {
		for _, r := range s.replica.Replicas.All() {
			if !r.Self {
				all = append(all, maps.Clone(r.Problems))
			}
		}
	}
	return all
}
