package world_test

import (
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/redrive-mq/redrive/test/world"
)

var (
	oneSeed = flag.Uint64("seed", 0, "run the world of this seed alone, and log it")
	seeds   = flag.Uint64("seeds", 100, "run the worlds of the seeds 1 to n")
)

func TestWorlds(t *testing.T) {
	from, to := uint64(1), *seeds
	if *oneSeed != 0 {
		from, to = *oneSeed, *oneSeed
	}
	for seed := from; seed <= to; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log, service strings.Builder
				err := world.Run(seed, &log, slog.New(slog.NewTextHandler(&service, nil)))
				if err != nil {
					t.Errorf("seed %d (repeat it with go test ./test/world -seed %d -v): %v\n%s", seed, seed, err, &log)
				}
				if *oneSeed != 0 {
					t.Logf("%s\nThe service said:\n%s", &log, &service)
				}
			})
		})
	}
}
