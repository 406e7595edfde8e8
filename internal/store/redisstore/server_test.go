package redisstore_test

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/proxy"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// server is a Redis of a test's own, with a client of the test's own.
type server struct {
	*redisnode.Server
	url    string
	client rueidis.Client
}

// start starts one, with more of its configuration.
func start(t testing.TB, config string) *server {
	t.Helper()
	return startOn(t, redisnode.Options{}, config)
}

func startOn(t testing.TB, o redisnode.Options, config string) *server {
	t.Helper()
	o.Config = "maxmemory 1gb\n" + config
	s := redisnode.New(t, o)
	return reach(t, s.URL(), s)
}

// reach connects a test to a server, or several.
func reach(t testing.TB, url string, node *redisnode.Server) *server {
	t.Helper()
	o := rueidis.MustParseURL(url)
	o.DisableCache = true
	client, err := rueidis.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &server{node, url, client}
}

// do sends a command, whose second word is a key or not.
func (s *server) do(t testing.TB, command string, rest ...string) rueidis.RedisMessage {
	t.Helper()
	m, err := s.client.Do(context.Background(), s.client.B().Arbitrary(command).Args(rest...).Build()).ToMessage()
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatalf("%s %q: %v", command, rest, err)
	}
	return m
}

// age lets all leases and locks of the store be old.
func (s *server) age(t testing.TB) {
	t.Helper()
	const old = "for _, m in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, m) end"
	for _, set := range []string{"lease", "locks"} {
		if err := s.client.Do(context.Background(), s.client.B().Eval().Script(old).Numkeys(1).Key("{redrive}:"+set).Build()).Error(); err != nil && !rueidis.IsRedisNil(err) {
			t.Fatal(err)
		}
	}
}

func (s *server) options() redisstore.Options { return redisstore.Options{URL: s.url} }

// replica opens a store whose connections can be held.
func replica(t *testing.T, o redisstore.Options) storetest.Replica {
	t.Helper()
	var mu sync.Mutex
	by := map[string]*proxy.Proxy{}
	o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		mu.Lock()
		p := by[addr]
		if p == nil {
			p = proxy.New(t, addr)
			by[addr] = p
		}
		mu.Unlock()
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", p.Addr())
		if err == nil && o.TLS != nil {
			secure := o.TLS.Clone()
			secure.ServerName = "127.0.0.1"
			return tls.Client(c, secure), nil
		}
		return c, err
	}
	s, err := redisstore.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return storetest.Replica{Store: s, Stall: func() func() {
		mu.Lock()
		defer mu.Unlock()
		var all []func()
		for _, p := range by {
			all = append(all, p.Hold())
		}
		return func() {
			for _, release := range all {
				release()
			}
		}
	}}
}
