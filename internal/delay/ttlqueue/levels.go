package ttlqueue

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/policy"
)

// DefaultLevels suit a backoff that doubles, from a second to an hour.
var DefaultLevels = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour}

// Levels waits in one queue per level, shared by all work queues. In quorum queues
// each work queue has a lane queue of its own at the end (delay.DuePerQueue).
type Levels struct {
	name   string
	levels []time.Duration // sorted, at least one
	kind   Type
}

// NewLevels makes levels; without any, DefaultLevels. Each is from 1 ms to
// policy.LongestDelay, in whole milliseconds.
func NewLevels(kind Type, levels ...time.Duration) (*Levels, error) {
	if len(levels) == 0 {
		levels = DefaultLevels
	}
	levels = slices.Compact(slices.Sorted(slices.Values(levels)))
	for _, l := range levels {
		if l < time.Millisecond || l > longest || l%time.Millisecond != 0 {
			return nil, fmt.Errorf("the level %s is not a number of whole milliseconds from 1 ms to ten years", l)
		}
	}
	return &Levels{name: "levels", levels: levels, kind: kind}, nil
}

// UpTo implements delay.Leveled.
func (l *Levels) UpTo(longest time.Duration) delay.Way {
	i, _ := slices.BinarySearch(l.levels, longest)
	return &Levels{l.name, l.levels[:min(i+1, len(l.levels))], l.kind}
}

// NewFixed is one level.
func NewFixed(kind Type, d time.Duration) (*Levels, error) {
	l, err := NewLevels(kind, d)
	if err == nil {
		l.name = "fixed"
	}
	return l, err
}

// Limits implements delay.Way.
func (l *Levels) Limits() delay.Limits {
	names := make([]string, len(l.levels))
	for i, d := range l.levels {
		names[i] = policy.FormatDuration(d)
	}
	makes := "one queue and one exchange per level, for all work queues together"
	if l.kind == Quorum {
		makes += ", and one queue for each work queue"
	}
	return delay.Limits{Name: l.name, Longest: l.levels[len(l.levels)-1], Levels: l.levels, DropsWhenFull: l.kind == Classic, ChangesRoutingKey: true, Survives: l.kind.survives(),
		Declares: makes + ": " + strings.Join(names, ", ")}
}

// Topology implements delay.Way.
func (l *Levels) Topology(queue string) delay.Topology {
	t := delay.Due(queue)
	if l.kind == Quorum {
		t = delay.DuePerQueue(queue)
	}
	for _, d := range l.levels {
		t = t.With(l.kind.delayQueue(l.kind.name(label(d)), d, nil))
	}
	return t
}

// Ticket implements delay.Way.
func (l *Levels) Ticket(queue string, wait time.Duration) (delay.Ticket, error) {
	i, _ := slices.BinarySearch(l.levels, wait)
	if i == len(l.levels) {
		return delay.Ticket{}, fmt.Errorf("a delay of %s is longer than the longest level, %s", policy.FormatDuration(wait), policy.FormatDuration(l.levels[i-1]))
	}
	return delay.Ticket{Exchange: l.kind.name(label(l.levels[i])), RoutingKey: queue, Delay: l.levels[i]}, nil
}
