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
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

const (
	tick           = 100 * time.Millisecond // of the clock
	ticksPerSecond = int(time.Second / tick)
	// With more, a simulation takes minutes.
	maxMessages = 20_000_000
	maxTicks    = 4_000_000
	// maxOutages is how many times as long as the outage a drain is simulated by default.
	maxOutages = 10
	bins       = 360
)

// Options are what is simulated. Fill sets those that are 0.
type Options struct {
	Policy policy.Policy
	Rules  throttle.Rules // how the policy's retries are limited
	// A second: messages published, calls that the upstream can serve, calls that the consumers make at most.
	Rate, Capacity, Consumers float64
	Refusing                  float64       // cost of a refused call, relative to a served one
	Fixed                     time.Duration // the delay of the variant with a fixed one
	// All is well for Before, the upstream is down for Outage, and for Limp after that a share of
	// the calls fails, which falls from all to none. A negative Limp is none.
	Before, Outage, Limp time.Duration
	Duration             time.Duration // what is simulated, Before included
	Seed                 uint64
}

// Fill sets what is 0 to its default. Call it once: it makes a negative Limp 0.
func (o Options) Fill() Options {
	o.Capacity = cmp.Or(o.Capacity, 2*o.Rate)
	o.Consumers = cmp.Or(o.Consumers, max(25*o.Capacity, 50))
	o.Fixed = cmp.Or(o.Fixed, 30*time.Second)
	o.Before = cmp.Or(o.Before, max(o.Outage/12, 10*time.Second)).Round(tick)
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
		best = min(best, maxOutages*o.Outage)
		// Room to see others drain, or not.
		o.Duration = (o.Before + o.Outage + o.Limp + max(best*5/4+o.Outage/6, o.Outage/2)).Round(time.Minute)
	}
	return o
}

// Brief returns the options of a simulation that is quick enough for a page: as many messages a
// second as the policy retries, and the shorter an outage the more these are.
func Brief(p policy.Policy, r throttle.Rules) Options {
	rate := min(max(cmp.Or(r.Rate, 10), 1), 200)
	outage := time.Duration(30_000 / rate * float64(time.Second)).Round(time.Minute)
	return Options{Policy: p, Rules: r, Rate: rate, Outage: min(max(outage, 3*time.Minute), time.Hour), Seed: 1}
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
	case o.Rate*o.Duration.Seconds() > maxMessages || o.Duration/tick > maxTicks:
		return fmt.Errorf("%.0f messages in %s are more than can be simulated (%d messages, %s): lower the rate, or "+
			"shorten outage or duration",
			o.Rate*o.Duration.Seconds(), policy.FormatDuration(o.Duration), maxMessages,
			policy.FormatDuration(maxTicks*tick))
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
		r.Best = ptr(Seconds(best))
	}
	for _, v := range []struct {
		id, title string
		run       func(context.Context, Options, *record) error
	}{
		{"requeue", "requeue at once", requeue},
		{"fixed", "fixed delay of " + policy.FormatDuration(o.Fixed), fixedDelay},
		{"backoff", "backoff alone", backoff},
		{"redrive", "backoff, " + cmp.Or(limits(o.Rules), "no limits"), throttled},
	} {
		rec := newRecord(o)
		if err := v.run(ctx, o, rec); err != nil {
			return nil, err
		}
		w := rec.outcome()
		w.ID, w.Title = v.id, v.title
		r.Ways, r.Bin = append(r.Ways, w), time.Duration(rec.perBin)*tick
	}
	for i := range r.Ways {
		w := &r.Ways[i]
		if alone := r.Ways[2].Retries; alone > 0 {
			w.Share = float64(w.Retries) / float64(alone)
		}
		if w.Drained != nil && r.Best != nil && *r.Best > 0 {
			w.Over = ptr(float64(*w.Drained-*r.Best) / float64(*r.Best))
		}
	}
	return r, nil
}

// limits names what a policy has beyond its backoff; "": nothing.
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
	return ""
}

func ptr[T any](v T) *T { return &v }

// Seconds is a time that JSON has in seconds.
type Seconds time.Duration

// MarshalJSON returns a number.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// Result is what came of a simulation.
type Result struct {
	Options Options
	// Best is the best possible Drained (see Outcome); nil when the upstream has no capacity to
	// spare.
	Best *Seconds
	Bin  time.Duration // the time between two values of Load and Left
	Ways []Outcome     // requeue, fixed, backoff, redrive
}

// Outcome is what one way to retry messages led to.
type Outcome struct {
	ID    string `json:"way"`
	Title string `json:"title"`
	// Calls reached the upstream while it was down; Retries are those of them that were not the
	// first of their message.
	Calls   int64   `json:"calls_while_down"`
	Retries int64   `json:"retries_while_down"`
	Share   float64 `json:"retries_share"` // Retries, as a share of those with backoff alone
	Peak    float64 `json:"peak"`          // the most calls in a second
	// Over is by how much Drained exceeds the best, as a share of the best; nil: not known.
	Over    *float64  `json:"over_best,omitempty"`
	Arrived int64     `json:"arrived"`
	Served  int64     `json:"served"`
	Parked  int64     `json:"parked"`
	Waiting int64     `json:"waiting"` // in the work queue, or for their next attempt
	Load    []float64 `json:"load"`    // calls a second
	Left    []int64   `json:"left"`    // messages neither served nor parked
	// Recovered is how long after the outage new messages were served as before: for
	// a minute 99 % of them at their first delivery, and none behind more messages than
	// arrive in a second. Drained is how long after the outage no more than a thousandth of what
	// it left was waiting. nil: not within the simulation.
	Recovered *Seconds `json:"recovered_after,omitempty"`
	Drained   *Seconds `json:"drained_after,omitempty"`
	Changes   []Change `json:"breaker,omitempty"`
}

// Change is one change of the breaker's state.
type Change struct {
	At    Seconds        `json:"at"` // since the outage began
	State throttle.State `json:"state"`
	Why   string         `json:"why"`
}

// record counts what happens, tick by tick.
type record struct {
	Outcome              // so far
	o                    Options
	perBin               int     // ticks
	calls                []int64 // by bin
	ticks                int
	second               int64                        // calls in this second
	firsts, firstsServed int64                        // first deliveries of this minute
	crowded              bool                         // in it the work queue had more than arrives in a second
	check                func(t, queued, waiting int) // for tests
}

func newRecord(o Options) *record {
	all := int(o.Duration / tick)
	per := max((all+bins-1)/bins, 1)
	n := (all + per - 1) / per
	return &record{Outcome: Outcome{Left: make([]int64, n)}, o: o, perBin: per, calls: make([]int64, n)}
}

// called counts n calls, of which served succeeded; first: of messages that are delivered for the first time.
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
		r.Changes = append(r.Changes, Change{Seconds(c.At.Sub(epoch) - r.o.Before), c.To, c.Reason})
	}
}

// tick ends a tick, with messages in the work queue, and waiting for their next attempt.
func (r *record) tick(t, queued, waiting int) {
	if r.check != nil {
		r.check(t, queued, waiting)
	}
	r.ticks = t + 1
	r.Waiting = int64(queued + waiting)
	r.Left[t/r.perBin] = r.Waiting
	if r.ticks%ticksPerSecond == 0 {
		r.Peak, r.second = max(r.Peak, float64(r.second)), 0
	}
	r.crowded = r.crowded || float64(queued) > r.o.Rate
	since := time.Duration(r.ticks)*tick - r.o.Before - r.o.Outage // the end of the outage
	after := r.ticks - int((r.o.Before+r.o.Outage)/tick)
	minute := after%(60*ticksPerSecond) == 0
	if after > 0 && minute && r.Recovered == nil && !r.crowded && r.firstsServed*100 >= r.firsts*99 {
		r.Recovered = ptr(Seconds(since - time.Minute))
	}
	if after <= 0 || minute {
		r.firsts, r.firstsServed, r.crowded = 0, 0, false
	}
	if after > 0 && r.Drained == nil && float64(r.Waiting) <= max(r.o.Rate*r.o.Outage.Seconds()*drained, 1) {
		r.Drained = ptr(Seconds(since))
	}
}

func (r *record) outcome() Outcome {
	for i, n := range r.calls {
		ticks := min(r.perBin, r.ticks-i*r.perBin)
		r.Load = append(r.Load, float64(n)/float64(ticks)*float64(ticksPerSecond))
	}
	return r.Outcome
}

// Report returns the result for programs, as JSON: all times are in seconds, from the beginning of the outage or
// (…_after) from its end.
func (r *Result) Report() any {
	o := r.Options
	return struct {
		Policy   string    `json:"policy"`
		Rate     float64   `json:"rate"`
		Capacity float64   `json:"capacity"`
		Outage   Seconds   `json:"outage_seconds"`
		Limp     Seconds   `json:"limp_seconds"`
		Seed     uint64    `json:"seed"`
		Best     *Seconds  `json:"best_drain_after,omitempty"`
		BeginsAt Seconds   `json:"begins_at"`
		Step     Seconds   `json:"step_seconds"`
		Ways     []Outcome `json:"ways"`
	}{o.Policy.Name, o.Rate, o.Capacity, Seconds(o.Outage), Seconds(o.Limp), o.Seed, r.Best, Seconds(-o.Before),
		Seconds(r.Bin), r.Ways}
}

// Series returns the rows of a CSV file: the load over time, and what is left to serve.
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

// Table returns the rows of a table for people, the first with the headings, which Notes explains.
func (r *Result) Table() [][]string {
	rows := [][]string{{"WAY", "RETRIES", "PEAK", "SERVED AGAIN", "DRAINED", "PARKED"}}
	for _, w := range r.Ways {
		if w.ID == "redrive" && limits(r.Options.Rules) == "" {
			continue // backoff alone
		}
		rows = append(rows, []string{w.Title, number(float64(w.Retries)), perSecond(w.Peak), r.after(w.Recovered),
			r.after(w.Drained), number(float64(w.Parked))})
	}
	return rows
}

// Notes are sentences below the table.
func (r *Result) Notes() []string {
	o, redrive := r.Options, &r.Ways[3]
	notes := []string{"RETRIES reach the upstream while it is down; PEAK is calls in a second.",
		"SERVED AGAIN and DRAINED count from its return: new messages, and the backlog."}
	if limits(o.Rules) == "" {
		notes = append(notes, "The policy has no breaker, no rate and no in_flight: it is backoff alone.")
	}
	if spare := o.Capacity - o.Rate; o.Rules.Rate > spare && redrive.Drained == nil {
		notes = append(notes, "The policy's rate of "+perSecond(o.Rules.Rate)+" is more than the "+
			perSecond(max(spare, 0))+" that the upstream can serve beside new messages.")
	}
	if r.Best != nil {
		notes = append(notes, "Without parking, DRAINED can be "+moment(time.Duration(*r.Best))+" at best.")
	}
	return notes
}
