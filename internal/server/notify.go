package server

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/condition"
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
	s.notify, err = notify.New(s.config.Notify, notify.Options{Store: s.store, Conditions: s.told, Count: s.metrics.Notified, Log: s.Log})
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

// told returns the conditions of now that people are notified of.
func (s *vhost) told(ctx context.Context, t *notify.Settings) ([]notify.Condition, error) {
	all := toldOf(s.conditionsAnywhere())
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

// toldOf returns the notifications that the replicas' conditions call for. The intake has stopped if it
// runs at no replica. For lanes and alarms one replica's word is enough: the others would find the same.
func toldOf(replicas [][]condition.Condition) (all []notify.Condition) {
	once := map[notify.Condition]bool{} // without their texts
	add := func(c notify.Condition) {
		named := notify.Condition{Kind: c.Kind, Queue: c.Queue, Target: c.Target}
		if !once[named] {
			all = append(all, c)
		}
		once[named] = true
	}
	var intake *notify.Condition
	intakeRuns := false
	for _, holds := range replicas {
		for _, c := range holds {
			switch {
			case c.Alarm:
				add(notify.Condition{Kind: notify.BrokerBlocked, Text: c.Text})
			case c.Kind == condition.Unreachable:
				add(notify.Condition{Kind: notify.QueuePaused, Queue: c.Queue, Text: "they fail: " + c.Text})
			case c.Kind == condition.Forward:
				add(notify.Condition{Kind: notify.ForwardStopped, Queue: c.Queue, Target: c.Target, Text: c.Text})
			}
		}
		if intake = stoppedBy(holds); intake == nil {
			intakeRuns = true
		}
	}
	if !intakeRuns && intake != nil {
		all = append(all, *intake)
	}
	return all
}

// stoppedBy returns the condition of a replica whose intake has stopped; nil when it runs.
func stoppedBy(holds []condition.Condition) *notify.Condition {
	for _, kind := range []condition.Kind{condition.Disk, condition.Store, condition.Redis, condition.ParkedStore, condition.Intake} {
		for _, c := range holds {
			if c.Kind != kind || c.Alarm {
				continue
			}
			stopped := notify.Condition{Kind: notify.IntakeStopped, Text: c.Text}
			if kind == condition.Intake {
				stopped.After = disconnectedFor
			}
			return &stopped
		}
	}
	return nil
}
