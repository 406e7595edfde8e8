package server

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// disconnectedFor is how long the intake may be without RabbitMQ before people are notified:
// longer than RabbitMQ takes to start again.
const disconnectedFor = 2 * time.Minute

// openNotify makes the notifications.
func (s *vhost) openNotify() (err error) {
	s.notify, err = notify.New(s.config.Notify, notify.Options{Store: s.store, Conditions: s.conditions, Count: s.metrics.Notified, Log: s.Log, Replica: s.replicaID(), Decode: s.decodeRecord})
	s.notified = s.config.Notify
	return err
}

// decodeRecord decodes the body of a message that was parked, for a rule that asks for it.
func (s *vhost) decodeRecord(r *store.Record) *decode.Result {
	return s.decoder.Decode(context.Background(), inspect.BodyOf(r))
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
	}
	all = append(all, s.watchedConditions(t, now)...)
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

// reports are what is wrong, with the addresses of the replicas that say so.
type reports map[string][]string

// text names the replicas, where there are several: somebody has to look at one of them.
func (r reports) text() string {
	var all []string
	for _, what := range slices.Sorted(maps.Keys(r)) {
		slices.Sort(r[what])
		if at := strings.Trim(strings.Join(r[what], ", "), ", "); at != "" {
			what += " (replica " + at + ")"
		}
		all = append(all, what)
	}
	return strings.Join(all, "; ")
}

// partReports are reports by a part of a replica.
type partReports[K comparable] map[K]reports

func (p partReports[K]) add(part K, what, at string) {
	if p[part] == nil {
		p[part] = reports{}
	}
	p[part][what] = append(p[part][what], at)
}

// conditionsOf returns the conditions that follow from the problems of the replicas, and names the
// replicas that have them. The intake has stopped when it runs at none of them. A lane is
// unreachable, and RabbitMQ blocks publishing, when one of them reports it: the others would find
// the same.
func conditionsOf(replicas []replicaProblems) (all []notify.Condition) {
	blocked, stopped := reports{}, reports{}
	unreachable, targets := partReports[string]{}, partReports[[2]string]{}
	var intake *notify.Condition
	intakeRuns := false
	for _, r := range replicas {
		isBlocked := ""
		for part, what := range r.wrong {
			queue, isQueue := strings.CutPrefix(part, partQueue)
			lane, isForward := strings.CutPrefix(part, partForward)
			switch {
			case strings.HasPrefix(what, blockedBy):
				isBlocked = what // of each connection of the replica
			case isQueue:
				unreachable.add(queue, what, r.at)
			case isForward:
				queue, target := splitLane(lane)
				targets.add([2]string{queue, target}, what, r.at)
			}
		}
		if isBlocked != "" {
			blocked[isBlocked] = append(blocked[isBlocked], r.at)
		}
		if intake = stoppedBy(r.wrong); intake == nil {
			intakeRuns = true
		} else {
			stopped[intake.Text] = append(stopped[intake.Text], r.at)
		}
	}
	for queue, by := range unreachable {
		all = append(all, notify.Condition{Kind: notify.QueuePaused, Queue: queue, Text: "they fail: " + by.text()})
	}
	for lane, by := range targets {
		all = append(all, notify.Condition{Kind: notify.ForwardStopped, Queue: lane[0], Target: lane[1], Text: by.text()})
	}
	if len(blocked) > 0 {
		all = append(all, notify.Condition{Kind: notify.BrokerBlocked, Text: blocked.text()})
	}
	if !intakeRuns && intake != nil {
		intake.Text = stopped.text()
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
	stopped := notify.Condition{Kind: notify.IntakeStopped, Text: wrong[partStore]}
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
