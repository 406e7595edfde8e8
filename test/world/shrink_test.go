package world_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/test/world"
)

func TestAScenarioIsShrunkToWhatFails(t *testing.T) {
	seed := uint64(1)
	for len(world.Parts(seed)) < 100 {
		seed++
	}
	parts := world.Parts(seed)
	needed := []string{parts[0], parts[len(parts)/2], parts[len(parts)-1]}
	runs := 0
	fails := func(some []string) bool {
		runs++
		return !slices.ContainsFunc(needed, func(n string) bool { return !slices.Contains(some, n) })
	}
	got := world.Shrink(parts, fails, time.Now().Add(time.Minute))
	if !slices.Equal(got, needed) {
		t.Errorf("%d parts became %v; needed are %v", len(parts), got, needed)
	}
	if runs > 3*len(parts) {
		t.Errorf("%d runs for %d parts", runs, len(parts))
	}
	if got := world.Shrink(parts, fails, time.Now()); !slices.Equal(got, parts) {
		t.Error("it was shrunk when there was no time")
	}
	for _, part := range parts {
		if part[0] == 'm' && !strings.Contains(world.Describe(seed, []string{"q", part}), " "+part+" to ") {
			t.Errorf("%s is not described", part)
		}
	}
}
