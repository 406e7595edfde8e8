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
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// breakerStatePrefix and a queue's name is the entry with the state of its breaker, when that is not
// closed, as the leader decided it. All replicas follow it, and so does the next leader.
const breakerStatePrefix = "breaker-state/"

// replica is this service as one of several replicas; nil when the store cannot be shared.
type replica struct {
	*cluster.Replicas
	store      store.Shared
	throttle   *throttle.Throttle
	scheduler  *retry.Scheduler
	inspect    *inspect.Inspector
	actions    *actions.Actions
	operations *operations.Runner
	activity   *activity
	log        *slog.Logger
	// leaderTasks run while this replica leads.
	leaderTasks []func(context.Context)
	// others: there are other replicas. Without them nothing is announced.
	others atomic.Bool

	mu         sync.Mutex
	term       context.Context // in which this replica leads; nil: it does not
	changed    map[string]bool // operations that others have changed
	unreadable bool            // the side table could not be read last time

	// of poll alone
	rereadAt time.Time // when the operations were last read again

	// of shareChanged alone
	announced   map[string]throttle.RetryStats
	announcedAt time.Time
}

func newReplica(shared store.Shared, about func() cluster.About, log *slog.Logger) *replica {
	r := &replica{store: shared, log: log, changed: map[string]bool{}}
	r.Replicas = cluster.New(cluster.Config{Store: shared, ID: cluster.NewID(), About: about,
		OnShare: r.shareChanged, Lead: r.lead, Poll: r.poll, Receive: r.receive, OnMissed: r.missed, Log: log})
	return r
}

// id returns the id of this replica; "" when the store cannot be shared.
func (r *replica) id() string {
	if r == nil {
		return ""
	}
	return r.ID
}

// shareChanged sets this replica's share of all limits, with each heartbeat, and announces the
// results of its retries.
func (r *replica) shareChanged(share cluster.Share) {
	now := time.Now()
	r.others.Store(len(r.All()) > 1)
	if r.throttle.SetShare(throttle.Share(share), now) {
		r.scheduler.Wake()
	}
	stats := r.throttle.RetryStats(now)
	if !r.others.Load() || len(stats)+len(r.announced) == 0 || now.Sub(r.announcedAt) < time.Second && reflect.DeepEqual(stats, r.announced) {
		return
	}
	r.announced, r.announcedAt = stats, now
	if encoded, err := json.Marshal(stats); err == nil {
		r.Announce(func(a *cluster.Announcement) { a.RetryStats = encoded })
	}
}

// lead runs the leader's tasks until ctx ends. Each reads again at its start what it keeps in
// memory.
func (r *replica) lead(ctx context.Context) {
	const first = 50 * time.Millisecond
	for wait := first; ; wait *= 2 {
		err := r.followBreakers(ctx) // as the leader before left them
		if err == nil {
			break
		}
		if wait == first {
			r.log.Warn("this replica leads, and cannot read the state of the breakers; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(wait, time.Second)):
		}
	}
	r.throttle.SetLeads(true)
	r.setTerm(ctx)
	defer r.throttle.SetLeads(false)
	defer r.setTerm(nil)
	r.scheduler.Wake() // for probes
	var all sync.WaitGroup
	for _, do := range r.leaderTasks {
		all.Go(func() { do(ctx) })
	}
	all.Wait()
}

func (r *replica) setTerm(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.term = ctx
}

// rereadEvery is how often all operations are read again: a replica may have written a change, and
// died before it announced that.
const rereadEvery = 30 * time.Second

// poll reads what other replicas have written, and writes the breakers if this one leads.
func (r *replica) poll(ctx context.Context) {
	r.mu.Lock()
	term, changed := r.term, r.changed
	r.changed = map[string]bool{}
	r.mu.Unlock()
	for id := range changed {
		r.operations.ChangedElsewhere(ctx, id)
	}
	err := r.actions.ReadSettings(ctx, r.scheduler.SetPauses)
	r.operations.Wake() // for orders
	if err == nil {
		err = r.inspect.ReadRecount(ctx)
	}
	if err == nil && time.Since(r.rereadAt) >= rereadEvery {
		r.rereadAt = time.Now()
		r.operations.Reread()
	}
	if err == nil && term != nil {
		err = r.writeBreakers(term)
	} else if err == nil {
		err = r.followBreakers(ctx)
	}
	r.mu.Lock()
	was := r.unreadable
	r.unreadable = err != nil && ctx.Err() == nil
	is := r.unreadable
	r.mu.Unlock()
	switch {
	case is && !was:
		r.log.Warn("the changes of other replicas cannot be read for now: pauses, breakers, orders", "error", err)
	case was && !is:
		r.log.Info("the changes of other replicas can be read again")
	}
}

// followBreakers sets the breakers as the leader has decided.
func (r *replica) followBreakers(ctx context.Context) error {
	all, err := r.breakerStates(ctx)
	if err == nil {
		r.throttle.Follow(all, time.Now())
	}
	return err
}

func (r *replica) breakerStates(ctx context.Context) (map[string]throttle.BreakerState, error) {
	all := map[string]throttle.BreakerState{}
	err := r.store.Entries(ctx, breakerStatePrefix, "", func(e store.Entry) (bool, error) {
		var s throttle.BreakerState
		if err := json.Unmarshal(e.Value, &s); err != nil {
			return false, fmt.Errorf("the state of breaker %q: %w", e.Name, err)
		}
		all[strings.TrimPrefix(e.Name, breakerStatePrefix)] = s
		return true, nil
	})
	return all, err
}

// writeBreakers writes the state of the breakers, for the others to follow.
func (r *replica) writeBreakers(term context.Context) error {
	written, err := r.breakerStates(term)
	if err != nil {
		return err
	}
	var entries []store.Entry
	is := r.throttle.BreakerStates(time.Now())
	for queue, s := range is {
		if was, ok := written[queue]; ok && was.Number == s.Number {
			continue
		}
		value, err := json.Marshal(s)
		if err != nil {
			return err
		}
		entries = append(entries, store.Entry{Name: breakerStatePrefix + queue, Value: value})
	}
	for queue := range written {
		if _, still := is[queue]; !still {
			entries = append(entries, store.Entry{Name: breakerStatePrefix + queue})
		}
	}
	if len(entries) == 0 {
		return nil
	}
	if err := r.store.PutEntries(term, entries); err != nil {
		return err
	}
	r.Announce(func(a *cluster.Announcement) { a.SideTableChanged = true })
	return nil
}

// receive handles an announcement of another replica.
func (r *replica) receive(a cluster.Announcement) {
	now := time.Now()
	if len(a.Operations) > 0 {
		r.mu.Lock()
		for _, id := range a.Operations {
			r.changed[id] = true
		}
		r.mu.Unlock()
		r.PollSoon()
	}
	for queue, ids := range a.Failed {
		for ; len(ids) >= 16; ids = ids[16:] {
			r.throttle.Failed(queue, uuid.UUID(ids[:16]), now)
		}
	}
	for queue, n := range a.Flows {
		r.activity.count(queue, n, now)
	}
	if a.RetryStats != nil {
		var all map[string]throttle.RetryStats
		if json.Unmarshal(a.RetryStats, &all) == nil {
			r.throttle.Receive(a.From, all, now)
		}
	}
}

// missed reads again what announcements that were lost may have been about.
func (r *replica) missed(context.Context) error {
	r.PollSoon()
	r.operations.Reread()
	return nil
}

// event announces an event that the other replicas count too.
func (r *replica) event(e retry.Event, elsewhere bool) {
	kind, counted := flowOf[e.Kind]
	if !r.others.Load() || !counted && !elsewhere {
		return
	}
	r.Announce(func(a *cluster.Announcement) {
		if elsewhere {
			a.AddFailed(e.Queue, e.ID)
		}
		if counted {
			var n [flowKinds]int64
			n[kind] = int64(max(1, e.N))
			a.AddFlows(map[string][flowKinds]int64{e.Queue: n})
		}
	})
}

// Changed implements inspect.Config.Changed.
func (r *replica) Changed(operations ...string) {
	r.Announce(func(a *cluster.Announcement) {
		a.SideTableChanged = a.SideTableChanged || len(operations) == 0
		a.AddChanged(operations...)
	})
	if len(operations) == 0 {
		r.PollSoon() // an order may be for this replica
	}
}

// forInspect returns the replicas as people see them.
func (r *replica) forInspect() (all []inspect.Replica) {
	for _, one := range r.All() {
		all = append(all, inspect.Replica{ID: one.ID, Address: one.Address, Version: one.Version, Since: one.Since, Beat: one.Beat,
			Leads: one.Leads, Self: one.Self, Ready: !one.NotReady, Problems: problemsOf(one.Problems)})
	}
	return all
}

// openReplica makes the replica, when the store can be shared.
func (s *vhost) openReplica(listen string) {
	shared, ok := s.store.(store.Shared)
	if !ok {
		return
	}
	address := advertised(listen)
	s.replica = newReplica(shared, func() cluster.About {
		return cluster.About{Address: address, Version: s.Version, Since: s.since, Problems: s.health.byPart(), NotReady: !s.health.ready(), CanPublish: s.publisher.Ready()}
	}, s.Log)
	s.metrics.Replicas(s.replica.All)
}

// joinReplicas gives the replica what it uses, once that is made. Queues with any limit are
// not retried before this replica has its share of it.
func (s *vhost) joinReplicas(ctx context.Context) error {
	r := s.replica
	r.throttle, r.scheduler, r.activity = s.throttle, s.scheduler, &s.activity
	r.inspect, r.actions, r.operations = s.inspect, s.actions, s.operations
	r.leaderTasks = []func(context.Context){s.inspect.Lead, s.operations.Lead, s.notify.Run, s.guard.Forget}
	r.throttle.SetLeads(false)
	r.throttle.SetShare(throttle.Share{}, time.Now())
	if err := r.actions.ReadSettings(ctx, r.scheduler.SetPauses); err != nil {
		return err
	}
	return r.followBreakers(ctx)
}

// advertised returns an address at which other machines may reach this one.
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

// wrongAnywhere returns the problems of each live replica, this one first.
func (s *vhost) wrongAnywhere() []map[string]string {
	all := []map[string]string{s.health.byPart()}
	if s.replica != nil {
		for _, r := range s.replica.Replicas.All() {
			if !r.Self {
				all = append(all, maps.Clone(r.Problems))
			}
		}
	}
	return all
}
