package world_test

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/test/world"
)

var (
	oneSeed = flag.Uint64("seed", 0, "run the world of this seed alone, and log it")
	seeds   = flag.Uint64("seeds", 60, "run the worlds of the seeds up to n")
	from    = flag.Uint64("from", 1, "begin with this seed")
	only    = flag.String("only", "", "with -seed: these parts of its scenario alone")
	table   = flag.Bool("table", false, "report progress, and each failure at once")
	shrink  = flag.Duration("shrink", time.Minute, "with -seed: how long to look for the shortest scenario that still fails")
)

// tries is how often a world that failed is run again: which goroutine acts first at one instant is chance.
const tries = 3

var runs atomic.Int64

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // a world is small, and its garbage is most of its cost
	os.Exit(m.Run())
}

// known are seeds that showed a fault of Redrive.
var known = []uint64{28, 566, 229}

func TestWorlds(t *testing.T) {
	if *oneSeed != 0 {
		runOne(t, *oneSeed, strings.Fields(*only))
		return
	}
	for seed := *from; seed <= *seeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			run(t, seed)
		})
	}
	for _, seed := range known {
		t.Run(fmt.Sprintf("seed %d, which failed once", seed), func(t *testing.T) {
			t.Parallel()
			run(t, seed)
		})
	}
}

func run(t *testing.T, seed uint64) {
	if n := runs.Add(1); *table && n%500 == 0 {
		fmt.Fprintf(os.Stderr, "%d worlds\n", n)
	}
	o := runWorld(t, seed, nil)
	if o.wrong == "" {
		return
	}
	again := "Log all of it, and find the shortest scenario that still fails, with " + repeat(seed, nil)
	if *table { // the test itself says so when all are done
		fmt.Fprintf(os.Stderr, "seed %d: %s\n%s\n", seed, o.wrong, again)
	}
	t.Errorf("seed %d: %s\n%s\n%s", seed, o.wrong, o.log, again)
}

// runOne logs all, and shrinks a scenario that fails.
func runOne(t *testing.T, seed uint64, parts []string) {
	o := runWorld(t, seed, parts)
	t.Logf("%s\n%s\nThe service said:\n%s", world.Describe(seed, parts), o.log, o.service)
	if o.wrong == "" {
		return
	}
	t.Errorf("seed %d: %s", seed, o.wrong)
	if len(parts) == 0 {
		parts = world.Parts(seed)
	}
	last := ""
	short := world.Shrink(parts, func(some []string) bool {
		for range tries {
			if o := runWorld(t, seed, some); o.wrong != "" {
				last = o.wrong
				return true
			}
		}
		return false
	}, time.Now().Add(*shrink))
	if last != "" {
		t.Logf("The shortest scenario that still fails, with %s\n%s\n%s", repeat(seed, short), world.Describe(seed, short), last)
	}
}

// repeat is the command that runs a world again.
func repeat(seed uint64, parts []string) string {
	command := fmt.Sprintf("go test ./test/world -run TestWorlds -v -seed %d", seed)
	if len(parts) > 0 {
		command += fmt.Sprintf(" -only %q", strings.Join(parts, " "))
	}
	return command
}

// outcome is what happened in one run.
type outcome struct{ log, service, wrong string }

func runWorld(t *testing.T, seed uint64, parts []string) (o outcome) {
	var steps, said strings.Builder
	synctest.Test(t, func(*testing.T) {
		if err := world.Run(seed, parts, &steps, slog.New(slog.NewTextHandler(&said, nil))); err != nil {
			o.wrong = err.Error()
		}
	})
	o.log, o.service = steps.String(), said.String()
	return o
}

func TestAScenarioIsShrunkToWhatFails(t *testing.T) {
	seed := uint64(1)
	for len(world.Parts(seed)) < 100 {
		seed++
	}
	parts := world.Parts(seed)
	needed := []string{parts[0], parts[len(parts)/2], parts[len(parts)-1]}
	runs := 0
	got := world.Shrink(parts, func(some []string) bool {
		runs++
		for _, n := range needed {
			if !strings.Contains(" "+strings.Join(some, " ")+" ", " "+n+" ") {
				return false
			}
		}
		return true
	}, time.Now().Add(time.Hour))
	if strings.Join(got, " ") != strings.Join(needed, " ") || runs > 3*len(parts) {
		t.Errorf("%d parts became %v in %d runs; needed are %v", len(parts), got, runs, needed)
	}
}

// What the first seeds decide is what make test runs.
func TestTheFirstSeedsHaveAllKindsOfFaults(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(60) {
		text := world.Describe(seed+1, nil)
		for _, what := range []string{
			"3.10.8", "4.3.6", "on disk", "in Redis, 2 replicas", "in Redis, 3 replicas",
			"the leader: it loses the store", "the leader: crash", "the leader: stop and start",
			"when it has just stored", "when it has just ended claims", "cut a connection of the service", "cut the consumers' connection",
			"crash for", "the disk is full", "memory alarm", "the store is in trouble",
			"asks to pause", "asks to edit", "asks to replay", "asks to restore",
		} {
			seen[what] += strings.Count(text, what)
		}
	}
	for what, n := range seen {
		if n == 0 {
			t.Errorf("%q is in none of them", what)
		}
	}
}
