package server

import (
	"context"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
)

// throttleOf is a queue's throttle as people see it; nil when nothing limits the queue.
func (s *vhost) throttleOf(queue string) *inspect.ThrottleView {
	v := s.throttle.View(queue, time.Now())
	if !v.HasBreaker && !v.Forced && v.Rate == 0 && v.MaxInFlight == 0 && v.NoConsumersSince.IsZero() {
		return nil
	}
	shown := &inspect.ThrottleView{State: string(v.State), Why: v.Reason, Since: timeOrNil(v.Since), Until: timeOrNil(v.Until), NoConsumer: timeOrNil(v.NoConsumersSince),
		Rate: v.Rate, InFlight: v.InFlight, MaxInFlight: v.MaxInFlight, FailedShare: v.FailedShare, Finished: v.Finished}
	if v.WaitReason.IsLimit() {
		shown.LimitedBy = v.WaitReason
	}
	return shown
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (s *vhost) force(queue, to, by, why string) {
	if err := s.throttle.Force(queue, to, by, why, time.Now()); err != nil {
		s.Log.Error("a breaker cannot be set", "queue", queue, "to", to, "error", err)
	}
}

// loadBreakers sets the breakers that people had set when the service ended. Nothing
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
