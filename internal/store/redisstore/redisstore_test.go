package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

func openAt(t testing.TB, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// suite runs storetest on a server, each store under a prefix of its own.
func suite(t *testing.T, url string) {
	suiteWith(t, redisstore.Options{URL: url}, replica)
}

func suiteWith(t *testing.T, o redisstore.Options, replica func(*testing.T, redisstore.Options) storetest.Replica) {
	var stores atomic.Int64
	var mu sync.Mutex
	options := map[store.Store]redisstore.Options{}
	fresh := func() redisstore.Options {
		o := o
		o.Timeout, o.Prefix = time.Minute, fmt.Sprintf("test%d", stores.Add(1))
		return o
	}
	open := func(t *testing.T, o redisstore.Options) store.Store {
		s := openAt(t, o)
		mu.Lock()
		defer mu.Unlock()
		options[s] = o
		return s
	}
	storetest.Run(t, storetest.Engine{
		Name:   "redis",
		Shared: true,
		Tear:   func(s store.Store, key store.Key) error { return s.(*redisstore.Store).Tear(context.Background(), key) },
		Open:   func(t *testing.T) store.Store { return open(t, fresh()) },
		Reopen: func(t *testing.T, s store.Store) store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			o := options[s]
			mu.Unlock()
			return open(t, o)
		},
		Replicas: func(t *testing.T, n int, lease time.Duration) (all []storetest.Replica) {
			o := fresh()
			o.Lease = lease
			for range n {
				all = append(all, replica(t, o))
			}
			return all
		},
	})
}

// downAfter: no failover is what these are about, and one loses what was not replicated.
const downAfter = time.Minute

// TestTheDocumentedUserByTLS runs the suite by TLS, on Redis and on Valkey.
func TestRedisEngine(t *testing.T) { suite(t, redisnode.New(t, redisnode.Options{}).URL()) }

// Sentinel only says which server it is; TestAPrimaryIsReplaced has it choose another.
func TestRedisEngineWithSentinel(t *testing.T) {
	suite(t, redisnode.NewSentinel(t, redisnode.Options{DownAfter: downAfter}).URL())
}

func TestRedisEngineOnACluster(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		o.DownAfter = downAfter
		suite(t, redisnode.NewCluster(t, o).URL())
	})
}
