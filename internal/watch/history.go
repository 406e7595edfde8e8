package watch

import "time"

const (
	slot = 10 * time.Minute
	// slotsKept are an hour, and hoursKept a day, both with their ends.
	slotsKept, hoursKept = 7, 25
	slotsAnHour          = int64(time.Hour / slot)
	// longestGap is how many slots may be missing: then the count of before stands for them.
	longestGap = 2 * slotsAnHour
)

func slotOf(t time.Time) int64 { return t.Unix() / int64(slot/time.Second) }

// history is a count over a day: its value at the beginning of each slot of the last hour, and at
// each full hour. Its names in JSON are stored.
type history struct {
	Slot   int64   `json:"slot"` // of the last value
	Recent []int64 `json:"recent"`
	Hours  []int64 `json:"hours,omitempty"`
}

// add adds the count as it is now. After a gap that is too long it begins anew.
func (h *history) add(n int64, now time.Time) {
	at := slotOf(now)
	if h.Slot == 0 || at > h.Slot+longestGap || at < h.Slot-longestGap {
		*h = history{Slot: at - 1}
	}
	for h.Slot < at {
		h.Slot++
		h.Recent = keepLast(append(h.Recent, n), slotsKept)
		if h.Slot%slotsAnHour == 0 {
			h.Hours = keepLast(append(h.Hours, n), hoursKept)
		}
	}
}

func keepLast(all []int64, most int) []int64 { return all[max(0, len(all)-most):] }

// isOld tells whether the count is not of today any more.
func (h *history) isOld(now time.Time) bool { return slotOf(now) > h.Slot+longestGap }

// latest is the count at the beginning of this slot, which texts show: they change rarely then.
func (h *history) latest() int64 { return h.Recent[len(h.Recent)-1] }

// lastHour is by how much the count has grown in an hour.
func (h *history) lastHour() int64 { return h.latest() - h.Recent[0] }

// leastHours is how many hours there must have been to know what is usual.
const leastHours = 6

// usual is by how much the count grows in an hour, on average over the day before the last hour;
// false: that is not known yet. What drains is no growth.
func (h *history) usual() (an float64, known bool) {
	all := h.Hours[:max(0, len(h.Hours)-1)] // the end of the last may be in the last hour
	if len(all) <= leastHours {
		return 0, false
	}
	sum := int64(0)
	for i := 1; i < len(all); i++ {
		sum += max(0, all[i]-all[i-1])
	}
	return float64(sum) / float64(len(all)-1), true
}

// before returns the count that many hours ago, or up to one more; false: that is not known.
func (h *history) before(hours int) (n int64, known bool) {
	at := len(h.Hours) - 1 - hours
	if at < 0 {
		return 0, false
	}
	return h.Hours[at], true
}
