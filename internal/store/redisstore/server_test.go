package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/expect"
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
	must(t, err)
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

func (s *server) options() redisstore.Options {
	return redisstore.Options{URL: s.url, Timeout: time.Minute}
}

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
	must(t, err)
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

func openAt(t testing.TB, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(context.Background(), o)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

var ctx = context.Background()

// late is after all that storetest's records are due.
var late = time.UnixMicro(1_900_000_000_000_000)

func claim(t *testing.T, s store.Store, n int) []store.Claim {
	t.Helper()
	claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, late, n, math.MaxInt)
	must(t, err)
	return claims
}

func add(t *testing.T, s store.Store, n int) {
	t.Helper()
	var batch []*store.Record
	for i := range n {
		batch = append(batch, storetest.Waiting("q", time.Duration(i)*time.Second, fmt.Sprint(i)))
	}
	must(t, s.Add(ctx, batch))
}

// done finishes claims as retried, and tells how many were.
func done(t *testing.T, s store.Store, claims []store.Claim) int {
	t.Helper()
	var out []store.Outcome
	for _, c := range claims {
		out = append(out, store.Outcome{Claim: c, At: late})
	}
	n, err := s.Finish(ctx, out)
	must(t, err)
	return n
}

func waiting(t *testing.T, s store.Store) (n int64) {
	t.Helper()
	var counts []store.QueueCount
	untilAnswered(t, func() (err error) { counts, err = s.Counts(ctx); return err })
	for _, c := range counts {
		n += c.Waiting
	}
	return n
}

// keys are those of all records.
func keys(t *testing.T, s store.Store) (all []store.Key) {
	t.Helper()
	err := s.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) {
		all = append(all, l.Key)
		return true, nil
	})
	must(t, err)
	return all
}

var errCrash = errors.New("crashed")

// on runs a test on Redis and on Valkey. One that names one of them runs on the other in long runs
// alone.
func on(t *testing.T, short string, test func(*testing.T, redisnode.Options)) {
	t.Helper()
	t.Parallel()
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		if short != "" && short != o.Name() && !storetest.Long() {
			t.Skip("in a long run alone: REDRIVE_TEST_LONG=1")
		}
		test(t, o)
	})
}

// age makes all leases and locks be over.
func age(t *testing.T, s *redisstore.Store) {
	t.Helper()
	must(t, s.Expire(ctx))
}

// two are a server and two stores on it.
func two(t *testing.T) (*server, *redisstore.Store, *redisstore.Store) {
	t.Helper()
	t.Parallel()
	s := start(t, "")
	return s, openAt(t, s.options()), openAt(t, s.options())
}

var must, errOf = expect.NoError, expect.ErrOf

// held dials by proxies, one for each connection. Those made up to free can be held while
// others are made later.
type held struct {
	mu      sync.Mutex
	all     []*proxy.Proxy
	hold    func(*proxy.Proxy) func() // nil: what is made now is not held
	release []func()
}

func (h *held) options(t *testing.T, o redisstore.Options) redisstore.Options {
	o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		p := proxy.New(t, addr)
		h.mu.Lock()
		h.all = append(h.all, p)
		if h.hold != nil {
			h.release = append(h.release, h.hold(p))
		}
		h.mu.Unlock()
		return (&net.Dialer{}).DialContext(ctx, "tcp", p.Addr())
	}
	return o
}

// holdAll holds the connections that there are, and those that are made until free.
func (h *held) holdAll(hold func(*proxy.Proxy) func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = hold
	for _, p := range h.all {
		h.release = append(h.release, hold(p))
	}
}

func (h *held) free() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = nil
}

// arrive lets through what was held.
func (h *held) arrive() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, release := range h.release {
		release()
	}
}

// eventually asks until it is so. Only a failure takes the two minutes.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// untilAnswered asks again until Redis answers.
func untilAnswered(t *testing.T, ask func() error) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatal(err)
		}
	}
}
