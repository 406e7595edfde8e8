package simulate

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// small is an hour's outage of a queue with few messages, whose upstream has room.
func small(seed uint64) Options {
	b := throttle.DefaultBreaker()
	b.MaxWait = 2 * time.Minute
	return Options{Policy: policy.Policy{Name: "p", Queues: []string{"*"}, Attempts: 24, Backoff: policy.Exponential(time.Second, 2, 10*time.Minute)},
		Rules: throttle.Rules{Rate: 10, Breaker: &b}, Rate: 10, Capacity: 40, Outage: time.Hour, Seed: seed}
}

func result(t *testing.T, o Options) *Result {
	t.Helper()
	r, err := Run(t.Context(), o)
	must(t, err)
	return r
}

// outcomeOf is what one way does.
func outcomeOf(t *testing.T, way func(context.Context, Options, *record) error, o Options) Outcome {
	t.Helper()
	r := newRecord(o)
	must(t, way(t.Context(), o, r))
	return r.outcome()
}

// It limps in none of these: a probe that fails meanwhile is bad luck, which costs up
// to max_wait more.
func TestTheBreakerSparesTheUpstreamAndCostsLittleTime(t *testing.T) {
	for seed := range uint64(3) {
		o := small(seed)
		o.Limp = -1
		r := result(t, o)
		for _, w := range r.Ways[:3] {
			if w.Calls < 4*r.Ways[3].Calls {
				t.Errorf("seed %d: %s makes %d calls, and with the breaker there are %d", seed, w.Title, w.Calls, r.Ways[3].Calls)
			}
		}
		switch w := r.Ways[3]; {
		case w.Share > 0.01:
			t.Errorf("seed %d: %.3f%% of the retries that backoff alone makes", seed, 100*w.Share)
		case w.Over == nil || *w.Over > 0.1:
			t.Errorf("seed %d: drained after %v, and %v is possible", seed, r.after(w.Drained), r.after(r.Best))
		case w.Parked > 0 || w.Peak > 22:
			t.Errorf("seed %d: %d parked, a peak of %v", seed, w.Parked, w.Peak)
		}
	}
}

func TestTheSameSeedGivesTheSame(t *testing.T) {
	o := small(1)
	o.Outage = 10 * time.Minute
	one, again := result(t, o), result(t, o)
	if !reflect.DeepEqual(one.Report(), again.Report()) || one.SVG() != again.SVG() {
		t.Error("two simulations with one seed differ")
	}
	if o.Seed = 2; reflect.DeepEqual(one.Ways[2].Load, result(t, o).Ways[2].Load) {
		t.Error("two seeds give the same")
	}
}

func TestNoMessageIsLostOrMadeUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := throttle.DefaultBreaker()
		b.MinRetries, b.Probes = rapid.IntRange(1, 30).Draw(t, "least"), rapid.IntRange(1, 10).Draw(t, "probes")
		o := Options{
			Policy: policy.Policy{Name: "p", Queues: []string{"*"}, Attempts: rapid.IntRange(1, 12).Draw(t, "attempts"), Backoff: policy.Exponential(time.Second, 2, time.Minute), Jitter: policy.Full},
			Rules:  throttle.Rules{Rate: rapid.Float64Range(0, 50).Draw(t, "retries"), InFlight: rapid.IntRange(0, 20).Draw(t, "in flight"), Breaker: &b},
			Rate:   rapid.Float64Range(0.1, 30).Draw(t, "rate"), Outage: time.Duration(rapid.IntRange(1, 120).Draw(t, "outage")) * time.Second,
			Refusing: rapid.Float64Range(0, 1).Draw(t, "refusing"), Seed: rapid.Uint64().Draw(t, "seed"),
		}
		if rapid.Bool().Draw(t, "little capacity") {
			o.Capacity, o.Duration = o.Rate/2, 5*time.Minute
		}
		o = o.Fill()
		for _, run := range []func(context.Context, Options, *record) error{requeue, fixedDelay, backoff, throttled} {
			r := newRecord(o)
			r.check = func(tick, queued, waiting int) {
				if all := r.Served + r.Parked + int64(queued+waiting); r.Arrived != all || queued < 0 || waiting < 0 {
					t.Fatalf("tick %d: %d arrived, and %d are served, parked, %d queued or %d waiting", tick, r.Arrived, all,
						queued, waiting)
				}
			}
			must(t, run(context.Background(), o, r))
		}
	})
}

// A rate of next to nothing would drain in more time than a Duration can say.
func TestARateOfNextToNothingIsSimulatedInItsTime(t *testing.T) {
	o := Options{Rate: 10, Capacity: 20, Outage: time.Minute}
	for _, rate := range []float64{1e-3, 1e-9, 1e-300, math.SmallestNonzeroFloat64} {
		o.Rules.Rate = rate
		if best, ok := o.bestDrain(); ok && (best <= o.Outage || best > longestDrain) {
			t.Errorf("%v/s: the best is %s", rate, best)
		}
		if is := o.Fill().Duration; is > 2*maxOutages*o.Outage {
			t.Errorf("%v/s: %s are looked at", rate, is)
		}
	}
}

// While the breaker is open nothing but probes reaches the upstream again.
func TestAnOpenBreakerLetsOnlyProbesThrough(t *testing.T) {
	o := small(1).Fill()
	r := newRecord(o)
	var before int64
	changes := 0
	r.check = func(tick, _, _ int) {
		made, changed := r.Retries-before, len(r.Changes) > changes
		before, changes = r.Retries, len(r.Changes)
		if changes == 0 || !o.down(tick) {
			return
		}
		switch now := r.Changes[changes-1]; {
		case !changed && now.State == throttle.Open && made > 0:
			t.Errorf("%d messages are retried at %s, and the breaker is open", made, time.Duration(now.At))
		case changed && changes > 1 && made > int64(o.Rules.Breaker.Probes):
			t.Errorf("%d probes at %s", made, time.Duration(now.At))
		}
	}
	if err := throttled(t.Context(), o, r); err != nil || changes < 10 {
		t.Fatalf("%d changes of the breaker: %v", changes, err)
	}
}

func TestWhatCannotBeSimulatedIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no rate":        func(o *Options) { o.Rate = -1 },
		"no outage":      func(o *Options) { o.Outage = 0 },
		"short":          func(o *Options) { o.Duration = time.Minute },
		"slow consumers": func(o *Options) { o.Consumers = 1 },
		"too much":       func(o *Options) { o.Rate = 1e5 },
		"no attempts":    func(o *Options) { o.Policy.Attempts = 0 },
	} {
		o := small(1)
		change(&o)
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, small(1)); err == nil {
		t.Error("it does not end with its context")
	}
}

var seeds = flag.Int("seeds", 5, "how many simulations of each kind TestSweep makes")

// What the default breaker does in outages of many lengths, with and without an
// upstream that limps after them, at several rates: within 10 % of the best possible
// time to drain in one that is long enough, and never later than the wait, the settle
// time and the ramp make it. docs/explanation/storms.md has its table.
func TestSweep(t *testing.T) {
	var table strings.Builder
	for _, outage := range []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 3 * time.Hour} {
		for _, limp := range []time.Duration{-1, outage / 12} {
			var over, late []float64
			var share float64
			for _, rate := range []float64{1, 5, 20} {
				for seed := range *seeds {
					o := swept(rate, outage, limp, uint64(seed))
					best, _ := o.bestDrain()
					is := outcomeOf(t, throttled, o)
					if is.Drained == nil {
						t.Fatalf("%v/s, down for %s, limping for %s, seed %d: not drained", rate, outage, o.Limp, seed)
					}
					over = append(over, 100*float64(time.Duration(*is.Drained)-best)/float64(best))
					late = append(late, (time.Duration(*is.Drained) - best).Seconds())
					if seed == 0 && rate == 1 { // where the probes are the largest share
						share = 100 * float64(is.Retries) / float64(outcomeOf(t, backoff, o).Retries)
					}
				}
			}
			slices.Sort(over)
			slices.Sort(late)
			worst := len(over) - 1
			fmt.Fprintf(&table, "| %s | %s | %.2g %% | %.0f s | %.0f s | %.0f %% | %.0f %% |\n", policy.FormatDuration(outage), policy.FormatDuration(max(limp, 0)), share,
				late[worst/2], late[worst], over[worst/2], over[worst])
			b := throttle.DefaultBreaker()
			if limp < 0 {
				wait := min(max(b.Wait, outage/20), b.MaxWait)
				if most := 1.2*wait.Seconds() + throttle.DefaultSettle.Seconds() + b.Ramp.Seconds(); late[worst] > most {
					t.Errorf("down for %s: drained %.0f s later than is best, and wait, settle and ramp are %.0f s", outage, late[worst], most)
				}
			}
			if (outage >= time.Hour || outage >= 20*time.Minute && limp < 0) && over[worst] > 10 {
				t.Errorf("down for %s, limping for %s: drained %.1f %% later than is best", outage, limp, over[worst])
			}
			if outage >= 20*time.Minute && share > 1 {
				t.Errorf("down for %s: %.2f %% of the retries that backoff alone makes", outage, share)
			}
		}
	}
	t.Logf("\n%s", table.String())
	docs, err := os.ReadFile("../../docs/explanation/storms.md")
	must(t, err)
	if *seeds == 5 && !strings.Contains(string(docs), table.String()) {
		t.Errorf("docs/explanation/storms.md has another table")
	}
}

// swept is a queue that returns as much as comes new, to an upstream that can do both.
func swept(rate float64, outage, limp time.Duration, seed uint64) Options {
	b := throttle.DefaultBreaker()
	return Options{Policy: policy.Policy{Name: "p", Queues: []string{"*"}, Attempts: 24, Backoff: policy.Exponential(time.Second, 2, 10*time.Minute), Jitter: policy.Default().Jitter},
		Rules: throttle.Rules{Rate: rate, Breaker: &b}, Rate: rate, Outage: outage, Limp: limp, Duration: 3*outage + 20*time.Minute, Seed: seed}.Fill()
}

var must = expect.NoError
