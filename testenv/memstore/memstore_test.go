package memstore_test

import (
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

func TestMemoryEngine(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Engine{Name: "memory", Open: func(*testing.T) store.Store { return memstore.New() }})
}

// A member of several replicas is a store like any other.
func TestAMemberOfAFleet(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Engine{Name: "member", Open: func(*testing.T) store.Store { return memstore.NewReplicas().Join() }})
}
