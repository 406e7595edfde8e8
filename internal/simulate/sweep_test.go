package simulate

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

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
					over = append(over, 100*float64(*is.Drained-best)/float64(best))
					late = append(late, (*is.Drained - best).Seconds())
					if seed == 0 {
						share = max(share, 100*float64(is.Retries)/float64(outcomeOf(t, backoff, o).Retries))
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
	if err != nil {
		t.Fatal(err)
	}
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
