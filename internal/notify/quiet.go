package notify

import "time"

// Quiet are hours of each day, from From to To in minutes since midnight, in which
// only critical notifications are sent. A nil Zone: no quiet hours.
type Quiet struct {
	From, To int
	Zone     *time.Location
}

func (q Quiet) in(t time.Time) bool {
	if q.Zone == nil || q.From == q.To {
		return false
	}
	t = t.In(q.Zone)
	m := 60*t.Hour() + t.Minute()
	if q.From < q.To {
		return q.From <= m && m < q.To
	}
	return m >= q.From || m < q.To
}

// until returns whether t is in quiet hours, and when they end, by local time.
func (q Quiet) until(t time.Time) (end time.Time, quiet bool) {
	if !q.in(t) {
		return t, false
	}
	local := t.In(q.Zone)
	y, mo, d := local.Date()
	if q.From > q.To && 60*local.Hour()+local.Minute() >= q.From {
		d++
	}
	end = time.Date(y, mo, d, q.To/60, q.To%60, 0, 0, q.Zone)
	// Of an hour that the clock has twice, the zone decides which time.Date gives; it is quiet
	// until the second.
	_, offset := end.Zone()
	_, later := end.Add(longestShift).Zone()
	if second := end.Add(time.Duration(offset-later) * time.Second); second.After(end) && sameClock(second, end) {
		end = second
	}
	// An hour that the clock leaves out may give a time that is past, still quiet, or
	// later than need be.
	for !end.After(t) || q.in(end) {
		end = end.Add(time.Minute)
	}
	for last := end.Add(-time.Minute); last.After(t) && !q.in(last); last = last.Add(-time.Minute) {
		end = last
	}
	return end, true
}

// longestShift is more than a clock is set back by, and what it then has twice.
const longestShift = 3 * time.Hour

func sameClock(a, b time.Time) bool { return a.Hour() == b.Hour() && a.Minute() == b.Minute() }
