package inspect

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
	// The calendar has slotCount slots of slotLength each.
	slotCount  = 24
	slotLength = 30 * time.Minute
	// mostCounted bounds the counting of one slot, and calendarFresh is how long a
	// calendar is shown again.
	mostCounted   = 5000
	calendarFresh = 10 * time.Second
	// mostDue is how many queues, those with the most messages, have all their due messages
	// counted; of each other queue only the message that is due first is counted.
	mostDue = 500
)

// Slot is how many messages are due in a stretch of time.
type Slot struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Count int64     `json:"count"`
	// AtLeast: there are more; counting them all would have taken too long.
	AtLeast bool `json:"at_least,omitempty"`
}

// calendarCache is what was counted a moment ago, for each set of queues that
// callers are limited to.
type calendarCache struct {
	mu    sync.Mutex
	known map[string]calendar
}

type calendar struct {
	asOf  time.Time
	slots []Slot
}

// calendarOf counts what is due in each slot of the next hours; what is overdue, or paused, is in
// the first one.
func (in *Inspector) calendarOf(ctx context.Context, by auth.Caller, queues []store.QueueCount, now time.Time) ([]Slot, error) {
	whose := strings.Join(by.Queues, "\x00")
	if by.Queues != nil {
		whose = "limited\x00" + whose
	}
	in.calendar.mu.Lock()
	cached, ok := in.calendar.known[whose]
	in.calendar.mu.Unlock()
	if ok && now.Sub(cached.asOf) < calendarFresh && !now.Before(cached.asOf) {
		return cached.slots, nil
	}
	all, err := in.slots(ctx, queues, now)
	if err != nil {
		return nil, err
	}
	in.calendar.mu.Lock()
	defer in.calendar.mu.Unlock()
	if in.calendar.known == nil || len(in.calendar.known) > 100 {
		in.calendar.known = map[string]calendar{}
	}
	in.calendar.known[whose] = calendar{now, all}
	return all, nil
}

func (in *Inspector) slots(ctx context.Context, queues []store.QueueCount, now time.Time) ([]Slot, error) {
	fullest := firstInOrder(mostDue, func(yield func(store.QueueCount) bool) {
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
	all, edges := make([]Slot, slotCount), make([]time.Time, slotCount)
	from := now
	for i := range all {
		edges[i] = from.Truncate(slotLength).Add(slotLength)
		all[i] = Slot{From: from, To: edges[i]}
		from = edges[i]
	}
	counts, err := in.Store.CountDue(ctx, names, edges, mostCounted)
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
