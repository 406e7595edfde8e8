package console

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
)

const (
	// slots of slot each are the calendar.
	slots = 24
	slot  = 30 * time.Minute
	// mostCounted bounds the counting of one slot, and calendarFresh is how long a
	// calendar is shown again.
	mostCounted   = 5000
	calendarFresh = 10 * time.Second
)

// Unread begins the problem that a store does not answer, so that no queue is shown.
const Unread = "what is kept is unknown: "

// Overview tells how the service is, in one look.
func (c *Console) Overview(ctx context.Context, by auth.Caller) (Overview, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return Overview{}, err
	}
	queues, unread := c.allQueues(ctx, by)
	if unread != nil && (ctx.Err() != nil || c.IsReady()) {
		return Overview{}, unread
	}
	shown := inOneLook(queues)
	c.askBroker(ctx, shown)
	now := c.Now()
	o := Overview{Replicas: c.replicasFor(by), Version: c.Version, Since: c.Since, Now: now, ReadOnly: c.ReadOnly || by.ReadOnly,
		Ready: c.IsReady(), Problems: c.ProblemsFor(by), Hour: []Flow{}, Queues: shown, MoreQueues: len(queues) - len(shown)}
	if c.BrokerAt != nil {
		o.Broker = c.BrokerAt()
	}
	if c.Notices != nil {
		o.Notices = c.Notices()
	}
	for i := range queues {
		q := &queues[i]
		o.Waiting += q.Waiting
		o.Parked += q.Parked
		o.Discarded += q.Discarded
		if q.NextDue != nil && (o.NextDue == nil || q.NextDue.Before(*o.NextDue)) {
			o.NextDue, o.Oldest = q.NextDue, q.Oldest
		}
	}
	if c.Rates != nil {
		o.Hour = c.Rates.Hour(now, by.Sees)
		o.PerMinute = c.perMinute(by, now)
	}
	if unread != nil { // the service is not ready, and says here why as everywhere
		o.Queues, o.Calendar = []Queue{}, []Slot{}
		o.Problems = append(o.Problems, Unread+unread.Error())
		return o, nil
	}
	var err error
	o.Calendar, err = c.calendarOf(ctx, by, queues, now)
	return o, err
}

// ProblemsFor are what is wrong now, as far as it is the caller's to know. Those of
// single queues name them, so who is limited to queues finds their own in
// Queue.Returns instead.
func (c *Console) ProblemsFor(by auth.Caller) []string {
	all := []string{}
	if c.Problems != nil && by.May(auth.Viewer, "") == nil {
		all = append(all, c.Problems()...)
	}
	if by.Queues != nil {
		all = withoutQueues(all)
	}
	return all
}

// IsReady tells whether the service is ready.
func (c *Console) IsReady() bool {
	if c.Ready != nil {
		return c.Ready()
	}
	return c.Problems == nil || len(c.Problems()) == 0
}

// withoutQueues leaves out the problems that name queues.
func withoutQueues(problems []string) []string {
	return slices.DeleteFunc(problems, func(p string) bool {
		return strings.HasPrefix(p, "queue ") || strings.HasPrefix(p, "consumers of queue ")
	})
}

// perMinute adds up the last minute of what the caller may see.
func (c *Console) perMinute(by auth.Caller, now time.Time) (sum Flow) {
	for _, name := range c.Rates.Queues() {
		if !by.Sees(name) {
			continue
		}
		f := c.Rates.Minute(name, now)
		sum.Failed += f.Failed
		sum.Returned += f.Returned
		sum.Parked += f.Parked
		sum.Discarded += f.Discarded
	}
	return sum
}

// calendarCache is what was counted a moment ago, for each set of queues that
// callers are limited to.
type calendarCache struct {
	mu    sync.Mutex
	known map[string]calendar
}

type calendar struct {
	as    time.Time
	slots []Slot
}

// calendarOf counts what is due in each of the next hours; what is overdue, or held,
// is in the first slot.
func (c *Console) calendarOf(ctx context.Context, by auth.Caller, queues []Queue, now time.Time) ([]Slot, error) {
	whose := strings.Join(by.Queues, "\x00")
	if by.Queues != nil {
		whose = "limited\x00" + whose
	}
	c.calendar.mu.Lock()
	cached, ok := c.calendar.known[whose]
	c.calendar.mu.Unlock()
	if ok && now.Sub(cached.as) < calendarFresh && !now.Before(cached.as) {
		return cached.slots, nil
	}
	names := []string{}
	for _, q := range queues {
		if q.Waiting > 0 {
			names = append(names, q.Name)
		}
	}
	all, edges := make([]Slot, slots), make([]time.Time, slots)
	from := now
	for i := range all {
		edges[i] = from.Truncate(slot).Add(slot)
		all[i] = Slot{From: from, To: edges[i]}
		from = edges[i]
	}
	counts, err := c.Store.CountDue(ctx, names, edges, mostCounted)
	if err != nil {
		return nil, err
	}
	for i, n := range counts {
		all[i].Count, all[i].AtLeast = n, n == mostCounted
	}
	c.calendar.mu.Lock()
	defer c.calendar.mu.Unlock()
	if c.calendar.known == nil || len(c.calendar.known) > 100 {
		c.calendar.known = map[string]calendar{}
	}
	c.calendar.known[whose] = calendar{now, all}
	return all, nil
}
