package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"time"
)

// report is all that was measured; -json prints it.
type report struct {
	Began    time.Time        `json:"began"`
	CPUs     int              `json:"cpus"`
	Messages int              `json:"messages"`
	Size     int              `json:"size"`
	Rounds   int              `json:"rounds"`
	Compare  []*comparison    `json:"compare,omitempty"`
	Steady   []*steadyResult  `json:"steady,omitempty"`
	Waiting  []*waitingResult `json:"waiting,omitempty"`
	Library  []*libraryResult `json:"library,omitempty"`
	Parked   []*parkedResult  `json:"parked,omitempty"`
	Replay   []*replayResult  `json:"replay,omitempty"`
	Storm    []*storms        `json:"storm,omitempty"`
	Scale    []*scaled        `json:"scale,omitempty"`
	Failures []string         `json:"failures"` // what went wrong; then the bench fails
	out      io.Writer
}

func newReport() *report {
	r := &report{Began: time.Now(), CPUs: runtime.NumCPU(), Messages: *messages, Size: *size, Rounds: *rounds, Failures: []string{}, out: os.Stdout}
	if *asJSON {
		r.out = os.Stderr
	}
	return r
}

func (r *report) printf(format string, args ...any) { fmt.Fprintf(r.out, format, args...) }

// fail notes what must not be; the bench goes on and fails in the end.
func (r *report) fail(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	r.Failures = append(r.Failures, what)
	r.printf("FAILED: %s\n", what)
}

func (r *report) json() error {
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// target is a number against what it should be. Missing one fails nothing.
type target struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Least float64 `json:"at_least,omitempty"`
	Most  float64 `json:"at_most,omitempty"`
	Met   bool    `json:"met"`
}

func (r *report) atLeast(what string, value float64, unit string, least float64) target {
	t := target{What: what, Value: round(value), Unit: unit, Least: least, Met: value >= least}
	r.printf("%s: %g %s (target ≥ %g: %s)\n", what, t.Value, unit, least, met(t.Met))
	return t
}

func (r *report) atMost(what string, value float64, unit string, most float64) target {
	t := target{What: what, Value: round(value), Unit: unit, Most: most, Met: value <= most}
	r.printf("%s: %g %s (target ≤ %g: %s)\n", what, t.Value, unit, most, met(t.Met))
	return t
}

func met(is bool) string {
	if is {
		return "met"
	}
	return "missed"
}

// round keeps what is worth reading, and what JSON can hold.
func round(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return math.Round(v*1000) / 1000
}

func ms(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

func median(all []float64) float64 {
	slices.Sort(all)
	return round(all[len(all)/2])
}
