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

// WayReport is an outcome.
type WayReport struct {
	Way              string         `json:"way"`
	Title            string         `json:"title"`
	CallsWhileDown   int64          `json:"calls_while_down"`
	RetriesWhileDown int64          `json:"retries_while_down"`
	RetriesShare     float64        `json:"retries_share"` // of those with backoff alone
	Peak             float64        `json:"peak"`
	RecoveredAfter   *float64       `json:"recovered_after,omitempty"`
	DrainedAfter     *float64       `json:"drained_after,omitempty"`
	OverBest         *float64       `json:"over_best,omitempty"`
	Arrived          int64          `json:"arrived"`
	Served           int64          `json:"served"`
	Parked           int64          `json:"parked"`
	Waiting          int64          `json:"waiting"`
	Load             []float64      `json:"load"`
	Left             []int64        `json:"left"`
	Breaker          []ChangeReport `json:"breaker,omitempty"`
}

// ChangeReport is a change of the breaker.
type ChangeReport struct {
	At    float64 `json:"at"`
	State string  `json:"state"`
	Why   string  `json:"why"`
}

// Report makes one.
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
		v := WayReport{Way: w.ID, Title: w.Title, CallsWhileDown: w.Calls, RetriesWhileDown: w.Retries, RetriesShare: w.Share, Peak: w.Peak,
			RecoveredAfter: seconds(w.Recovered), DrainedAfter: seconds(w.Drained), OverBest: w.Over, Arrived: w.Arrived, Served: w.Served, Parked: w.Parked, Waiting: w.Waiting,
			Load: w.Load, Left: w.Left}
		for _, c := range w.Changes {
			v.Breaker = append(v.Breaker, ChangeReport{(c.At - o.Before).Seconds(), string(c.State), c.Why})
		}
		p.Ways = append(p.Ways, v)
	}
	return p
}

// Series is the load over time, and what is left to serve, with a header.
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

// Table is the numbers for people, with a header.
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
