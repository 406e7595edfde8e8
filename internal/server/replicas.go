package server

import (
	"context"
	"net"
	"os"

	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/replica"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// openReplica makes the replica, when the store can be shared.
func (s *vhost) openReplica(listen string) {
	shared, ok := s.store.(store.Shared)
	if !ok {
		return
	}
	address := advertised(listen)
	s.replica = replica.New(shared, func() cluster.About {
		return cluster.About{Address: address, Version: s.Version, Since: s.since, Conditions: s.conditions.All(), NotReady: !s.conditions.Ready(), CanPublish: s.publisher.Ready()}
	}, s.Log)
	s.metrics.Replicas(s.replica.All)
}

// joinReplicas gives the replica what it uses, once that is made.
func (s *vhost) joinReplicas(ctx context.Context) error {
	return s.replica.Join(ctx, replica.Parts{
		Throttle: s.throttle, Scheduler: s.scheduler, Inspect: s.inspect, Actions: s.actions, Operations: s.operations, CountFlow: s.activity.count,
		LeaderTasks: []func(context.Context){s.inspect.Lead, s.operations.Lead, s.notify.Run, s.guard.Forget, s.removeRetryExchanges},
	})
}

// replicaID is the id of this replica; "" when the store cannot be shared.
func (s *vhost) replicaID() string {
	if s.replica == nil {
		return ""
	}
	return s.replica.ID
}

// announce announces an event that the other replicas count too. elsewhere: a message failed that
// was not retried here.
func announce(r *replica.Replica, e retry.Event, elsewhere bool) {
	if elsewhere {
		r.AnnounceFailed(e.Queue, e.ID)
	}
	if kind, counted := flowOf[e.Kind]; counted {
		var n [flowKinds]int64
		n[kind] = int64(max(1, e.N))
		r.AnnounceFlow(e.Queue, n)
	}
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

// conditionsAnywhere returns those of each live replica, this one first.
func (s *vhost) conditionsAnywhere() [][]condition.Condition {
	all := [][]condition.Condition{s.conditions.All()}
	if s.replica != nil {
		for _, r := range s.replica.All() {
			if !r.Self {
				all = append(all, r.Conditions)
			}
		}
	}
	return all
}
