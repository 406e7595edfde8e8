package server

import (
	"cmp"
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
	var stopped *notify.Condition // the intake of some replica
	runs := false
	for _, holds := range replicas {
		var here *notify.Condition
		var why condition.Kind
		for _, c := range holds {
			row := condition.Kinds[c.Kind]
			told := notify.Condition{Kind: notify.Kind(row.Event), Queue: c.Queue, Target: c.Target, After: row.After, Text: c.Text}
			switch {
			case c.Alarm:
				add(notify.Condition{Kind: notify.BrokerBlocked, Text: c.Text})
			case told.Kind == notify.IntakeStopped:
				if here == nil || cmp.Or(cmp.Compare(told.After, here.After), cmp.Compare(c.Kind, why)) < 0 {
					here, why = &told, c.Kind
				}
			case told.Kind == notify.QueuePaused:
				told.Text = "they fail: " + c.Text
				add(told)
			case told.Kind != "":
				add(told)
			}
		}
		if runs = runs || here == nil; here != nil {
			stopped = here
		}
	}
	if !runs && stopped != nil {
		all = append(all, *stopped)
	}
	return all
}
