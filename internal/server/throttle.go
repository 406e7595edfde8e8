package server

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// openThrottle makes the throttle, which limits how many due messages are retried.
func (s *vhost) openThrottle() {
	s.throttle = throttle.New(s.queueLimits, rand.Float64, s.retriesChanged)
	s.consumerThrottle = &consumerThrottle{
		Throttle: s.throttle, mayRetryTo: s.sender.MayRetryTo, rules: s.queueLimits, due: s.store.Next, ask: s.publisher.Consumers, ready: s.publisher.Ready,
		wake: s.wake.Wake, pollNow: make(chan struct{}, 1), queues: map[string]*watchedQueue{}, unknownSince: map[string]time.Time{},
	}
	s.metrics.Retries(s.retryStates)
}

// queueLimits are the throttle's rules for a queue: those of its policy. Of a queue without one
// nothing is retried, so its rules are only shown to people.
func (s *vhost) queueLimits(queue string) throttle.Rules {
	if p, ok := s.inForce.Policies().Match(queue); ok {
		return s.policyLimits(p.Name)
	}
	return throttle.Rules{}
}

func (s *vhost) policyLimits(policy string) throttle.Rules {
	if all := s.limitsByPolicy.Load(); all != nil {
		return (*all)[policy]
	}
	return throttle.Rules{}
}

var transitionKinds = map[throttle.State]retry.Kind{
	throttle.Open: retry.Opened, throttle.HalfOpen: retry.HalfOpened, throttle.Ramp: retry.Ramping, throttle.Closed: retry.Closed,
	throttle.NoConsumer: retry.NoConsumer, throttle.ConsumerBack: retry.ConsumerBack,
}

// retriesChanged reports that a queue's breaker has changed, or whether it has consumers. The
// throttle waits for it, so it calls no method of the throttle.
func (s *vhost) retriesChanged(t throttle.Transition) {
	log := s.Log.With("queue", t.Queue, "why", t.Reason)
	defer s.scheduler.Wake()
	if s.replica != nil {
		defer s.replica.PollSoon() // and so the others know
	}
	if t.By != "" {
		log = log.With("by", t.By)
	}
	switch t.To {
	case throttle.Open:
		if t.Until.IsZero() {
			log.Warn("breaker open: retries of the queue are paused until a person closes it")
		} else {
			log.Warn("breaker open: retries of the queue are paused", "probes_at", t.Until)
		}
	case throttle.NoConsumer:
		s.conditions.Put(condition.Condition{Kind: condition.NoConsumer, Queue: t.Queue, Text: "it has no consumers: what is due for it waits, but for a probe in the queue"})
		log.Warn("retries of the queue are paused: it has no consumers, and a probe stands in it; they resume by themselves when it has one")
	case throttle.ConsumerBack:
		s.conditions.Put(condition.Condition{Kind: condition.NoConsumer, Queue: t.Queue})
		log.Info("retries of the queue are no longer paused for lack of consumers")
	default:
		log.Info("breaker "+string(t.To), "was", t.From)
	}
	if !t.OnFollower { // the leader has sent the event
		s.events(retry.Event{Kind: transitionKinds[t.To], At: t.At, Queue: t.Queue, Why: t.Reason, By: t.By})
	}
}

// retryStates returns the state of each shown queue that the throttle or the scheduler knows.
func (s *vhost) retryStates(shown func(queue string) bool) (all []metrics.QueueRetries) {
	now := time.Now()
	by := map[string]*metrics.QueueRetries{}
	of := func(queue string) *metrics.QueueRetries {
		if by[queue] == nil {
			by[queue] = &metrics.QueueRetries{Queue: queue, View: s.throttle.View(queue, now)}
		}
		return by[queue]
	}
	due := map[string]bool{}
	if next, err := s.store.Next(context.Background()); err == nil {
		for _, n := range next {
			if !n.Forwards() && !n.Due.After(now) {
				due[n.Queue] = true
			}
		}
	}
	for _, q := range s.throttle.Queues() {
		if !shown(q) {
			continue
		}
		r := of(q)
		if why := r.View.WaitReason; why != "" && (!why.IsLimit() || due[q]) {
			r.WaitReasons = append(r.WaitReasons, why)
		}
	}
	var unreachable []string
	for _, lane := range s.scheduler.Unreachable() {
		switch {
		case lane.Forwards() && shown(lane.Queue):
			r := of(lane.Queue)
			r.UnreachableTargets = append(r.UnreachableTargets, lane.Forward.String())
		case !lane.Forwards():
			unreachable = append(unreachable, lane.Queue)
		}
	}
	for why, queues := range map[throttle.WaitReason][]string{throttle.WhyPerson: s.scheduler.Paused(), throttle.WhyUnreachable: unreachable} {
		for _, q := range queues {
			if shown(q) {
				of(q).WaitReasons = append(of(q).WaitReasons, why)
			}
		}
	}
	for _, q := range slices.Sorted(maps.Keys(by)) {
		all = append(all, *by[q])
	}
	return all
}

// throttleOf returns a queue's throttle as people see it; nil when nothing limits the queue.
func (s *vhost) throttleOf(queue string) *inspect.ThrottleView {
	v := s.throttle.View(queue, time.Now())
	if !v.HasBreaker && !v.Forced && v.Rate == 0 && v.MaxInFlight == 0 && v.NoConsumersSince.IsZero() && v.WaitReason == "" {
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
