package server

import (
	"context"
	"net"
	"os"
	"time"

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
		Throttle: s.throttle, Scheduler: s.scheduler, Inspect: s.inspect, Actions: s.actions, Operations: s.operations, CountFlow: s.countFlow,
		LeaderTasks: []func(context.Context){s.inspect.Lead, s.operations.Lead, s.notify.Run, s.guard.Forget, s.removeRetryExchanges},
	})
}

// countFlow counts what happened to a queue at another replica.
func (s *vhost) countFlow(queue string, n [flowKinds]int64, at time.Time) {
	s.activity.count(queue, n, at)
	if n[flowParked] > 0 {
		s.notify.Look()
	}
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
