package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// disconnectedFor is how long the intake may be without RabbitMQ before people are notified:
// longer than RabbitMQ takes to start again.
const disconnectedFor = 2 * time.Minute

// openNotify makes the notifications.
func (s *vhost) openNotify() (err error) {
	s.notify, err = notify.New(s.config.Notify, notify.Options{Store: s.store, Conditions: s.conditions, Count: s.metrics.Notified, Log: s.Log, Replica: s.replicaID()})
	s.notified = s.config.Notify
	return err
}

// reloadNotify puts the notifications' settings in force, when they have changed.
func (s *vhost) reloadNotify(c *config.Config) error {
	if reflect.DeepEqual(c.Notify, s.notified) {
		return nil
	}
	err := s.notify.SetSettings(c.Notify)
	if err == nil {
		s.notified = c.Notify
	}
	return err
}

// conditions returns the conditions that are on now.
func (s *vhost) conditions(ctx context.Context, t *notify.Settings) ([]notify.Condition, error) {
	all := conditionsOf(s.wrongAnywhere())
	now := time.Now()
	counts, err := s.store.Counts(ctx)
	if err != nil {
		return nil, err
	}
	waits := map[string]bool{}
	for _, c := range counts {
		waits[c.Queue] = c.Waiting > 0
		if !c.NextFailed.IsZero() && now.Sub(c.NextFailed) > t.OldestWaiting {
			all = append(all, notify.Condition{Kind: notify.OldestWaiting, Queue: c.Queue, Since: c.NextFailed.Add(t.OldestWaiting)})
		}
	}
	for _, q := range s.activity.Queues() {
		if s.activity.Minute(q, now).Parked >= int64(t.Burst) {
			all = append(all, notify.Condition{Kind: notify.ParkedBurst, Queue: q})
		}
	}
	for _, q := range s.throttle.Queues() {
		v := s.throttle.View(q, now)
		// Where nothing waits there is nothing to probe with, so the notification would never end.
		if (v.State == throttle.Open || v.State == throttle.HalfOpen) && (waits[q] || v.InFlight > 0) {
			all = append(all, notify.Condition{Kind: notify.BreakerOpen, Queue: q, Since: v.Since, Text: v.Reason})
		}
		if v.Consumers == 0 && !v.NoConsumersSince.IsZero() {
			all = append(all, notify.Condition{Kind: notify.NoConsumer, Queue: q, Since: v.NoConsumersSince, After: t.NoConsumer})
		}
	}
	if off := s.ledgerOff.Load(); off == nil {
		all = append(all, notify.Condition{Kind: notify.LedgerOff, Unknown: true})
	} else {
		for q, n := range *off {
			all = append(all, notify.Condition{Kind: notify.LedgerOff, Queue: q, Text: fmt.Sprintf("by %d", n)})
		}
	}
	pauses, err := inspect.Pauses(ctx, s.store)
	for _, q := range slices.Sorted(maps.Keys(pauses)) {
		p := pauses[q]
		all = append(all, notify.Condition{Kind: notify.QueuePaused, Queue: q, Since: p.Since, Text: "by " + p.By + ": " + p.Reason})
	}
	return all, err
}

// conditionsOf returns the conditions that follow from the problems of the replicas. The intake has
// stopped when it runs at none of them. A lane is unreachable, and RabbitMQ blocks publishing, when
// one of them reports it: the others would find the same.
func conditionsOf(replicas []map[string]string) (all []notify.Condition) {
	blocked, unreachable, targets := "", map[string]string{}, map[[2]string]string{}
	var intake *notify.Condition
	intakeRuns := false
	for _, wrong := range replicas {
		for part, what := range wrong {
			queue, isQueue := strings.CutPrefix(part, partQueue)
			lane, isForward := strings.CutPrefix(part, partForward)
			switch {
			case strings.HasPrefix(what, blockedBy):
				blocked = what
			case isQueue:
				unreachable[queue] = "they fail: " + what
			case isForward:
				queue, target := splitLane(lane)
				targets[[2]string{queue, target}] = what
			}
		}
		if intake = stoppedBy(wrong); intake == nil {
			intakeRuns = true
		}
	}
	for queue, what := range unreachable {
		all = append(all, notify.Condition{Kind: notify.QueuePaused, Queue: queue, Text: what})
	}
	for lane, what := range targets {
		all = append(all, notify.Condition{Kind: notify.ForwardStopped, Queue: lane[0], Target: lane[1], Text: what})
	}
	if blocked != "" {
		all = append(all, notify.Condition{Kind: notify.BrokerBlocked, Text: blocked})
	}
	if !intakeRuns && intake != nil {
		all = append(all, *intake)
	}
	return all
}

// splitLane takes the name of a forward lane apart, so that routes match its queue. The
// target is what its policy says, and the queue may have any name: the last match counts.
func splitLane(lane string) (queue, target string) {
	at := max(strings.LastIndex(lane, " to queue "), strings.LastIndex(lane, " to exchange "))
	if at < 0 {
		return lane, ""
	}
	return lane[:at], lane[at+len(" to "):]
}

// stoppedBy returns the condition of a replica whose intake has stopped; nil when it runs.
func stoppedBy(wrong map[string]string) *notify.Condition {
	stopped := notify.Condition{Kind: notify.IntakeStopped, Text: cmp.Or(wrong[partDisk], wrong[partStore])}
	for _, part := range []string{partRedis, partParkedStore} {
		if stopped.Text == "" {
			stopped.Text = wrong[part]
		}
	}
	if what := wrong[partIntake]; stopped.Text == "" && !strings.HasPrefix(what, blockedBy) {
		stopped.Text, stopped.After = what, disconnectedFor
	}
	if stopped.Text == "" {
		return nil
	}
	return &stopped
}
