package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

const (
	// The calendar has slotCount slots of equal length, but for what is due already and what is
	// due after them.
	slotCount = 12
	// mostCounted bounds the counting of one slot, and calendarFresh is how long a
	// calendar is shown again.
	mostCounted   = 5000
	calendarFresh = 10 * time.Second
	// mostDue is how many queues, those with the most messages, have all their due messages
	// counted; of each other queue only the message that is due first is counted.
	mostDue = 500
	// inSlots is the share of the messages not yet due that the slots should hold: a few that are
	// due far later do not make them coarse.
	inSlots = 0.9
)

// slotLengths are those that a calendar can have, so that its edges are at round times.
var slotLengths = []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute,
	10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, day, 2 * day, 7 * day, 30 * day, 90 * day, 365 * day}

const day = 24 * time.Hour

// Slot is how many messages are due in a stretch of time.
type Slot struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Count int64     `json:"count"`
	// AtLeast: there are more; counting them all would have taken too long.
	AtLeast bool `json:"at_least,omitempty"`
	Overdue bool `json:"overdue,omitempty" doc:"They are due already, and are not retried yet: from is when the first of them was due."`
	Later   bool `json:"later,omitempty" doc:"They are due after all other slots: to is as far away as a delay can be."`
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

// calendarOf counts what is due already, in each slot of the time to come, and later. The slots
// are as long as fits what is due; there are none where nothing is.
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
	if len(fullest) == 0 {
		return []Slot{}, nil
	}
	names, waiting := make([]string, len(fullest)), int64(0)
	for i, q := range fullest {
		names[i] = q.Queue
		waiting += q.Waiting
	}
	length, err := in.slotLength(ctx, names, waiting, now)
	if err != nil {
		return nil, err
	}
	all := emptySlots(fullest, length, now)
	edges := make([]time.Time, len(all))
	for i := range all {
		edges[i] = all[i].To
	}
	counts, err := in.Store.CountDue(ctx, names, edges, mostCounted)
	if err != nil {
		return nil, err
	}
	for i, n := range counts {
		all[i].Count, all[i].AtLeast = n, n == mostCounted
	}
	if len(fullest) == mostDue {
		countOthers(all, queues, fullest[mostDue-1])
	}
	return slices.DeleteFunc(all, func(s Slot) bool { return s.Count == 0 && (s.Overdue || s.Later) }), nil
}

// slotLength is the shortest whose slots hold most of what is not due yet; 0: nothing is.
func (in *Inspector) slotLength(ctx context.Context, names []string, waiting int64, now time.Time) (time.Duration, error) {
	edges := []time.Time{now}
	for _, l := range slotLengths {
		edges = append(edges, now.Add(slotCount*l))
	}
	counts, err := in.Store.CountDue(ctx, names, edges, mostCounted)
	if err != nil {
		return 0, err
	}
	// What was not counted is taken to be where the counting first ended.
	uncounted := waiting
	for _, n := range counts {
		uncounted -= n
	}
	if i := slices.Index(counts, mostCounted); i >= 0 && uncounted > 0 {
		counts[i] += uncounted
	}
	upcoming, within := int64(0), int64(0)
	for _, n := range counts[1:] {
		upcoming += n
	}
	for i, n := range counts[1:] {
		if within += n; n > 0 && float64(within) >= inSlots*float64(upcoming) {
			return slotLengths[i], nil
		}
	}
	return 0, nil
}

// emptySlots are the slots of a length, each of which ends where the next one begins.
func emptySlots(queues []store.QueueCount, length time.Duration, now time.Time) []Slot {
	first := now
	for _, q := range queues {
		if !q.NextDue.IsZero() && q.NextDue.Before(first) {
			first = q.NextDue
		}
	}
	all, from := []Slot{{From: first, To: now, Overdue: true}}, now
	for i := 0; length > 0 && i < slotCount; i++ {
		to := from.Truncate(length).Add(length)
		all = append(all, Slot{From: from, To: to})
		from = to
	}
	return append(all, Slot{From: from, To: now.Add(policy.LongestDelay + day), Later: true})
}

// countOthers adds the message that is due first of each queue that has fewer than last.
func countOthers(all []Slot, queues []store.QueueCount, last store.QueueCount) {
	for _, q := range queues {
		if q.Waiting == 0 || fuller(q, last) <= 0 {
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
}

// fuller orders queues by how many messages wait, the most first.
func fuller(a, b store.QueueCount) int {
	return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Queue, b.Queue))
}
