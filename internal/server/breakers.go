package server

import (
	"context"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// gateOf is how a queue's gate is shown; nil when nothing is to be said of it.
func (s *vhost) gateOf(queue string) *inspect.Throttle {
	v := s.gate.View(queue, time.Now())
	if !v.On && !v.Forced && v.Rate == 0 && v.Limit == 0 && v.NoConsumersSince.IsZero() {
		return nil
	}
	g := &inspect.Throttle{State: string(v.State), Why: v.Reason, Since: known(v.Since), Until: known(v.Until), NoConsumer: known(v.NoConsumersSince),
		Rate: v.Rate, InFlight: v.InFlight, MostFlight: v.Limit, FailedShare: v.FailedShare, Judged: v.Seen}
	if v.Paused == throttle.WhyRate || v.Paused == throttle.WhyInFlight {
		g.LimitedBy = v.Paused
	}
	return g
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (s *vhost) force(queue, to, by, why string) {
	if err := s.gate.Force(queue, to, by, why, time.Now()); err != nil {
		s.Log.Error("a breaker cannot be set", "queue", queue, "to", to, "error", err)
	}
}

// loadBreakers sets those that persons had set when the service ended. Nothing
// is retried before.
func (s *vhost) loadBreakers(ctx context.Context) error {
	if s.replica != nil {
		return s.joinReplicas(ctx)
	}
	all, err := inspect.ForcedBreakers(ctx, s.store)
	for queue, f := range all {
		s.force(queue, f.To, f.By, f.Reason)
	}
	return err
}
