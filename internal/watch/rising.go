package watch

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/digits"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/store"
)

// timesUsual is how many times what is usual for a queue is too much.
const timesUsual = 10

// counts are how many messages of a queue the store has. Its names in JSON are stored.
type counts struct {
	Waiting history `json:"waiting"`
	Parked  history `json:"parked"`
}

// addCounts adds what the store has. It leaves out queues of which nothing is kept any more, so one
// that is remembered and not in the answer has no messages, and one that is new had none.
func (w *Watcher) addCounts(all []store.QueueCount, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	has := make(map[string]store.QueueCount, len(all))
	for _, c := range all {
		has[c.Queue] = c
		if w.rising[c.Queue] == nil && len(w.rising) < mostQueues {
			w.rising[c.Queue] = &counts{w.none.clone(), w.none.clone()}
		}
	}
	w.none.add(0, now)
	for name, c := range w.rising {
		c.Waiting.add(has[name].Waiting, now)
		c.Parked.add(has[name].Parked, now)
		if _, kept := has[name]; !kept && c.Waiting.isZero() && c.Parked.isZero() {
			delete(w.rising, name)
		}
	}
}

func (h *history) clone() history {
	return history{h.Slot, slices.Clone(h.Recent), slices.Clone(h.Hours)}
}

func (h *history) isZero() bool {
	isCount := func(n int64) bool { return n != 0 }
	return !slices.ContainsFunc(h.Recent, isCount) && !slices.ContainsFunc(h.Hours, isCount)
}

// rises tells whether the count grew in the last hour by at least so many, and by timesUsual what is
// usual for the queue, and says so.
func (h *history) rises(least int) (text string, rises bool) {
	grown := h.lastHour()
	usual, known := h.usual()
	if !known || grown < int64(least) || float64(grown) <= timesUsual*usual {
		return "", false
	}
	return fmt.Sprintf("%s more in an hour, usually %s", digits.Group(fmt.Sprint(grown)), digits.Group(fmt.Sprint(int64(math.Round(usual))))), true
}

// risingConditions are those of counts that grow. The caller holds mu.
func (w *Watcher) risingConditions(s *notify.Settings) (all []notify.Condition) {
	for name, c := range w.rising {
		if text, rises := c.Waiting.rises(s.Rising); rises {
			all = append(all, notify.Condition{Kind: notify.WaitingRising, Queue: name, Text: text})
		}
		if text, rises := c.Parked.rises(s.Rising); rises {
			all = append(all, notify.Condition{Kind: notify.ParkedRising, Queue: name, Text: text})
		}
	}
	return all
}
