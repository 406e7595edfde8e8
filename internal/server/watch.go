package server

import (
	"context"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/watch"
	"github.com/redrive-mq/redrive/wire"
)

// openWatch creates the watcher of queues without consumers and of growing counts.
func (s *vhost) openWatch() {
	o := watch.Options{Settings: s.notify.Settings, Counts: s.store.Counts, Store: s.store, Log: s.Log}
	if s.manage != nil {
		o.Queues = s.watchedQueues
	}
	s.watch = watch.New(o)
	s.metrics.Conditions(s.shownConditions)
}

// watchedQueues asks RabbitMQ for all queues but those of Redrive, those that end with their
// connection, and streams, which keep what was consumed.
func (s *vhost) watchedQueues(ctx context.Context) ([]watch.Queue, error) {
	all, err := s.manage.WatchedQueues(ctx)
	queues := make([]watch.Queue, 0, len(all))
	for i := range all {
		q := &all[i]
		if wire.OwnQueue(q.Name) || q.Exclusive || q.Type == "stream" {
			continue
		}
		to := q.Setting("dead-letter-exchange")
		queues = append(queues, watch.Queue{Name: q.Name, Messages: int64(q.Messages), Consumers: q.Consumers,
			Enrolled: to == wire.ExchangeDeadLetters, Passes: to != nil && q.Setting("message-ttl") != nil})
	}
	return queues, err
}

// watchedConditions returns what the watcher found, and the queues for which the throttle has due
// messages and no consumers. Of a queue that both know, it has been so since the earlier time.
func (s *vhost) watchedConditions(t *notify.Settings, now time.Time) []notify.Condition {
	all := s.watch.Conditions()
	for _, queue := range s.throttle.Queues() {
		v := s.throttle.View(queue, now)
		if v.Consumers != 0 || v.NoConsumersSince.IsZero() {
			continue
		}
		known := slices.IndexFunc(all, func(c notify.Condition) bool { return c.Kind == notify.NoConsumer && c.Queue == queue })
		switch {
		case known < 0:
			all = append(all, notify.Condition{Kind: notify.NoConsumer, Queue: queue, Since: v.NoConsumersSince, After: t.NoConsumer})
		case v.NoConsumersSince.Before(all[known].Since):
			all[known].Since = v.NoConsumersSince
		}
	}
	return all
}

// shownConditions are the same for the metrics, once they have lasted long enough. Where replicas
// share a store, only the leader shows them.
func (s *vhost) shownConditions() (on []metrics.Condition, unconsumed []metrics.Unconsumed) {
	if s.replica != nil && !s.replica.Leads() {
		return nil, nil
	}
	now := time.Now()
	for _, c := range s.watchedConditions(s.notify.Settings(), now) {
		if c.Unknown && c.Since.IsZero() {
			continue // of one that was on before, RabbitMQ's last answer counts
		}
		if !now.Before(c.Since.Add(c.After)) {
			on = append(on, metrics.Condition{Event: string(c.Kind), Queue: c.Queue})
		}
	}
	for _, u := range s.watch.Unconsumed() {
		unconsumed = append(unconsumed, metrics.Unconsumed{Queue: u.Queue, Messages: u.Messages})
	}
	return on, unconsumed
}
