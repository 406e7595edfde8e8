package inspect

import (
	"context"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// Unread begins the problem that a store does not answer, so that no queue is shown.
const Unread = "what is kept is unknown: "

// Overview tells how the service is, in one look.
func (in *Inspector) Overview(ctx context.Context, by auth.Caller) (Overview, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return Overview{}, err
	}
	s, unread := in.visibleQueues(ctx, by)
	if unread != nil && (ctx.Err() != nil || in.IsReady()) {
		return Overview{}, unread
	}
	shown := s.shown(s.topQueues())
	in.askBroker(ctx, shown)
	now := in.Now()
	o := Overview{Replicas: in.replicasFor(by), Version: in.Version, Since: in.Since, Now: now, ReadOnly: in.ReadOnly || by.ReadOnly,
		Ready: in.IsReady(), Problems: in.ProblemsFor(by), Hour: []Flow{}, Queues: shown, MoreQueues: len(s.counts) - len(shown)}
	if in.BrokerAt != nil {
		o.Broker = in.BrokerAt()
	}
	if in.Notices != nil {
		o.Notices = in.Notices()
	}
	var next store.QueueCount // the one whose message is due first
	for _, n := range s.counts {
		o.Waiting += n.Waiting
		o.Parked += n.Parked
		o.Discarded += n.Discarded
		if n.Waiting > 0 && !n.NextDue.IsZero() && (next.NextDue.IsZero() || n.NextDue.Before(next.NextDue)) {
			next = n
		}
	}
	o.NextDue, o.Oldest = dueFirst(next)
	if in.Activity != nil {
		o.Hour = in.Activity.Hour(now, by.Sees)
		o.PerMinute = in.perMinute(by, now)
	}
	if unread != nil { // the service is not ready, and says here why as everywhere
		o.Queues, o.Calendar = []Queue{}, []Slot{}
		o.Problems = append(o.Problems, Unread+unread.Error())
		return o, nil
	}
	var err error
	o.Calendar, err = in.calendarOf(ctx, by, s.counts, now)
	return o, err
}

// ProblemsFor are what is wrong now, as far as it is the caller's to know. Those of
// single queues name them, so who is limited to queues finds their own in
// Queue.Blocked instead.
func (in *Inspector) ProblemsFor(by auth.Caller) []string {
	all := []string{}
	if in.Problems != nil && by.May(auth.Viewer, "") == nil {
		all = append(all, in.Problems()...)
	}
	if by.Queues != nil {
		all = withoutQueues(all)
	}
	return all
}

// IsReady tells whether the service is ready.
func (in *Inspector) IsReady() bool {
	if in.Ready != nil {
		return in.Ready()
	}
	return in.Problems == nil || len(in.Problems()) == 0
}

// perMinute adds up the last minute of what the caller may see.
func (in *Inspector) perMinute(by auth.Caller, now time.Time) (sum Flow) {
	for _, name := range in.Activity.Queues() {
		if !by.Sees(name) {
			continue
		}
		f := in.Activity.Minute(name, now)
		sum.Failed += f.Failed
		sum.Retried += f.Retried
		sum.Parked += f.Parked
		sum.Discarded += f.Discarded
	}
	return sum
}
