package webui

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// overviewData is the first page.
type overviewData struct {
	inspect.Overview
	Chart    chart
	Calendar calendar
	Groups   []inspect.Group // those with the most messages
	MoreOf   int             // how many groups there are besides
	Unread   bool            // the groups are not known
	Top      []inspect.Queue // those whose retries are held back, then those with the most failures
}

const (
	// mostTop is how many queues the overview shows, and mostGroups how many error groups.
	mostTop    = 10
	mostGroups = 5
)

func (s *server) overview(r *http.Request, c auth.Caller) (view, error) {
	o, err := s.console.Overview(r.Context(), c)
	if err != nil {
		return view{}, err
	}
	d := overviewData{Overview: o, Chart: flowChart(o.Hour, o.Now), Calendar: calendarOf(o.Calendar), Top: topQueues(o.Queues)}
	groups, err := s.console.Groups(r.Context(), c, "", "", mostGroups)
	d.Unread = err != nil
	for _, g := range groups.Groups[:min(mostGroups, len(groups.Groups))] {
		if g.Waiting+g.Parked > 0 {
			d.Groups = append(d.Groups, g)
		}
	}
	d.MoreOf = groups.Total - len(d.Groups)
	return view{template: "overview", title: "Overview", nav: "/", command: "redrive status", data: d}, nil
}

// topQueues are the queues to look at first.
func topQueues(all []inspect.Queue) (top []inspect.Queue) {
	held := func(q inspect.Queue) int {
		if q.Pause != nil || q.Unreachable != "" || q.Throttle.KeepsBack() {
			return 1
		}
		return 0
	}
	for _, q := range all {
		if q.Failed > 0 || q.Waiting > 0 || q.Parked > 0 || held(q) > 0 {
			top = append(top, q)
		}
	}
	slices.SortStableFunc(top, func(a, b inspect.Queue) int {
		return cmp.Or(cmp.Compare(held(b), held(a)), cmp.Compare(b.Failed, a.Failed), cmp.Compare(b.Parked, a.Parked), cmp.Compare(b.Waiting, a.Waiting))
	})
	return top[:min(len(top), mostTop)]
}

// calendar is what is due, and when.
type calendar struct {
	Slots   []slot
	Overdue *inspect.Slot // nil: nothing is
	Later   *inspect.Slot
	Clock   string // how the script writes the slots' times
	layout  string
}

// slot is a stretch of the calendar.
type slot struct {
	inspect.Slot
	Share float64 // of the fullest slot, in percent
}

// Time is one of a slot's, in UTC, for readers without the script.
func (c calendar) Time(t time.Time) string { return t.UTC().Format(c.layout) }

func calendarOf(all []inspect.Slot) calendar {
	c := calendar{Clock: "short", layout: "15:04"}
	var most int64
	for i := range all {
		switch s := &all[i]; {
		case s.Overdue:
			c.Overdue = s
		case s.Later:
			c.Later = s
		default:
			most = max(most, s.Count)
			c.Slots = append(c.Slots, slot{Slot: *s})
		}
	}
	for i := range c.Slots {
		c.Slots[i].Share = 100 * float64(c.Slots[i].Count) / float64(max(most, 1))
	}
	for len(c.Slots) > 0 && c.Slots[len(c.Slots)-1].Count == 0 && c.Later == nil {
		c.Slots = c.Slots[:len(c.Slots)-1]
	}
	if len(c.Slots) > 0 {
		last := c.Slots[len(c.Slots)-1]
		switch {
		case last.To.Sub(last.From) < time.Minute:
			c.Clock, c.layout = "seconds", "15:04:05"
		case last.To.Sub(c.Slots[0].From) > 24*time.Hour:
			c.Clock, c.layout = "day", "2 Jan 15:04"
		}
	}
	return c
}

// chart is the flow over the last hour, drawn here for the first sight of it; the
// script draws it again from the same numbers, with a cursor.
type chart struct {
	Minutes []minute
	Most    int64
	Lines   []chartLine
	Quiet   bool // nothing happened
}

type minute struct {
	At time.Time
	inspect.Flow
}

type chartLine struct{ Name, Path string }

// flowChart leaves out the current minute, the last of the hour, which is not over: its line would
// fall to zero each time a minute begins.
func flowChart(hour []inspect.Flow, now time.Time) chart {
	c := chart{}
	if len(hour) == 0 {
		c.Quiet = true
		return c
	}
	current := hour[len(hour)-1]
	hour = hour[:len(hour)-1]
	first := now.Truncate(time.Minute).Add(-time.Duration(len(hour)) * time.Minute)
	var lines [3][]int64
	for i, f := range hour {
		c.Minutes = append(c.Minutes, minute{first.Add(time.Duration(i) * time.Minute), f})
		for j, n := range []int64{f.Failed, f.Retried, f.Parked} {
			lines[j] = append(lines[j], n)
			c.Most = max(c.Most, n)
		}
	}
	c.Quiet = c.Most == 0 && current.Failed+current.Retried+current.Parked == 0
	for j, name := range []string{"failed", "retried", "parked"} {
		c.Lines = append(c.Lines, chartLine{name, svgPath(lines[j], c.Most, 600, 160)})
	}
	return c
}
