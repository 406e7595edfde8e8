package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// ReplicaParts are the parts of a service that act together with those of other replicas.
type ReplicaParts struct {
	Throttle   *throttle.Throttle
	Scheduler  *retry.Scheduler
	Inspect    *inspect.Inspector
	Actions    *actions.Actions
	Operations *operations.Runner
	// CountFlow counts what happened to a queue's messages at another replica.
	CountFlow func(queue string, n [4]int64, at time.Time)
	// LeaderTasks run while this replica leads. Each reads again at its start what it keeps in memory.
	LeaderTasks []func(context.Context)
}

// Replica makes a service one of several that share a store. Package cluster knows which are alive and which of them
// leads; Replica acts on that. Create it with NewReplica, pass it its parts with Join, then Run it.
type Replica struct {
	*cluster.Member
	ReplicaParts
	store store.Shared
	log   *slog.Logger
	// others is set while there are other replicas; otherwise nothing is announced.
	others atomic.Bool

	term atomic.Pointer[context.Context] // while this replica leads; else nil

	// only for poll
	unreadable bool      // the last one could not read the side table
	rereadAt   time.Time // the last Operations.Reread

	// only for shareChanged
	announced   map[string]throttle.RetryStats
	announcedAt time.Time
}

// NewReplica returns a Replica that describes itself by about.
func NewReplica(shared store.Shared, about func() cluster.About, log *slog.Logger) *Replica {
	r := &Replica{store: shared, log: log}
	r.Member = cluster.New(cluster.Config{Store: shared, ID: cluster.NewID(), About: about,
		OnShare: r.shareChanged, Lead: r.lead, Poll: r.poll, Receive: r.receive, OnMissed: r.missed, Log: log})
	return r
}

// Shown returns the replicas as people see them.
func (r *Replica) Shown() (all []inspect.Replica) {
	for _, one := range r.All() {
		all = append(all, inspect.Replica{ID: one.ID, Address: one.Address, Version: one.Version, Since: one.Since,
			Beat: one.Beat, Leads: one.Leads, Self: one.Self, Ready: !one.NotReady,
			Conditions: condition.Listed(condition.Joined(one.Conditions))})
	}
	return all
}

// Join gives the replica its parts, and reads what people and the leader have set. Queues with a limit are not retried
// before this replica has its share of it.
func (r *Replica) Join(ctx context.Context, p ReplicaParts) error {
	r.ReplicaParts = p
	r.Throttle.SetLeads(false)
	r.Throttle.SetShare(throttle.Share{}, time.Now())
	if err := r.Actions.ReadSettings(ctx, r.Scheduler.SetPauses); err != nil {
		return err
	}
	return r.followBreakers(ctx)
}

// shareChanged sets this replica's share of all limits, with each heartbeat, and announces the
// results of its retries.
func (r *Replica) shareChanged(share cluster.Share) {
	now := time.Now()
	r.others.Store(len(r.All()) > 1)
	if r.Throttle.SetShare(throttle.Share(share), now) {
		r.Scheduler.Wake()
	}
	r.announceRetryStats(now)
}

// lead runs the leader's tasks until ctx ends.
func (r *Replica) lead(ctx context.Context) {
	const first = 50 * time.Millisecond
	for wait := first; ; wait *= 2 {
		err := r.followBreakers(ctx) // as the previous leader left them
		if err == nil {
			break
		}
		if wait == first {
			r.log.Warn("this replica leads, and cannot read the state of the breakers; trying again", "error", err)
		}
		if sleep(ctx, min(wait, time.Second)); ctx.Err() != nil {
			return
		}
	}
	r.Throttle.SetLeads(true)
	r.term.Store(&ctx)
	defer r.Throttle.SetLeads(false)
	defer r.term.Store(nil)
	r.Scheduler.Wake() // for probes
	var all sync.WaitGroup
	for _, do := range r.LeaderTasks {
		all.Go(func() { do(ctx) })
	}
	all.Wait()
}

// rereadEvery is how often to read all operations again: a replica may have died after it wrote a change and before it
// announced that.
const rereadEvery = 30 * time.Second

// poll reads what other replicas have written, and writes the breakers if this one leads.
func (r *Replica) poll(ctx context.Context) {
	term := r.term.Load()
	err := r.Actions.ReadSettings(ctx, r.Scheduler.SetPauses)
	r.Operations.Wake() // for operations of a dead replica
	if err == nil {
		err = r.Inspect.ReadRecount(ctx)
	}
	if err == nil && time.Since(r.rereadAt) >= rereadEvery {
		r.rereadAt = time.Now()
		r.Operations.Reread()
	}
	if err == nil && term != nil {
		err = r.writeBreakers(*term)
	} else if err == nil {
		err = r.followBreakers(ctx)
	}
	was := r.unreadable
	r.unreadable = err != nil && ctx.Err() == nil
	switch {
	case r.unreadable && !was:
		r.log.Warn("the changes of other replicas cannot be read for now: pauses, breakers", "error", err)
	case was && !r.unreadable:
		r.log.Info("the changes of other replicas can be read again")
	}
}

// missed reads again what lost announcements may have been about.
func (r *Replica) missed(context.Context) error {
	r.PollSoon()
	r.Operations.Reread()
	return nil
}

// Changed announces changed operations or, without any, that the side table has changed. It is
// inspect.Config.Changed.
func (r *Replica) Changed(operations ...string) {
	r.Announce(func(a *cluster.Announcement) {
		a.SideTableChanged = a.SideTableChanged || len(operations) == 0
		a.AddChanged(operations...)
	})
}

// AnnounceFailed announces a failed message that another replica may have retried.
func (r *Replica) AnnounceFailed(queue string, id uuid.UUID) {
	if r.others.Load() {
		r.Announce(func(a *cluster.Announcement) { a.AddFailed(queue, id) })
	}
}

// AnnounceFlow announces what happened to a queue's messages here, for CountFlow of the others.
func (r *Replica) AnnounceFlow(queue string, n [4]int64) {
	if r.others.Load() {
		r.Announce(func(a *cluster.Announcement) { a.AddFlows(map[string][4]int64{queue: n}) })
	}
}

// announceRetryStats announces the results of this replica's latest retries, when they change and once a second.
func (r *Replica) announceRetryStats(now time.Time) {
	stats := r.Throttle.RetryStats(now)
	if !r.others.Load() || len(stats)+len(r.announced) == 0 ||
		now.Sub(r.announcedAt) < time.Second && reflect.DeepEqual(stats, r.announced) {
		return
	}
	r.announced, r.announcedAt = stats, now
	if encoded, err := json.Marshal(stats); err == nil {
		r.Announce(func(a *cluster.Announcement) { a.RetryStats = encoded })
	}
}

// receive handles an announcement of another replica.
func (r *Replica) receive(a cluster.Announcement) {
	now := time.Now()
	if len(a.Operations) > 0 {
		r.Operations.ChangedElsewhere(a.Operations...)
	}
	for queue, ids := range a.Failed {
		for ; len(ids) >= 16; ids = ids[16:] {
			r.Throttle.Failed(queue, uuid.UUID(ids[:16]), now)
		}
	}
	for queue, n := range a.Flows {
		r.CountFlow(queue, n, now)
	}
	if a.RetryStats != nil {
		var all map[string]throttle.RetryStats
		if json.Unmarshal(a.RetryStats, &all) == nil {
			r.Throttle.Receive(a.From, all, now)
		}
	}
}

// breakerStatePrefix and a queue's name are the name of the entry with the state of its breaker, if not closed, as the
// leader decided. All replicas follow it, and so does the next leader.
const breakerStatePrefix = "breaker-state/"

// followBreakers sets the breakers as the leader has decided.
func (r *Replica) followBreakers(ctx context.Context) error {
	all, err := r.breakerStates(ctx)
	if err == nil {
		r.Throttle.Follow(all, time.Now())
	}
	return err
}

func (r *Replica) breakerStates(ctx context.Context) (map[string]throttle.BreakerState, error) {
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
func (r *Replica) writeBreakers(term context.Context) error {
	written, err := r.breakerStates(term)
	if err != nil {
		return err
	}
	var entries []store.Entry
	is := r.Throttle.BreakerStates(time.Now())
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
