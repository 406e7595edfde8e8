package console

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// slots of slot each are the calendar.
	slots = 24
	slot  = 30 * time.Minute
	// mostCounted bounds the counting of one slot, and calendarFresh is how long a
	// calendar is shown again.
	mostCounted   = 5000
	calendarFresh = 10 * time.Second
	// mostDue is of how many queues, those with the most messages, all that is due is
	// counted; of each other one the message that is due first.
	mostDue = 500
)

// Unread begins the problem that a store does not answer, so that no queue is shown.
const Unread = "what is kept is unknown: "

// Overview tells how the service is, in one look.
func (c *Console) Overview(ctx context.Context, by auth.Caller) (Overview, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return Overview{}, err
	}
	s, unread := c.sight(ctx, by)
	if unread != nil && (ctx.Err() != nil || c.IsReady()) {
		return Overview{}, unread
	}
	shown := s.shown(s.inOneLook())
	c.askBroker(ctx, shown)
	now := c.Now()
	o := Overview{Replicas: c.replicasFor(by), Version: c.Version, Since: c.Since, Now: now, ReadOnly: c.ReadOnly || by.ReadOnly,
		Ready: c.IsReady(), Problems: c.ProblemsFor(by), Hour: []Flow{}, Queues: shown, MoreQueues: len(s.counts) - len(shown)}
	if c.BrokerAt != nil {
		o.Broker = c.BrokerAt()
	}
	if c.Notices != nil {
		o.Notices = c.Notices()
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
	o.Calendar, err = c.calendarOf(ctx, by, s.counts, now)
	return o, err
}

// ProblemsFor are what is wrong now, as far as it is the caller's to know. Those of
// single queues name them, so who is limited to queues finds their own in
// Queue.Blocked instead.
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

// perMinute adds up the last minute of what the caller may see.
func (c *Console) perMinute(by auth.Caller, now time.Time) (sum Flow) {
	for _, name := range c.Rates.Queues() {
		if !by.Sees(name) {
			continue
		}
		f := c.Rates.Minute(name, now)
		sum.Failed += f.Failed
		sum.Retried += f.Retried
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

// calendarOf counts what is due in each of the next hours; what is overdue, or paused,
// is in the first slot.
func (c *Console) calendarOf(ctx context.Context, by auth.Caller, queues []store.QueueCount, now time.Time) ([]Slot, error) {
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
	all, err := c.slots(ctx, queues, now)
	if err != nil {
		return nil, err
	}
	c.calendar.mu.Lock()
	defer c.calendar.mu.Unlock()
	if c.calendar.known == nil || len(c.calendar.known) > 100 {
		c.calendar.known = map[string]calendar{}
	}
	c.calendar.known[whose] = calendar{now, all}
	return all, nil
}

func (c *Console) slots(ctx context.Context, queues []store.QueueCount, now time.Time) ([]Slot, error) {
	fullest := first(mostDue, func(yield func(store.QueueCount) bool) {
		for _, q := range queues {
			if q.Waiting > 0 && !yield(q) {
				return
			}
		}
	}, fuller)
	names := make([]string, len(fullest))
	for i, q := range fullest {
		names[i] = q.Queue
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
	if len(fullest) < mostDue {
		return all, nil
	}
	for _, q := range queues {
		if q.Waiting == 0 || fuller(q, fullest[mostDue-1]) <= 0 {
			continue
		}
		for i := range all {
			if q.NextDue.Before(all[i].To) {
				all[i].Count++
				for j := i; q.Waiting > 1 && j < len(all); j++ {
					all[j].AtLeast = true
				}
				break
			}
		}
	}
	return all, nil
}

// fuller orders queues by how many messages wait, the most first.
func fuller(a, b store.QueueCount) int {
	return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Queue, b.Queue))
}
