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
	Chart     chart
	Slots     []slot
	Failing   []inspect.Queue // those with the most trouble first
	Throttled []inspect.Queue // those whose breaker, or lack of consumers, keeps messages back
}

// slot is a stretch of the calendar.
type slot struct {
	inspect.Slot
	Share float64 // of the fullest slot, in percent
}

// fewestSlots of the calendar are shown; later ones only where something is due.
const fewestSlots = 9

// mostFailing is how many queues the overview shows.
const mostFailing = 8

func (s *server) overview(r *http.Request, c auth.Caller) (view, error) {
	o, err := s.console.Overview(r.Context(), c)
	if err != nil {
		return view{}, err
	}
	d := overviewData{Overview: o, Chart: flowChart(o.Hour, o.Now)}
	var most int64
	for _, sl := range o.Calendar {
		most = max(most, sl.Count)
	}
	calendar := o.Calendar
	for len(calendar) > fewestSlots && calendar[len(calendar)-1].Count == 0 {
		calendar = calendar[:len(calendar)-1]
	}
	for _, sl := range calendar {
		d.Slots = append(d.Slots, slot{sl, 100 * float64(sl.Count) / float64(max(most, 1))})
	}
	for _, q := range o.Queues {
		if q.Throttle.KeepsBack() {
			d.Throttled = append(d.Throttled, q)
		}
		if q.Failed > 0 || q.Waiting > 0 || q.Parked > 0 || q.Unreachable != "" || q.Pause != nil {
			d.Failing = append(d.Failing, q)
		}
	}
	slices.SortStableFunc(d.Failing, func(a, b inspect.Queue) int {
		return cmp.Or(cmp.Compare(b.Failed, a.Failed), cmp.Compare(b.Parked, a.Parked), cmp.Compare(b.Waiting, a.Waiting))
	})
	d.Failing = d.Failing[:min(len(d.Failing), mostFailing)]
	return view{template: "overview", title: "Overview", nav: "/", command: "redrive status", data: d}, nil
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

func flowChart(hour []inspect.Flow, now time.Time) chart {
	c := chart{Quiet: true}
	first := now.Truncate(time.Minute).Add(-time.Duration(len(hour)-1) * time.Minute)
	var lines [3][]int64
	for i, f := range hour {
		c.Minutes = append(c.Minutes, minute{first.Add(time.Duration(i) * time.Minute), f})
		for j, n := range []int64{f.Failed, f.Retried, f.Parked} {
			lines[j] = append(lines[j], n)
			c.Most = max(c.Most, n)
		}
	}
	c.Quiet = c.Most == 0
	for j, name := range []string{"failed", "retried", "parked"} {
		c.Lines = append(c.Lines, chartLine{name, svgPath(lines[j], c.Most, 600, 160)})
	}
	return c
}
