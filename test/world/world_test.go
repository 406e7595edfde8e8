package world_test

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
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
	table   = flag.Bool("table", false, "report progress, and print what happened in all worlds together")
	shrink  = flag.Duration("shrink", time.Minute, "with -seed: how long to look for the shortest scenario that still fails")
)

// tries is how often a world that failed is run again: which goroutine acts first at one instant is chance.
const tries = 3

// total is what happened in all runs. It is safe for concurrent use.
var total = struct {
	sync.Mutex
	runs     int
	happened world.Happened
}{happened: world.Happened{}}

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // a world is small, and its garbage is most of its cost
	flag.Parse()
	code := m.Run()
	if *table {
		_ = total.happened.Write(os.Stdout) // who does not read it misses nothing else
	}
	os.Exit(code)
}

// known are seeds that showed a fault of Redrive, with the parts that the scenario had then.
var known = []struct {
	seed uint64
	only string
}{
	{28, ""}, {566, ""}, {229, ""}, {971, ""},
}

func TestWorlds(t *testing.T) {
	if *oneSeed != 0 {
		runOne(t, *oneSeed, strings.Fields(*only))
		return
	}
	for seed := *from; seed <= *seeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			run(t, seed, nil)
		})
	}
	for _, k := range known {
		t.Run(fmt.Sprintf("seed %d, which failed once", k.seed), func(t *testing.T) {
			t.Parallel()
			run(t, k.seed, strings.Fields(k.only))
		})
	}
}

func run(t *testing.T, seed uint64, parts []string) {
	o := runWorld(t, seed, parts)
	if o.wrong == "" {
		return
	}
	again := "Log all of it, and find the shortest scenario that still fails, with " + repeat(seed, parts)
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
		happened, err := world.Run(seed, parts, &steps, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			o.wrong = err.Error()
		}
		total.Lock()
		defer total.Unlock()
		total.happened.Add(happened)
		if total.runs++; *table && total.runs%500 == 0 {
			fmt.Fprintf(os.Stderr, "%d worlds\n", total.runs)
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
			"crash for", "the disk is full", "memory alarm", "the store is in trouble", "the service's clock jumps", "the store is damaged",
			"asks to pause", "asks to import", "edits", "replays", "asks to restore",
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
