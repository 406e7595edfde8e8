package inspect

import (
	"context"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/store"
)

// Overview is the state of the service on one page.
type Overview struct {
	Version    string                `json:"version"`
	Since      time.Time             `json:"since" doc:"When the service started."`
	Now        time.Time             `json:"now"`
	Broker     string                `json:"broker" doc:"Where RabbitMQ is, without the password."`
	ReadOnly   bool                  `json:"read_only"`
	Ready      bool                  `json:"ready" doc:"As /readyz says."`
	Conditions []condition.Condition `json:"conditions" doc:"What is wrong or makes messages wait now, with single queues also while it is ready; empty when nothing is."`
	Notices    []string              `json:"notices,omitempty" doc:"What needs a person's attention, though it stops nothing."`
	Waiting    int64                 `json:"waiting"`
	Parked     int64                 `json:"parked"`
	Discarded  int64                 `json:"discarded"`
	Oldest     *time.Time            `json:"oldest,omitempty" doc:"When the message with the earliest due time last failed."`
	NextDue    *time.Time            `json:"next_due,omitempty"`
	PerMinute  Flow                  `json:"per_minute" doc:"In the last minute."`
	Hour       []Flow                `json:"hour" doc:"Each of the last 60 minutes, the current one last."`
	Calendar   []Slot                `json:"calendar" doc:"Upcoming retries, by time, in the next hours."`
	Queues     []Queue               `json:"queues"`
	MoreQueues int                   `json:"more_queues,omitempty" doc:"How many queues are left out: the list of queues has them, a page at a time."`
	Replicas   []Replica             `json:"replicas,omitempty" doc:"The services that share the store, in the order of their ids; absent where only one can."`
}

// Flow is what happened in a minute.
type Flow struct {
	Failed    int64 `json:"failed"`
	Retried   int64 `json:"retried"`
	Parked    int64 `json:"parked"`
	Discarded int64 `json:"discarded"`
}

// Overview returns the state of the service.
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
		Ready: in.IsReady(), Conditions: in.ConditionsFor(by), Hour: []Flow{}, Queues: shown, MoreQueues: len(s.counts) - len(shown)}
	if in.BrokerURL != nil {
		o.Broker = in.BrokerURL()
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
		o.Conditions = append(o.Conditions, condition.Condition{Kind: condition.Unread, Text: unread.Error(), Since: now, NotReady: true})
		return o, nil
	}
	var err error
	o.Calendar, err = in.calendarOf(ctx, by, s.counts, now)
	return o, err
}

// ConditionsFor returns those that hold now, as far as the caller may know them. Those of single
// queues name them: a caller who is limited to queues finds those of their own in Queue.Unreachable
// and Queue.Throttle instead, but for those of forward targets.
func (in *Inspector) ConditionsFor(by auth.Caller) []condition.Condition {
	all := []condition.Condition{}
	if in.Conditions != nil && by.May(auth.Viewer, "") == nil {
		all = append(all, in.Conditions()...)
	}
	if by.Queues != nil {
		all = slices.DeleteFunc(all, condition.Condition.OfQueue)
	}
	return all
}

// IsReady tells whether the service is ready.
func (in *Inspector) IsReady() bool {
	if in.Ready != nil {
		return in.Ready()
	}
	return in.Conditions == nil || len(in.Conditions()) == 0
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
