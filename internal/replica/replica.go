package replica

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// Parts are the parts of a service that are one with those of the other replicas.
type Parts struct {
	Throttle   *throttle.Throttle
	Scheduler  *retry.Scheduler
	Inspect    *inspect.Inspector
	Actions    *actions.Actions
	Operations *operations.Runner
	// CountFlow counts what happened to a queue's messages at another replica.
	CountFlow func(queue string, n [4]int64, at time.Time)
	// LeaderTasks run while this replica leads. Each reads again at its start what it keeps in
	// memory.
	LeaderTasks []func(context.Context)
}

// Replica is a service as one of several. Make it with New, pass it its parts with Join, and Run it.
type Replica struct {
	*cluster.Replicas
	Parts
	store store.Shared
	log   *slog.Logger
	// others: there are other replicas. Without them nothing is announced.
	others atomic.Bool

	mu         sync.Mutex
	term       context.Context // in which this replica leads; nil: it does not
	unreadable bool            // the side table could not be read last time

	// of poll alone
	rereadAt time.Time // when the operations were last read again

	// of shareChanged alone
	announced   map[string]throttle.RetryStats
	announcedAt time.Time
}

// New makes a replica that describes itself by about.
func New(shared store.Shared, about func() cluster.About, log *slog.Logger) *Replica {
	r := &Replica{store: shared, log: log}
	r.Replicas = cluster.New(cluster.Config{Store: shared, ID: cluster.NewID(), About: about,
		OnShare: r.shareChanged, Lead: r.lead, Poll: r.poll, Receive: r.receive, OnMissed: r.missed, Log: log})
	return r
}

// Shown returns the replicas as people see them.
func (r *Replica) Shown() (all []inspect.Replica) {
	for _, one := range r.All() {
		all = append(all, inspect.Replica{ID: one.ID, Address: one.Address, Version: one.Version, Since: one.Since, Beat: one.Beat,
			Leads: one.Leads, Self: one.Self, Ready: !one.NotReady, Conditions: condition.Listed(one.Conditions)})
	}
	return all
}

// Join gives the replica its parts, once they are made, and reads what people and the leader have
// set. Queues with any limit are not retried before this replica has its share of it.
func (r *Replica) Join(ctx context.Context, p Parts) error {
	r.Parts = p
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
	r.Throttle.SetLeads(true)
	r.setTerm(ctx)
	defer r.Throttle.SetLeads(false)
	defer r.setTerm(nil) //lint:ignore SA1012 no leader has no term
	r.Scheduler.Wake()   // for probes
	var all sync.WaitGroup
	for _, do := range r.LeaderTasks {
		all.Go(func() { do(ctx) })
	}
	all.Wait()
}

func (r *Replica) setTerm(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.term = ctx
}
