package redisstore_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/proxy"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// suite runs storetest on a server, each store under a prefix of its own.
func suite(t *testing.T, o redisstore.Options) {
	var stores atomic.Int64
	var options sync.Map // of each store
	fresh := func() redisstore.Options {
		o := o
		o.Timeout, o.Prefix = time.Minute, fmt.Sprintf("test%d", stores.Add(1))
		return o
	}
	open := func(t *testing.T, o redisstore.Options) store.Store {
		s := openAt(t, o)
		options.Store(s, o)
		return s
	}
	storetest.Run(t, storetest.Engine{
		Name:   "redis",
		Shared: true,
		Damage: func(s store.Store, key store.Key, damage func([]byte) []byte) error {
			return s.(*redisstore.Store).DamageRecord(context.Background(), key, damage)
		},
		Open: func(t *testing.T) store.Store { return open(t, fresh()) },
		Reopen: func(t *testing.T, s store.Store) store.Store {
			must(t, s.Close())
			o, _ := options.Load(s)
			return open(t, o.(redisstore.Options))
		},
		Replicas: func(t *testing.T, n int, lease time.Duration) (all []storetest.Replica) {
			o := fresh()
			o.Lease = lease
			for range n {
				r := replica(t, o)
				s := r.Store.(*redisstore.Store)
				r.Expire = func() { age(t, s) }
				r.Ends = func() time.Time {
					first, err := s.Ends(ctx)
					must(t, err)
					return first
				}
				all = append(all, r)
			}
			return all
		},
	})
}

// Sentinel only says which server it is; TestAPrimaryIsReplacedBySentinel has it choose another.
// TestTheDocumentedUserByTLS runs the suite as well.
func TestRedisEngine(t *testing.T) {
	// No failover is what these are about, and one loses what was not replicated.
	const downAfter = time.Hour
	t.Run("alone", func(t *testing.T) {
		on(t, "Redis", func(t *testing.T, o redisnode.Options) {
			suite(t, redisstore.Options{URL: redisnode.New(t, o).URL()})
		})
	})
	t.Run("cluster", func(t *testing.T) {
		on(t, "Valkey", func(t *testing.T, o redisnode.Options) {
			o.DownAfter = downAfter
			suite(t, redisstore.Options{URL: redisnode.NewCluster(t, o).URL()})
		})
	})
	t.Run("Sentinel", func(t *testing.T) {
		on(t, "neither", func(t *testing.T, o redisnode.Options) {
			o.DownAfter = downAfter
			suite(t, redisstore.Options{URL: redisnode.NewSentinel(t, o).URL()})
		})
	})
}

// documentedUser makes the user that docs/how-to/redis.md prints, for stores with such a prefix,
// and returns its password.
func documentedUser(t *testing.T, s *redisnode.Server, prefix string) (password string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/how-to/redis.md")
	must(t, err)
	line := regexp.MustCompile("`ACL (SETUSER redrive [^`]*)`").FindSubmatch(text)
	if line == nil {
		t.Fatal("docs/how-to/redis.md names no rights")
	}
	rights := strings.NewReplacer(">PASSWORD", ">s3cret", "{redrive}", "{"+prefix+"}").Replace(string(line[1]))
	must(t, errOf(s.Do(ctx, append([]string{"ACL"}, strings.Fields(rights)...)...)))
	return "s3cret"
}

// The rights that docs/how-to/redis.md gives the service's user are enough for all that a store
// does, and no more than they are: other keys are not its. All of it by TLS.
func TestTheDocumentedUserByTLS(t *testing.T) {
	on(t, "Redis", func(t *testing.T, o redisnode.Options) {
		ca, err := authority.New(t.TempDir())
		must(t, err)
		o.TLS = &redisnode.TLS{By: ca, Hosts: []string{"127.0.0.1"}}
		server := redisnode.New(t, o)
		password := documentedUser(t, server, "test*")
		so := redisstore.Options{URL: "rediss://redrive:" + password + "@" + server.TLSAddr(),
			TLS: &tls.Config{RootCAs: trusting(t, ca)}}
		t.Run("suite", func(t *testing.T) { suite(t, so) })
		so.Prefix = "other"
		if _, err := redisstore.Open(ctx, so); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("with another prefix: %v", err)
		}
		so.Prefix, so.URL = "test", strings.Replace(so.URL, password, "wrong", 1)
		if _, err := redisstore.Open(ctx, so); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
			t.Errorf("with another password: %v", err)
		}
	})
}

// Redis asks for a password only when a connection is made, and each connection keeps its user's rights.
func TestALoginThatChangesInItsFileIsUsed(t *testing.T) {
	on(t, "", func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "")
		acl := func(args ...string) { server.do(t, "ACL", append([]string{"SETUSER"}, args...)...) }
		acl("a", "on", ">first", "+@all", "~*", "&*")
		acl("b", "on", ">third", "+@all", "~*", "&*")
		file := filepath.Join(t.TempDir(), "url")
		has := func(login string) {
			must(t, os.WriteFile(file, []byte("redis://"+login+"@"+server.Addr()+"\n"), 0o600))
		}
		has("a:first")
		var signedIn, refused atomic.Int32
		so := redisstore.Options{URL: "redis://a:first@" + server.Addr(), Login: connect.Login{URLFile: file}, Timeout: time.Minute,
			Log: slog.New(slog.NewTextHandler(writes(func(line string) {
				if strings.Contains(line, "signed in to Redis again") {
					signedIn.Add(1)
				}
			}), nil)),
			OnState: func(err error) {
				if err != nil && strings.Contains(err.Error(), "NOPERM") {
					refused.Add(1)
				}
			}}
		s, want := openAt(t, so), int64(0)
		one := func(what string) {
			t.Helper()
			record := []*store.Record{storetest.Waiting("q", 0, what)}
			expect.Eventually(t, what, func() bool { return s.Add(ctx, record) == nil })
			if want++; waiting(t, s) != want {
				t.Errorf("%s: %d of %d messages", what, waiting(t, s), want)
			}
		}
		again := func(n int32) {
			expect.Eventually(t, "it signs in again", func() bool { return signedIn.Load() >= n })
		}
		one("at first")

		acl("a", "-@all") // really, so no other connection helps
		again(1)
		expect.Eventually(t, "it is said", func() bool { return refused.Load() > 0 })
		acl("a", "+@all")
		one("with the right again")

		acl("a", "resetpass", ">second")
		one("old connections stay")
		has("a:second")
		again(2)
		server.do(t, "CLIENT", "KILL", "USER", "a")
		one("new connections have the new password")

		has("b:third")
		again(3)
		acl("a", "off", "-@all")
		one("another user goes on")
	})
}

type writes func(line string)

func (w writes) Write(b []byte) (int, error) {
	w(string(b))
	return len(b), nil
}

// The service logs no missing rights.
func TestTheRightsThatAreDocumented(t *testing.T) {
	t.Parallel()
	server := start(t, "")
	password := documentedUser(t, server.Server, "redrive")
	var log bytes.Buffer
	s := openAt(t, redisstore.Options{URL: "redis://redrive:" + password + "@" + server.Addr(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 4 {
		add(t, s, 2)
	}
	expect.Equal(t, done(t, s, claim(t, s, 4)), 4, "finished …")
	must(t, errOf(s.Change(ctx, keys(t, s), storetest.Remove, func(int) []store.Entry {
		return []store.Entry{{Name: "n", Value: []byte("v")}}
	})))
	_, _, err := s.Free()
	_, _, err2 := s.Lead(ctx, "x", "a", time.Minute)
	must(t, errors.Join(err, err2, s.Send(ctx, "topic", nil)))
	storetest.Balances(t, s)
	if log.Len() > 0 {
		t.Errorf("it says: %s", log.String())
	}
}

// trusting has the certificate of an authority.
func trusting(t *testing.T, ca *authority.Authority) *x509.CertPool {
	t.Helper()
	pem, err := os.ReadFile(ca.CAFile())
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return roots
}

// A peer with a wrong name, of an unknown authority, or whose certificate has expired is
// refused before it hears the password.
func TestPeersOfRedissAreVerified(t *testing.T) {
	t.Parallel()
	ca, err := authority.New(t.TempDir())
	must(t, err)
	stranger, err := authority.New(t.TempDir())
	must(t, err)
	here := []string{"127.0.0.1"}
	for _, c := range []struct {
		what string
		by   *authority.Authority
		leaf authority.Leaf
		says string
	}{
		{"another name", ca, authority.Leaf{Hosts: []string{"redis.example"}}, "cannot validate certificate for 127.0.0.1"},
		{"an unknown authority", stranger, authority.Leaf{Hosts: here}, "store.redis.tls.ca"},
		{"an expired certificate", ca, authority.Leaf{Hosts: here, NotAfter: time.Now().Add(-time.Hour)}, "has expired"},
	} {
		peer, err := c.by.NewImpostor(c.leaf)
		must(t, err)
		s, err := redisstore.Open(ctx, redisstore.Options{URL: "rediss://redrive:s3cretpass@" + peer.Addr,
			Timeout: time.Second, TLS: &tls.Config{RootCAs: trusting(t, ca)}})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cretpass") {
			t.Errorf("%s: %v", c.what, err)
		}
		expect.Equal(t, peer.Close(), "", "%s: the peer heard", c.what)
	}
}

// server is a Redis of a test's own, with a client of the test's own.
type server struct {
	*redisnode.Server
	url    string
	client rueidis.Client
}

// start starts a server with further settings.
func start(t testing.TB, config string) *server {
	t.Helper()
	return startOn(t, redisnode.Options{}, config)
}

func startOn(t testing.TB, o redisnode.Options, config string) *server {
	t.Helper()
	o.Config = "maxmemory 1gb\n" + config
	node := redisnode.New(t, o)
	reach := rueidis.MustParseURL(node.URL())
	reach.DisableCache = true
	client, err := rueidis.NewClient(reach)
	must(t, err)
	t.Cleanup(client.Close)
	return &server{node, node.URL(), client}
}

// do sends a command, whose second word may be a key.
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
	var conns held
	s, err := redisstore.Open(ctx, conns.options(t, o))
	must(t, err)
	return storetest.Replica{Store: s, Stall: func() func() {
		conns.holdAll((*proxy.Proxy).Hold)
		return func() {
			conns.free()
			conns.arrive()
		}
	}}
}

func openAt(t testing.TB, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(ctx, o)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

var ctx = context.Background()

// late is after the Due of all of storetest's records.
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

// done finishes claims as retried, and returns how many were.
func done(t *testing.T, s store.Store, claims []store.Claim) int {
	t.Helper()
	n, err := s.Finish(ctx, storetest.Ended(claims, late))
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

// keys returns the keys of all records.
func keys(t *testing.T, s store.Store) []store.Key {
	t.Helper()
	return storetest.Keys(t, s, store.Range{})
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

// age ends all leases and locks.
func age(t *testing.T, s *redisstore.Store) {
	t.Helper()
	must(t, s.Expire(ctx))
}

// one returns a server and a store on it, and two another store, too.
func one(t *testing.T) (*server, *redisstore.Store) {
	t.Helper()
	t.Parallel()
	s := start(t, "")
	return s, openAt(t, s.options())
}

func two(t *testing.T) (*server, *redisstore.Store, *redisstore.Store) {
	t.Helper()
	server, s := one(t)
	return server, s, openAt(t, server.options())
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
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.Addr())
		if err == nil && o.TLS != nil {
			secure := o.TLS.Clone()
			secure.ServerName = "127.0.0.1"
			return tls.Client(c, secure), nil
		}
		return c, err
	}
	return o
}

// holdAll holds all connections, and those that are made until free.
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

// untilAnswered repeats a call until Redis answers.
func untilAnswered(t *testing.T, ask func() error) {
	t.Helper()
	for began, err := time.Now(), ask(); err != nil; err = ask() {
		if time.Since(began) > expect.Patience {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
