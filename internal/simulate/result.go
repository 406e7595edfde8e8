package simulate

import (
	"time"

	"github.com/redrive-mq/redrive/internal/throttle"
)

// Result is what came of a simulation.
type Result struct {
	Options Options
	// Best is the best possible Drained; nil when the upstream has no capacity to
	// spare.
	Best *time.Duration
	Bin  time.Duration // the time between two values of Load and Left
	Ways []Outcome     // requeue, fixed, backoff, redrive
}

// Way is one of the ways to retry messages.
type Way struct{ ID, Title string }

// Outcome is what one way did.
type Outcome struct {
	Way
	// Calls reached the upstream while it was down; Retries are those of them that
	// were not the first of their message, which only the consumer can spare.
	Calls, Retries int64
	// Share is Retries as a share of those with backoff alone.
	Share float64
	Peak  float64 // most calls in a second
	// Recovered is how long after the outage new messages were served as before: for
	// a minute 99 % of them at their first delivery, and none behind more than what
	// comes in a second. Drained is when no more than a thousandth of what
	// the outage left was waiting. nil: not within the simulation.
	Recovered, Drained *time.Duration
	// Over is how much longer than the best Drained is, as a share; nil: not known.
	Over                             *float64
	Arrived, Served, Parked, Waiting int64     // Waiting: in the work queue, or for their next attempt
	Load                             []float64 // calls a second
	Left                             []int64   // messages neither served nor parked
	Changes                          []Change  // of the breaker
}

// Change is one of the breaker's.
type Change struct {
	At    time.Duration // since the simulation began
	State throttle.State
	Why   string
}

const bins = 360

// record notes what happens, tick by tick.
type record struct {
	o                       Options
	arrived, served, parked int64
	waiting                 int64
	perBin                  int // ticks
	load, left              []int64
	ticks                   int
	second, peak            int64
	calls, returns          int64
	first, good             int64 // first deliveries of this minute, and those served
	crowded                 bool  // somebody stood in line in this minute
	recovered, drained      int   // tick, or -1
	most                    int64 // left by the outage
	changes                 []Change
	check                   func(t int, s state) // for tests
}

type state struct {
	queued  int // in the work queue
	waiting int // for their next attempt
}

func newRecord(o Options) *record {
	all := int(o.Duration / tick)
	per := max((all+bins-1)/bins, 1)
	n := (all + per - 1) / per
	return &record{o: o, perBin: per, load: make([]int64, n), left: make([]int64, n), recovered: -1, drained: -1}
}

// called counts n calls, of which good were served: of first deliveries, or others.
func (r *record) called(t int, first bool, n, good int) {
	r.served += int64(good)
	r.second += int64(n)
	r.load[t/r.perBin] += int64(n)
	if first {
		r.first += int64(n)
		r.good += int64(good)
	}
	if r.o.down(t) {
		r.calls += int64(n)
		if !first {
			r.returns += int64(n)
		}
	}
}

func (r *record) changed(c throttle.Transition) {
	if c.From != "" {
		r.changes = append(r.changes, Change{c.At.Sub(epoch), c.To, c.Reason})
	}
}

// tick ends a tick.
func (r *record) tick(t int, s state) {
	if r.check != nil {
		r.check(t, s)
	}
	r.ticks = t + 1
	r.waiting = int64(s.queued + s.waiting)
	r.left[t/r.perBin] = r.waiting
	if r.ticks%ticksPerSecond == 0 {
		r.peak, r.second = max(r.peak, r.second), 0
	}
	r.crowded = r.crowded || float64(s.queued) > r.o.Rate
	back := int((r.o.Before + r.o.Outage) / tick)
	if after := r.ticks - back; after <= 0 {
		r.first, r.good, r.crowded = 0, 0, false
		r.most = r.waiting
		return
	} else if after%(60*ticksPerSecond) == 0 {
		if r.recovered < 0 && !r.crowded && r.good*100 >= r.first*99 {
			r.recovered = r.ticks - 60*ticksPerSecond
		}
		r.first, r.good, r.crowded = 0, 0, false
	}
	if r.drained < 0 && float64(r.waiting) <= max(r.o.Rate*r.o.Outage.Seconds()*drained, 1) {
		r.drained = r.ticks
	}
}

func (r *record) outcome(w Way) Outcome {
	o := Outcome{Way: w, Calls: r.calls, Retries: r.returns, Peak: float64(r.peak), Arrived: r.arrived, Served: r.served, Parked: r.parked, Waiting: r.waiting, Left: r.left, Changes: r.changes}
	since := func(t int) *time.Duration {
		if t < 0 {
			return nil
		}
		return ptr(time.Duration(t)*tick - r.o.Before - r.o.Outage)
	}
	o.Recovered, o.Drained = since(r.recovered), since(r.drained)
	for i, n := range r.load {
		ticks := min(r.perBin, r.ticks-i*r.perBin)
		o.Load = append(o.Load, float64(n)/float64(ticks)*float64(ticksPerSecond))
	}
	return o
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
