package redisstore_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/memredis"
)

// inMemory are the options of a store in a Redis in memory.
func inMemory(server *memredis.Server) redisstore.Options {
	return redisstore.Options{URL: "redis://memory:6379", Dial: func(ctx context.Context, _ string) (net.Conn, error) { return server.Dial(ctx, "a test") }}
}

// memredis, on which test/world runs the store, is held to what Redis does by the suite that runs
// on Redis itself.
func TestRedisEngineInMemory(t *testing.T) {
	server := memredis.New(memredis.Options{})
	t.Cleanup(server.Close)
	suiteWith(t, inMemory(server), heldReplica)
}

// heldReplica opens a store whose connections in memory can be held.
func heldReplica(t *testing.T, o redisstore.Options) storetest.Replica {
	t.Helper()
	var pass sync.RWMutex
	dial := o.Dial
	o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := dial(ctx, addr)
		return &heldConn{c, &pass}, err
	}
	s, err := redisstore.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return storetest.Replica{Store: s, Stall: func() func() {
		pass.Lock()
		return sync.OnceFunc(pass.Unlock)
	}}
}

// heldConn carries nothing to the server while pass is locked.
type heldConn struct {
	net.Conn
	pass *sync.RWMutex
}

func (c *heldConn) Write(b []byte) (int, error) {
	c.pass.RLock()
	defer c.pass.RUnlock()
	return c.Conn.Write(b)
}
