package simulate

import (
	"strconv"
	"time"
)

// Report is a result for programs: all times in seconds, from the beginning of the
// outage or (…_after) from its end.
type Report struct {
	Policy         string      `json:"policy"`
	Rate           float64     `json:"rate"`
	Capacity       float64     `json:"capacity"`
	OutageSeconds  float64     `json:"outage_seconds"`
	LimpSeconds    float64     `json:"limp_seconds"`
	Seed           uint64      `json:"seed"`
	BestDrainAfter *float64    `json:"best_drain_after,omitempty"`
	BeginsAt       float64     `json:"begins_at"`
	StepSeconds    float64     `json:"step_seconds"`
	Ways           []WayReport `json:"ways"`
}

// WayReport is an outcome, with its times in seconds.
type WayReport struct {
	Outcome
	RecoveredAfter *float64       `json:"recovered_after,omitempty"`
	DrainedAfter   *float64       `json:"drained_after,omitempty"`
	Breaker        []ChangeReport `json:"breaker,omitempty"`
}

// ChangeReport is a change of the breaker.
type ChangeReport struct {
	At    float64 `json:"at"`
	State string  `json:"state"`
	Why   string  `json:"why"`
}

// Report returns the result for programs.
func (r *Result) Report() Report {
	o := r.Options
	seconds := func(d *time.Duration) *float64 {
		if d == nil {
			return nil
		}
		return ptr(d.Seconds())
	}
	p := Report{Policy: o.Policy.Name, Rate: o.Rate, Capacity: o.Capacity, OutageSeconds: o.Outage.Seconds(), LimpSeconds: o.Limp.Seconds(), Seed: o.Seed,
		BestDrainAfter: seconds(r.Best), BeginsAt: -o.Before.Seconds(), StepSeconds: r.Bin.Seconds()}
	for _, w := range r.Ways {
		v := WayReport{Outcome: w, RecoveredAfter: seconds(w.Recovered), DrainedAfter: seconds(w.Drained)}
		for _, c := range w.Changes {
			v.Breaker = append(v.Breaker, ChangeReport{(c.At - o.Before).Seconds(), string(c.State), c.Why})
		}
		p.Ways = append(p.Ways, v)
	}
	return p
}

// Series is the rows of a CSV file: the load over time, and what is left to serve.
func (r *Result) Series() [][]string {
	rows := [][]string{{"seconds"}}
	for _, w := range r.Ways {
		rows[0] = append(rows[0], w.ID+"_calls_per_second", w.ID+"_left")
	}
	for i := range r.Ways[0].Load {
		row := []string{strconv.FormatFloat((time.Duration(i)*r.Bin - r.Options.Before).Seconds(), 'f', -1, 64)}
		for _, w := range r.Ways {
			row = append(row, strconv.FormatFloat(w.Load[i], 'f', -1, 64), strconv.FormatInt(w.Left[i], 10))
		}
		rows = append(rows, row)
	}
	return rows
}

// Table is the rows of a table for people, the first with the headings.
func (r *Result) Table() [][]string {
	rows := [][]string{{"WAY", "RETRIES WHILE DOWN", "OF BACKOFF'S", "PEAK", "ARRIVALS SERVED AFTER", "DRAINED AFTER", "PARKED"}}
	for _, w := range r.Ways {
		drain := r.after(w.Drained)
		if w.ID == "redrive" && w.Over != nil {
			drain += " (best possible: " + moment(*r.Best) + ")"
		}
		rows = append(rows, []string{w.Title, number(float64(w.Retries)), strconv.FormatFloat(100*w.Share, 'g', 3, 64) + "%", perSecond(w.Peak), r.after(w.Recovered), drain, number(float64(w.Parked))})
	}
	return rows
}
