package world_test

import (
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/test/world"
)

// What the first seeds decide is what make test runs.
func TestTheFirstSeedsHaveReplicasAndAllThatHappensToThem(t *testing.T) {
	seen := map[string]int{
		"in Redis, 1 replicas": 0, "in Redis, 2 replicas": 0, "in Redis, 3 replicas": 0, "replica 1: it stands still": 0, "when it is about to change": 0, "when it has just changed": 0, "the leader: it stands still": 0, "the leader: it loses the store": 0,
		"the leader: crash": 0, "the leader: stop and start": 0, "for good": 0, "replica 1: cut a connection": 0,
	}
	for seed := range uint64(300) {
		text := world.Describe(seed+1, nil)
		for what := range seen {
			seen[what] += strings.Count(text, what)
		}
	}
	for what, n := range seen {
		if n < 3 {
			t.Errorf("%q is in the first 300 seeds %d times", what, n)
		}
	}
}
