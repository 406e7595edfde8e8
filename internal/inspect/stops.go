package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/store"
)

// Stop is why the retries of a queue stopped for a while.
type Stop struct {
	Why   string
	Error string // hostile: of the failure that opened the breaker
	Since time.Time
	Until time.Time // zero: it is not over
}

const (
	// stopPrefix + a queue's name + "/" + when it began is the entry of a stop that is over.
	stopPrefix = "stop/"
	// StopsKept is how many are kept for each queue, and stopsKeptFor how long.
	StopsKept    = 20
	stopsKeptFor = 30 * 24 * time.Hour
	maxStopText  = 200
	// maxLateBy is how many of them a failure shows.
	maxLateBy = 5
)

// Text says who paused it, and why.
func (p *QueuePause) Text() string { return strings.TrimSuffix("paused by "+p.By+": "+p.Reason, ": ") }

// StopOf returns the stop of a pause that is over at until.
func (p *QueuePause) StopOf(until time.Time) Stop {
	return Stop{Why: p.Text(), Since: p.Since, Until: until}
}

// Entry returns the entry of a stop of a queue.
func (s Stop) Entry(queue string) store.Entry {
	s.Error = strings.ToValidUTF8(s.Error[:min(len(s.Error), maxStopText)], "")
	value, err := json.Marshal(s)
	if err != nil {
		panic(err) // it has texts and times alone
	}
	return store.Entry{Name: stopName(queue, s.Since), Value: value}
}

func stopName(queue string, since time.Time) string {
	return fmt.Sprintf("%s%s/%016x", stopPrefix, queue, max(0, since.UnixMicro()))
}

// stopsOf visits the entries of stops that are over, of one queue, oldest first, or of all.
func stopsOf(ctx context.Context, s settings, queue string, visit func(e store.Entry, s Stop)) error {
	prefix := stopPrefix
	if queue != "" {
		prefix += queue + "/"
	}
	return s.Entries(ctx, prefix, "", func(e store.Entry) (bool, error) {
		var is Stop
		// The name of another queue may begin so.
		if err := json.Unmarshal(e.Value, &is); err == nil && (queue == "" || e.Name == stopName(queue, is.Since)) {
			visit(e, is)
		}
		return true, nil
	})
}

// TrimStops deletes the oldest stops of a queue.
func TrimStops(ctx context.Context, s store.SideTable, queue string) error {
	var all []store.Entry
	err := stopsOf(ctx, s, queue, func(e store.Entry, _ Stop) { all = append(all, store.Entry{Name: e.Name}) })
	if err != nil || len(all) <= StopsKept {
		return err
	}
	return s.PutEntries(ctx, all[:len(all)-StopsKept])
}

// ForgetStops deletes the old stops of all queues.
func ForgetStops(ctx context.Context, s store.SideTable, now time.Time) error {
	var old []store.Entry
	err := stopsOf(ctx, s, "", func(e store.Entry, is Stop) {
		if now.Sub(is.Until) > stopsKeptFor {
			old = append(old, store.Entry{Name: e.Name})
		}
	})
	if err != nil || len(old) == 0 {
		return err
	}
	return s.PutEntries(ctx, old)
}

// stops returns the stops of a queue, newest first.
func (in *Inspector) stops(ctx context.Context, queue string) (all []Stop, err error) {
	if in.Stops != nil {
		all = in.Stops(queue)
	}
	err = stopsOf(ctx, in.Store, queue, func(_ store.Entry, s Stop) { all = append(all, s) })
	slices.SortStableFunc(all, func(a, b Stop) int { return b.Since.Compare(a.Since) })
	return all, err
}

// addLateBy adds what stopped the retries of a queue to the steps that ended late.
func (in *Inspector) addLateBy(
	ctx context.Context, by auth.Caller, queue string, steps []Step, past []store.PastFailure,
) error {
	stops, err := in.stops(ctx, queue)
	hidden := in.Mask()
	if hidden.Sees(by.Role) {
		hidden = nil
	}
	for i := range steps {
		s := &steps[i]
		for _, p := range past {
			if s.Late != "" && p.Queue == queue && p.Failures == s.Attempt && p.FailedAt.Equal(s.Failed) {
				s.LateBy = lateBy(stops, p.Due, p.Ended, queue, hidden)
			}
		}
	}
	return err
}

// lateBy returns the latest stops between due and ended. hidden, when not nil, masks errors.
func lateBy(stops []Stop, due, ended time.Time, queue string, hidden *mask.Rules) (all []Hold) {
	for _, s := range stops {
		if !s.Since.Before(ended) || !s.Until.IsZero() && !s.Until.After(due) || len(all) == maxLateBy {
			continue
		}
		h := Hold{Why: s.Why, Since: &s.Since}
		if s.Error != "" {
			text := s.Error
			if hidden != nil {
				text = hidden.Text(queue, text)
			}
			h.Why += "; its latest error: " + text
		}
		if !s.Until.IsZero() {
			h.Until = &s.Until
		}
		// Several replicas may have noted it.
		if !slices.ContainsFunc(all, func(o Hold) bool { return o.Why == h.Why }) {
			all = append(all, h)
		}
	}
	return all
}
