// Package simulate shows what retries do to an upstream that is down for a while:
// the same messages with four ways to retry them, on a virtual clock. It runs
// the policy and the throttle that the service runs; only time, RabbitMQ, the consumer
// and the upstream are simulated. Equal options give equal results. Read it in this
// order:
//
//	simulate.go  Options, Run; the numbers that result, for people and programs
//	queue.go     messages that fail and are retried, tick by tick; the upstream
//	chart.go     the chart
package simulate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// tick is how far the clock goes at a time.
const tick = 100 * time.Millisecond

const ticksPerSecond = int(time.Second / tick)

// The most messages and ticks of a simulation: with more it takes minutes.
const (
	mostMessages = 20_000_000
	mostTicks    = 4_000_000
)

// Options are what is simulated. Fill sets those that are 0.
type Options struct {
	Policy policy.Policy
	Rules  throttle.Rules // how the policy's retries are limited
	// Rate is how many messages a second are published, and Capacity how many
	// calls a second the upstream can serve.
	Rate, Capacity float64
	// Refusing is what a call beyond its capacity costs the upstream, as a share of what a call
	// costs that it serves.
	Refusing float64
	// Consumers is how many calls a second the consumers make at most.
	Consumers float64
	// Fixed is the delay of the variant with a fixed one.
	Fixed time.Duration
	// All is well for Before, the upstream is down for Outage, and for Limp after that a share of
	// the calls fails, which falls from all to none. A negative Limp is none.
	Before, Outage, Limp time.Duration
	// Duration is the time that is simulated, Before included.
	Duration time.Duration
	Seed     uint64
}

// Fill sets what is 0 to its default. Call it once: it makes a negative Limp 0.
func (o Options) Fill() Options {
	o.Capacity = or(o.Capacity, 2*o.Rate)
	o.Consumers = or(o.Consumers, max(25*o.Capacity, 50))
	o.Fixed = or(o.Fixed, 30*time.Second)
	o.Before = or(o.Before, max(o.Outage/12, 10*time.Second)).Round(tick)
	if o.Limp == 0 {
		o.Limp = (o.Outage / 12).Round(tick)
	}
	o.Limp = max(o.Limp, 0)
	if o.Duration == 0 {
		best, ok := o.bestDrain()
		if !ok {
			best = o.Outage
		}
		// With a rate of next to nothing the drain takes years: its end is not simulated.
		best = min(best, mostOutages*o.Outage)
		// Room to see others drain, or not.
		o.Duration = (o.Before + o.Outage + o.Limp + max(best*5/4+o.Outage/6, o.Outage/2)).Round(time.Minute)
	}
	return o
}

// mostOutages is how many times as long as the outage a drain is simulated by default.
const mostOutages = 10

// Brief returns the options of a simulation that is quick enough for a page: as many messages a
// second as the policy retries, and the shorter an outage the more these are.
func Brief(p policy.Policy, r throttle.Rules) Options {
	rate := min(max(or(r.Rate, 10), 1), 200)
	outage := time.Duration(30_000 / rate * float64(time.Second)).Round(time.Minute)
	return Options{Policy: p, Rules: r, Rate: rate, Outage: min(max(outage, 3*time.Minute), time.Hour), Seed: 1}
}

func or[T float64 | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// Validate returns an error for filled options that cannot be simulated.
func (o Options) Validate() error {
	switch {
	case !(o.Rate > 0 && o.Rate <= 1e6):
		return errors.New("the rate of messages must be above 0, and at most 1,000,000 a second")
	case o.Outage < time.Second:
		return errors.New("the outage must last a second at least")
	case !(o.Capacity > 0 && o.Capacity <= 1e7):
		return errors.New("the upstream's capacity must be above 0, and at most 10,000,000 a second")
	case !(o.Refusing >= 0 && o.Refusing <= 1):
		return errors.New("what a refused call costs must be from 0 to 1")
	case o.Consumers < o.Rate:
		return errors.New("the consumers must be able to make as many calls as there are messages")
	case o.Fixed < tick:
		return fmt.Errorf("the fixed delay must be %s at least", tick)
	case o.Duration <= o.Before+o.Outage:
		return fmt.Errorf("the duration must be longer than the outage and the %s before it",
			policy.FormatDuration(o.Before))
	case o.Rate*o.Duration.Seconds() > mostMessages || o.Duration/tick > mostTicks:
		return fmt.Errorf("%.0f messages in %s are more than can be simulated (%d messages, %s): lower the rate, or "+
			"shorten outage or duration",
			o.Rate*o.Duration.Seconds(), policy.FormatDuration(o.Duration), mostMessages,
			policy.FormatDuration(mostTicks*tick))
	}
	return o.Policy.Validate()
}

// Run fills the options, and simulates each way with them. It ends with an error when ctx does.
func Run(ctx context.Context, o Options) (*Result, error) {
	o = o.Fill()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &Result{Options: o}
	if best, ok := o.bestDrain(); ok {
		r.Best = &best
	}
	for _, v := range []struct {
		way Way
		run func(context.Context, Options, *record) error
	}{
		{Way{"requeue", "requeue at once"}, requeue},
		{Way{"fixed", "a fixed delay of " + policy.FormatDuration(o.Fixed)}, fixedDelay},
		{Way{"backoff", "backoff alone"}, backoff},
		{Way{"redrive", "backoff, " + limits(o.Rules)}, throttled},
	} {
		rec := newRecord(o)
		if err := v.run(ctx, o, rec); err != nil {
			return nil, err
		}
		r.Ways = append(r.Ways, rec.outcome(v.way))
	}
	r.compare()
	return r, nil
}

// limits names what a policy has beyond its backoff.
func limits(r throttle.Rules) string {
	switch {
	case r.Breaker != nil && r.Rate > 0:
		return "breaker and rate"
	case r.Breaker != nil:
		return "breaker"
	case r.Rate > 0:
		return "rate"
	case r.InFlight > 0:
		return "in_flight"
	}
	return "no breaker, no rate"
}

func ptr[T any](v T) *T { return &v }

// Result is what came of a simulation.
type Result struct {
	Options Options
	// Best is the best possible Drained (see Outcome); nil when the upstream has no capacity to
	// spare.
	Best *time.Duration
	Bin  time.Duration // the time between two values of Load and Left
	Ways []Outcome     // requeue, fixed, backoff, redrive
}

// Way is one of the ways to retry messages.
type Way struct {
	ID    string `json:"way"`
	Title string `json:"title"`
}

// Outcome is what one way to retry messages led to.
type Outcome struct {
	Way
	// Calls reached the upstream while it was down; Retries are those of them that were not the
	// first of their message.
	Calls   int64   `json:"calls_while_down"`
	Retries int64   `json:"retries_while_down"`
	Share   float64 `json:"retries_share"` // Retries, as a share of those with backoff alone
	Peak    float64 `json:"peak"`          // the most calls in a second
	// Recovered is how long after the outage new messages were served as before: for
	// a minute 99 % of them at their first delivery, and none behind more messages than
	// arrive in a second. Drained is how long after the outage no more than a thousandth of what
	// it left was waiting. nil: not within the simulation.
	Recovered, Drained *time.Duration `json:"-"`
	// Over is by how much Drained exceeds the best, as a share of the best; nil: not known.
	Over    *float64  `json:"over_best,omitempty"`
	Arrived int64     `json:"arrived"`
	Served  int64     `json:"served"`
	Parked  int64     `json:"parked"`
	Waiting int64     `json:"waiting"` // in the work queue, or for their next attempt
	Load    []float64 `json:"load"`    // calls a second
	Left    []int64   `json:"left"`    // messages neither served nor parked
	Changes []Change  `json:"-"`
}

// Change is one change of the breaker's state.
type Change struct {
	At    time.Duration // since the simulation began
	State throttle.State
	Why   string
}

const bins = 360

// record counts what happens, tick by tick.
type record struct {
	Outcome // so far
	o       Options
	perBin  int     // ticks
	calls   []int64 // by bin
	ticks   int
	second  int64 // calls in this second
	// firsts are the first deliveries of this minute, of which firstsServed were served; crowded
	// tells that more messages than arrive in a second were in the work queue.
	firsts, firstsServed int64
	crowded              bool
	check                func(t int, s state) // for tests
}

type state struct {
	queued  int // in the work queue
	waiting int // for their next attempt
}

func newRecord(o Options) *record {
	all := int(o.Duration / tick)
	per := max((all+bins-1)/bins, 1)
	n := (all + per - 1) / per
	return &record{Outcome: Outcome{Left: make([]int64, n)}, o: o, perBin: per, calls: make([]int64, n)}
}

// called counts n calls, of which served succeeded; first tells that they are of messages that
// are delivered for the first time.
func (r *record) called(t int, first bool, n, served int) {
	r.Served += int64(served)
	r.second += int64(n)
	r.calls[t/r.perBin] += int64(n)
	if first {
		r.firsts += int64(n)
		r.firstsServed += int64(served)
	}
	if r.o.down(t) {
		r.Calls += int64(n)
		if !first {
			r.Retries += int64(n)
		}
	}
}

func (r *record) changed(c throttle.Transition) {
	if c.From != "" {
		r.Changes = append(r.Changes, Change{c.At.Sub(epoch), c.To, c.Reason})
	}
}

// tick ends a tick.
func (r *record) tick(t int, s state) {
	if r.check != nil {
		r.check(t, s)
	}
	r.ticks = t + 1
	r.Waiting = int64(s.queued + s.waiting)
	r.Left[t/r.perBin] = r.Waiting
	if r.ticks%ticksPerSecond == 0 {
		r.Peak, r.second = max(r.Peak, float64(r.second)), 0
	}
	r.crowded = r.crowded || float64(s.queued) > r.o.Rate
	since := time.Duration(r.ticks)*tick - r.o.Before - r.o.Outage // the end of the outage
	after := r.ticks - int((r.o.Before+r.o.Outage)/tick)
	minute := after%(60*ticksPerSecond) == 0
	if after > 0 && minute && r.Recovered == nil && !r.crowded && r.firstsServed*100 >= r.firsts*99 {
		r.Recovered = ptr(since - time.Minute)
	}
	if after <= 0 || minute {
		r.firsts, r.firstsServed, r.crowded = 0, 0, false
	}
	if after > 0 && r.Drained == nil && float64(r.Waiting) <= max(r.o.Rate*r.o.Outage.Seconds()*drained, 1) {
		r.Drained = &since
	}
}

func (r *record) outcome(w Way) Outcome {
	r.Way = w
	for i, n := range r.calls {
		ticks := min(r.perBin, r.ticks-i*r.perBin)
		r.Load = append(r.Load, float64(n)/float64(ticks)*float64(ticksPerSecond))
	}
	return r.Outcome
}

// compare sets each way against backoff alone, and against the best.
func (r *Result) compare() {
	alone := r.Ways[2].Retries
	r.Bin = time.Duration(newRecord(r.Options).perBin) * tick
	for i := range r.Ways {
		w := &r.Ways[i]
		if alone > 0 {
			w.Share = float64(w.Retries) / float64(alone)
		}
		if w.Drained != nil && r.Best != nil && *r.Best > 0 {
			w.Over = ptr(float64(*w.Drained-*r.Best) / float64(*r.Best))
		}
	}
}

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
	p := Report{Policy: o.Policy.Name, Rate: o.Rate, Capacity: o.Capacity, OutageSeconds: o.Outage.Seconds(),
		LimpSeconds: o.Limp.Seconds(), Seed: o.Seed,
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
	rows := [][]string{{"WAY", "RETRIES WHILE DOWN", "OF BACKOFF'S", "PEAK", "ARRIVALS SERVED AFTER", "DRAINED AFTER",
		"PARKED"}}
	for _, w := range r.Ways {
		drain := r.after(w.Drained)
		if w.ID == "redrive" && w.Over != nil {
			drain += " (best possible: " + moment(*r.Best) + ")"
		}
		rows = append(rows, []string{w.Title, number(float64(w.Retries)), strconv.FormatFloat(100*w.Share, 'g', 3, 64) +
			"%", perSecond(w.Peak), r.after(w.Recovered), drain, number(float64(w.Parked))})
	}
	return rows
}
