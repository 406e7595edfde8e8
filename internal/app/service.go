package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/api"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/flow"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// Problems are what is wrong now; none means ready.
func (s *Service) Problems() []string { return s.health.problems() }

// Notices are what a person should look at though it stops nothing.
func (s *Service) Notices() []string {
	all := s.refused.notices()
	n := s.aside.Load()
	if n == 0 {
		return all
	}
	return append([]string{fmt.Sprintf("messages that RabbitMQ failed to deliver, in its queue %s: %d (look at them on RabbitMQ's management page, then purge the queue)", wire.QueueAside, n)}, all...)
}

// Status shows the service as a whole.
func (s *Service) Status(ctx context.Context) (api.Status, error) {
	counts, err := s.store.Counts(ctx)
	if err != nil {
		return api.Status{}, err
	}
	now := time.Now()
	policies := s.flow.Policies()
	st := api.Status{Version: s.Version, Since: s.since, Problems: s.Problems(), Notices: s.Notices(), Broker: broker.Redact(s.config.Broker.URL), Queues: []api.QueueStatus{}}
	held := map[string]bool{}
	for _, c := range counts {
		held[c.Queue] = true
	}
	for _, name := range s.rates.names() {
		if !held[name] { // nothing is held for it, but something happened
			counts = append(counts, store.QueueCount{Queue: name})
		}
	}
	for _, c := range counts {
		n := s.rates.perMinute(c.Queue, now)
		q := api.QueueStatus{Queue: c.Queue, Waiting: c.Waiting, Parked: c.Parked,
			Failed: n[rateFailed], Returned: n[rateReturned], ParkedIn: n[rateParked], Returns: s.health.of(partQueue + c.Queue)}
		if p, ok := policies.Match(c.Queue); ok {
			q.Policy, q.Way = p.Name, flow.Disk
			if way := s.flow.Way(p.Name); way != nil {
				q.Way = way.Limits().Name
			}
		}
		if c.Waiting > 0 {
			q.NextDue, q.Oldest = &c.NextDue, &c.NextFailed
		}
		st.Queues = append(st.Queues, q)
	}
	slices.SortFunc(st.Queues, func(a, b api.QueueStatus) int { return strings.Compare(a.Queue, b.Queue) })
	return st, nil
}

// List shows messages without touching them.
func (s *Service) List(ctx context.Context, f store.Filter) (store.Page, error) {
	return s.store.List(ctx, f)
}

// Replay sends parked messages back now, with all their attempts before them.
func (s *Service) Replay(ctx context.Context, sel store.Selection) (int, error) {
	now := time.Now()
	n, err := s.store.Replay(ctx, sel, now, nil)
	if n > 0 {
		s.events(flow.Event{Kind: flow.Replayed, At: now, Queue: sel.Queue, N: n})
		s.Log.Info("parked messages were sent back by a person", "queue", sel.Queue, "ids", len(sel.IDs), "messages", n)
	}
	return n, err
}
