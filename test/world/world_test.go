package world_test

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/test/world"
)

var (
	oneSeed = flag.Uint64("seed", 0, "run the world of this seed alone, and log it")
	seeds   = flag.Uint64("seeds", 300, "run the worlds of the seeds 1 to n")
	only    = flag.String("only", "", "with -seed: these parts of its scenario alone")
	shrink  = flag.Duration("shrink", time.Minute, "with -seed: how long to look for the shortest scenario that still fails")
)

// tries is how often a scenario is run that may fail: goroutines that act at one instant do so in
// different orders.
const tries = 3

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // a world is small, and its garbage is most of its cost
	flag.Parse()
	os.Exit(m.Run())
}

// regressions are seeds that failed once, with the parts that were there then. Of those that
// TestWorlds runs anyway, 28, 36, 78 and 105 did.
var regressions = []struct {
	seed uint64
	only string
}{
	{2577, "q m f0 f1 f2 f3 f4 f5 f6 f7"},
	{566, "q m f0 f1 f2 f3 f4 f5 f6 f7 f8 f9"},
	{566, ""},
}

func TestWorlds(t *testing.T) {
	if *oneSeed != 0 {
		runOne(t, *oneSeed, strings.Fields(*only))
		return
	}
	for seed := uint64(1); seed <= *seeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			run(t, seed, nil)
		})
	}
	for _, r := range regressions {
		t.Run(fmt.Sprintf("seed %d, which failed once", r.seed), func(t *testing.T) {
			t.Parallel()
			run(t, r.seed, strings.Fields(r.only))
		})
	}
}

func run(t *testing.T, seed uint64, parts []string) {
	if log, _, err := runParts(t, seed, parts); err != nil {
		t.Errorf("seed %d: %v\n%s\nRepeat it, with all that it logs and the shortest scenario that still fails, with %s", seed, err, log, repeat(seed, parts))
	}
}

// runOne logs all, and shrinks a scenario that fails.
func runOne(t *testing.T, seed uint64, parts []string) {
	log, service, err := runParts(t, seed, parts)
	t.Logf("%s\n%s\nThe service said:\n%s", world.Describe(seed, parts), log, service)
	if err == nil {
		return
	}
	t.Errorf("seed %d: %v", seed, err)
	if len(parts) == 0 {
		parts = world.Parts(seed)
	}
	var last error
	short := world.Shrink(parts, func(some []string) bool {
		for range tries {
			if _, _, err := runParts(t, seed, some); err != nil {
				last = err
				return true
			}
		}
		return false
	}, time.Now().Add(*shrink))
	if last != nil {
		t.Logf("The shortest scenario that still fails, with %s\n%s\n%v", repeat(seed, short), world.Describe(seed, short), last)
	}
}

func repeat(seed uint64, parts []string) string {
	command := fmt.Sprintf("go test ./test/world -run TestWorlds -v -seed %d", seed)
	if len(parts) > 0 {
		command += fmt.Sprintf(" -only %q", strings.Join(parts, " "))
	}
	return command
}

func runParts(t *testing.T, seed uint64, parts []string) (log, service string, err error) {
	var steps, said strings.Builder
	synctest.Test(t, func(*testing.T) {
		err = world.Run(seed, parts, &steps, slog.New(slog.NewTextHandler(&said, nil)))
	})
	return steps.String(), said.String(), err
}
