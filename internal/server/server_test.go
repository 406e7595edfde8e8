package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

func testConfig(t *testing.T) *config.Config {
	c := config.Default()
	c.Store.Disk, c.Listen = t.TempDir(), "127.0.0.1:0"
	return c
}

func quiet() Options { return Options{Version: "test", Log: slog.New(slog.DiscardHandler)} }

// opened is a service that ends with the test.
func opened(t *testing.T, c *config.Config) *Service {
	t.Helper()
	s, err := New(c, quiet())
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// starts checks that a service starts, so that its folders are free, and ends it.
func starts(t *testing.T, c *config.Config) {
	t.Helper()
	s, err := New(c, quiet())
	must(t, err)
	must(t, s.Close())
}

// refuses checks that a service does not start, and says why.
func refuses(t *testing.T, c *config.Config, why string) error {
	t.Helper()
	s, err := New(c, quiet())
	if err == nil {
		_ = s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("it says: %v, want %s", err, why)
	}
	return err
}

func TestOneServiceOwnsADataFolder(t *testing.T) {
	c := testConfig(t)
	first, err := New(c, quiet())
	must(t, err)
	expect.Err(t, refuses(t, c, c.Store.Disk), store.ErrLocked, "a second one says")
	must(t, first.Close())
	starts(t, c)
}

// A start that fails must leave the data folder free for the next.
func TestAPortInUseFreesTheDataFolder(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	c := testConfig(t)
	c.Listen = taken.Addr().String()
	_ = refuses(t, c, c.Listen)
	c.Listen = "127.0.0.1:0"
	starts(t, c)
}

func TestARefusedConfigLeavesTheOldPolicies(t *testing.T) {
	s := opened(t, testConfig(t))
	inForce := func() string { return s.vhosts[0].inForce.Policies()[0].Name }

	s.reload(nil, errors.New("line 3"))
	expect.Equal(t, inForce(), "default", "policy … is in force after a refused one")
	expect.Equal(t, gauge(t, s.vhosts[0].metrics, `redrive_config_loads_total{result="refused"}`), "1",
		"loads were refused")
	next := *s.config
	next.Decode.Protobuf.Files = []string{"none.proto"}
	s.reload(&next, nil)
	expect.Equal(t, gauge(t, s.vhosts[0].metrics, `redrive_config_loads_total{result="refused"}`), "2",
		"loads were refused; one names a file that is not there")
	schema := filepath.Join(t.TempDir(), "a.proto")
	must(t, os.WriteFile(schema, []byte(`syntax = "proto3"; message A { string name = 1; }`), 0o600))
	next.Decode.Protobuf = decode.Protobuf{Files: []string{schema}, Queues: []decode.QueueType{{Queues: []string{"orders"}, Message: "A"}}}
	p := policy.Default()
	p.Name = "orders"
	next.Policies = policy.Set{p}
	next.Watch = config.Watches{{Queues: []string{"orders"}}}
	next.Throttle = map[string]throttle.Rules{"orders": {Rate: 5, Breaker: &throttle.Breaker{}}}
	s.reload(&next, nil)
	if all, err := s.vhosts[0].inspect.Policies(t.Context(), auth.Caller{Role: auth.Viewer}); err != nil || all[0].Limits != "5/s, breaker" {
		t.Errorf("people see %+v, %v", all, err)
	}
	expect.Equal(t, inForce(), "orders", "policy … is in force")
	expect.Equal(t, len(*s.vhosts[0].queueWatch.configured.Load()), 1, "entries of watch in force")
	schemaInForce := func() {
		t.Helper()
		if got := s.vhosts[0].decoder.Decode(t.Context(), decode.Body{Bytes: []byte("\n\x03ann"), Queue: "orders"}); !strings.Contains(got.Text, `"name": "ann"`) {
			t.Errorf("a body is read as %s", got.Text)
		}
	}
	schemaInForce()
	expect.Equal(t, gauge(t, s.vhosts[0].metrics, `redrive_config_loads_total{result="ok"}`), "1", "loads were good")

	next.Decode = decode.Options{}
	next.Notify.Routes = []notify.Route{{Name: "a", URL: "nonsense://a"}}
	s.reload(&next, nil)
	expect.Equal(t, gauge(t, s.vhosts[0].metrics, `redrive_config_loads_total{result="refused"}`), "3",
		"loads were refused; one has no notifier's URL")
	schemaInForce()
}

// The status must not wait for a connection, nor show the broker's password; a read-only
// service refuses changes.
func TestAServiceBeforeAnyConnection(t *testing.T) {
	c := testConfig(t)
	c.Broker.URL, c.Access.ReadOnly = "amqp://shop:s3cret@127.0.0.1:1/", true
	s := opened(t, c)
	code, text := send(s, "POST", "/api/v1/tokens", `{"name":"ci","role":"viewer"}`)
	if code != 403 || !strings.Contains(text, auth.ErrReadOnly.Error()) {
		t.Errorf("it is read-only, and answers %d %s", code, text)
	}
	st, err := s.vhosts[0].inspect.Overview(t.Context(), auth.Caller{Name: "ann", Role: auth.Viewer})
	must(t, err)
	if fmt.Sprint(condition.Lines(st.Conditions)) != "[connections: connecting]" || len(st.Queues) != 0 ||
		strings.Contains(st.Broker, "s3cret") || !strings.Contains(st.Broker, "127.0.0.1:1") {
		t.Errorf("the status is %+v", st)
	}
}

// Nor does it serve without TLS where it has a certificate.
func TestAServiceThatOthersCouldReachDoesNotStartOpen(t *testing.T) {
	c := testConfig(t)
	c.Store.Disk = filepath.Join(c.Store.Disk, "data")
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		c.Listen = listen
		_ = refuses(t, c, "set `auth: {}`")
	}
	c.Access.SignIn = true
	_ = refuses(t, c, "tls.cert")
	c.Access.TLS = auth.TLSFiles{Cert: "none.pem", Key: "none.pem"}
	if _, err := os.Stat(c.Store.Disk); err == nil {
		t.Error("a service that may not start has made its folder")
	}
	_ = refuses(t, c, "none.pem")
	// Each of those has released its folder.
	c.Access.TLS, c.Access.BehindProxy = auth.TLSFiles{}, true
	starts(t, c)
	ca, err := authority.New(t.TempDir())
	must(t, err)
	c.Access.TLS = auth.TLSFiles{Cert: filepath.Join(ca.Dir, "cert.pem"), Key: filepath.Join(ca.Dir, "key.pem")}
	c.Access.BehindProxy = false
	must(t, ca.Issue(authority.Leaf{Hosts: []string{"127.0.0.1"}}, c.Access.TLS.Cert, c.Access.TLS.Key))
	s := opened(t, c)
	server, served := s.server(), make(chan struct{})
	go func() { defer close(served); s.serve(server) }()
	defer func() { server.Close(); <-served }()
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(ca.CAFile())
	must(t, err)
	roots.AppendCertsFromPEM(pem)
	conn, err := tls.Dial("tcp", s.Addr(), &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
	must(t, err)
	must(t, conn.Close())
}

func get(t *testing.T, s *Service, path string) (int, string) {
	t.Helper()
	r, err := http.Get("http://" + s.Addr() + path)
	must(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(t, err)
	return r.StatusCode, string(text)
}

// saysReady returns what all places say about the readiness of a service, as 200 or 503.
func saysReady(t *testing.T, s *Service) (all map[string]bool, o inspect.Overview) {
	t.Helper()
	status, _ := get(t, s, "/readyz")
	code, metrics := get(t, s, "/metrics")
	expect.Equal(t, code, 200, "/metrics answers …: %s", metrics)
	_, page := get(t, s, "/health")
	o, err := s.vhosts[0].inspect.Overview(context.Background(), boss)
	must(t, err)
	all = map[string]bool{
		"/readyz":       status == 200,
		"redrive_ready": strings.Contains(metrics, "\nredrive_ready 1\n"),
		"page":          strings.Contains(page, "<b>Ready.</b>") && !strings.Contains(page, "Not ready."),
		"overview":      o.Ready,
		"vhosts":        s.vhostLinks(0)[0].Ready,
		"nothing wrong": s.vhosts[0].conditions.Ready(),
	}
	for _, r := range o.Replicas {
		if r.Self {
			all["replica"] = r.Ready
		}
	}
	return all, o
}

// agree waits until all places say the same. The replicas' table is as of the last heartbeat.
func agree(t *testing.T, s *Service, what string, ready bool) inspect.Overview {
	t.Helper()
	var o inspect.Overview
	brokertest.Eventually(t, fmt.Sprintf("%s: ready is %v everywhere", what, ready), func() bool {
		all, now := saysReady(t, s)
		o = now
		return !slices.Contains(slices.Collect(maps.Values(all)), !ready)
	})
	return o
}

// One judgement says whether a service is ready, in all places, whatever is wrong.
func TestReadinessIsOneJudgementEverywhere(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		v := brokertest.NewVHost(t, brokertest.All(t)[0])
		o.Config = "maxmemory 1gb"
		server := redisnode.New(t, o)
		c, err := config.Parse("test.yaml", []byte("policies: [{name: p, queues: [orders], attempts: 3, backoff: {fixed: 1s}}]\nbroker: {}\n"))
		must(t, err)
		c.Broker.URL, c.Store.Disk, c.Listen = v.URL(), t.TempDir(), "127.0.0.1:0"
		c.Store.Redis.URL, c.Store.Redis.Timeout = server.URL(), 3*time.Second
		s, err := New(c, Options{Version: "test", Log: slog.New(slog.DiscardHandler)})
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		defer func() {
			cancel()
			must(t, <-done)
		}()
		agree(t, s, "nothing", true)
		h := s.vhosts[0].conditions
		for _, trouble := range []struct {
			all   []condition.Condition
			ready bool
		}{
			{[]condition.Condition{of(condition.Unreachable, "orders")}, true},
			{[]condition.Condition{of(condition.NoConsumer, "orders"), of(condition.Unreachable, "mail")}, true},
			{[]condition.Condition{dead}, true},
			{[]condition.Condition{of(condition.Store, "")}, false},
			{[]condition.Condition{of(condition.ParkedStore, "")}, false},
			{[]condition.Condition{of(condition.Intake, "")}, false},
			{[]condition.Condition{of(condition.Publish, ""), of(condition.Unreachable, "orders")}, false},
			{[]condition.Condition{of(condition.Delays, "")}, false},
		} {
			for _, c := range trouble.all {
				c.Text = "wrong"
				h.Put(c)
			}
			if got := agree(t, s, fmt.Sprint(trouble.all), trouble.ready); len(got.Conditions) != len(trouble.all) {
				t.Errorf("%q: problems %q", trouble.all, got.Conditions)
			}
			for _, c := range trouble.all {
				h.Put(c)
			}
			agree(t, s, "nothing any more", true)
		}
		// Redis stands still, and nothing fails.
		must(t, server.Pause())
		notReady(t, s)
		must(t, server.Continue())
		agree(t, s, "Redis goes on", true)
		must(t, errOf(server.Do(ctx, "FLUSHALL")))
		notReady(t, s)
	})
}

// notReady waits until a service whose Redis is away says so, in all places but the
// replicas' table, which no one knows then.
func notReady(t *testing.T, s *Service) {
	t.Helper()
	brokertest.Eventually(t, "it is not ready", func() bool { return !s.vhosts[0].conditions.Ready() })
	all, o := saysReady(t, s)
	for place, says := range all {
		if says && place != "replica" {
			t.Errorf("%s says that it is ready", place)
		}
	}
	if !strings.Contains(strings.Join(condition.Lines(o.Conditions), "\n"), "redis: ") {
		t.Errorf("conditions: %v", o.Conditions)
	}
	if code, text := get(t, s, "/metrics"); code != 200 || !strings.Contains(text, "\nredrive_store_up 0\n") || !strings.Contains(text, "\nredrive_intake_stopped 1\n") {
		t.Errorf("/metrics: %d, and says nothing of the store", code)
	}
}

// logged is a log of warnings and errors, but for RabbitMQ's, which is not there.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !strings.Contains(string(p), "RabbitMQ") {
		l.text.Write(p)
	}
	return len(p), nil
}

// A stop waits neither for readers nor for senders, and yet the audit log has the result of what they began.
func TestAStopEndsWhatIsUnderWay(t *testing.T) {
	c := testConfig(t)
	c.Broker.URL = "amqp://127.0.0.1:1/"
	log := &logged{}
	s, err := New(c, Options{Version: "test", Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	live, err := client.Get("http://" + s.Addr() + "/api/v1/live")
	must(t, err)
	defer live.Body.Close()
	must(t, errOf(live.Body.Read(make([]byte, 1))))
	reading := make(chan struct{}) // the service asks for the body
	body, never := io.Pipe()
	defer never.Close()
	trace := &httptrace.ClientTrace{Got100Continue: func() { close(reading) }}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "POST", "http://"+s.Addr()+"/api/v1/import", body)
	must(t, err)
	r.Header.Set("Content-Type", "application/jsonl")
	r.Header.Set("Expect", "100-continue")
	client.Transport.(*http.Transport).ExpectContinueTimeout = 0 // it sends when it is asked to
	var sent sync.WaitGroup
	sent.Go(func() {
		if resp, err := client.Do(r); err == nil {
			resp.Body.Close()
		}
	})
	<-reading
	stop()
	must(t, <-ran)
	never.Close()
	sent.Wait()
	if log.text.Len() > 0 {
		t.Errorf("the log has %s", &log.text)
	}
	kept, err := diskstore.Open(c.Store.Disk, diskstore.Options{})
	must(t, err)
	defer kept.Close()
	var all []string
	must(t, audit.New(kept, slog.New(slog.DiscardHandler)).Before(t.Context(), math.MaxInt64, func(e audit.Entry) (bool, error) {
		all = append(all, e.Did+" "+e.Outcome)
		return true, nil
	}))
	if len(all) != 1 || !strings.HasPrefix(all[0], "import failed: ") {
		t.Errorf("the audit log has %q", all)
	}
}

// store.redis.tls takes effect: the service trusts the named CA, presents the named certificate, and refuses a server
// that it does not trust, with the reason.
func TestRedisByTLS(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		dir := t.TempDir()
		cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		ca, err := authority.New(dir)
		must(t, err)
		must(t, ca.Issue(authority.Leaf{User: "client"}, cert, key))
		other, err := authority.New(t.TempDir())
		must(t, err)
		o.Config = "maxmemory 1gb"
		here := []string{"127.0.0.1"}
		o.TLS = &redisnode.TLS{By: ca, Hosts: here}
		open := redisnode.New(t, o)
		o.TLS = &redisnode.TLS{By: ca, Hosts: here, Asks: true}
		asks := redisnode.New(t, o) // for a certificate
		o.TLS = &redisnode.TLS{By: ca, Hosts: []string{"redis.example"}}
		named := redisnode.New(t, o)
		for _, c := range []struct {
			name  string
			redis config.Redis
			want  string // "": it works
		}{
			{"its CA is named", config.Redis{URL: "rediss://" + open.TLSAddr(), CA: ca.CAFile()}, ""},
			{"it asks for a certificate", config.Redis{URL: "rediss://" + asks.TLSAddr(), CA: ca.CAFile(), Cert: cert, Key: key}, ""},
			{"it asks for a certificate, and there is none", config.Redis{URL: "rediss://" + asks.TLSAddr(), CA: ca.CAFile()}, "redis at " + asks.TLSAddr()}, // which closes the connection, and says no more
			{"its CA is not named", config.Redis{URL: "rediss://" + open.TLSAddr()}, "signed by unknown authority; name the CA of its certificate, a file in PEM, with store.redis.tls.ca"},
			{"another CA is named", config.Redis{URL: "rediss://" + open.TLSAddr(), CA: other.CAFile()}, "store.redis.tls.ca"},
			{"it is another server", config.Redis{URL: "rediss://" + named.TLSAddr(), CA: ca.CAFile()}, "127.0.0.1"},
			{"the URL is one without TLS", config.Redis{URL: "redis://" + open.TLSAddr(), CA: ca.CAFile()}, "expected rediss://"},
			{"the port is one without TLS", config.Redis{URL: "rediss://" + open.Addr(), CA: ca.CAFile()}, "redis at " + open.Addr()},
			{"the CA is no certificate", config.Redis{URL: "rediss://" + open.TLSAddr(), CA: key}, "store.redis.tls.ca: " + key},
		} {
			t.Run(c.name, func(t *testing.T) {
				s, err := openAlone(config.Store{Redis: c.redis})
				if c.want != "" {
					for _, part := range strings.Split(c.want, "; ") { // crypto/x509 may say more in between
						if err == nil || !strings.Contains(err.Error(), part) {
							t.Errorf("%v; want %q", err, part)
						}
					}
					return
				}
				must(t, err)
				defer s.Close()
				keeps(t, s)
			})
		}
	})
}

// Each of several servers is verified by its own name, not by that of the first.
func TestServersOfRedisHaveTheirOwnNames(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		ctx := context.Background()
		ca, err := authority.New(t.TempDir())
		must(t, err)
		o.TLS = &redisnode.TLS{By: ca, Hosts: []string{"127.0.0.1"}}
		o.Config = "maxmemory 1gb\ncluster-enabled yes\ntls-cluster yes"
		server := redisnode.New(t, o)
		must(t, errOf(server.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")))
		for state := ""; !strings.Contains(state, "cluster_state:ok"); {
			answer, err := server.Do(ctx, "CLUSTER", "INFO")
			must(t, err)
			state = fmt.Sprint(answer)
		}
		// No one is at the first address, and its name is another.
		s, err := openAlone(config.Store{Redis: config.Redis{URL: "rediss://localhost:1?addr=" + server.TLSAddr(), CA: ca.CAFile()}})
		must(t, err)
		defer s.Close()
		keeps(t, s)
	})
}

func openAlone(s config.Store) (engine, error) {
	return openStore(&config.Config{Store: s}, diskstore.Options{Log: quiet().Log, OnSync: func(time.Duration) {}}, nil)
}

// keeps adds a message to the store and reads it.
func keeps(t *testing.T, s store.Store) {
	t.Helper()
	must(t, s.Add(context.Background(), []*store.Record{storetest.Waiting("q", 0, "x")}))
	if all := storetest.Listed(t, s, store.Range{}); len(all) != 1 {
		t.Errorf("%d records", len(all))
	}
}

// There are receipts for all that RabbitMQ may deliver again when this process ends: what both intakes may have
// outstanding, and half as many besides, since at-least-once dead-lettering may publish acknowledged messages again.
func TestReceiptsCoverWhatIsOutstanding(t *testing.T) {
	if outstanding := prefetch + parkedPrefetch + quarantinePrefetch; store.ReceiptsKept < outstanding+outstanding/2 {
		t.Errorf("%d receipts are kept of a process, and %d messages may be outstanding to it", store.ReceiptsKept, outstanding)
	}
}

// roomOf is a store with little room.
type roomOf struct {
	engine
	free uint64
}

func (s roomOf) Free() (free, reserve uint64, err error) { return s.free, 100 << 20, nil }

func TestThePageSaysThatOnlyAdministratorsCanAct(t *testing.T) {
	for free, short := range map[uint64]bool{100 << 20: false, 99 << 20: true} {
		s := &vhost{store: roomOf{free: free}}
		if said := strings.Join(s.notices(), "\n"); strings.Contains(said, "only administrators") != short || (s.auditShort() != nil) != short {
			t.Errorf("with %d bytes free it says %q", free, said)
		}
	}
}

// Health says how each part is, in the words of the condition that holds.
func TestHealthSaysHowEachPartIs(t *testing.T) {
	h, _ := readyConditions()
	told, err := notify.New(notify.DefaultSettings(), notify.Options{})
	must(t, err)
	s := &vhost{conditions: h, store: roomOf{free: 50 << 30}, queueWatch: &queueWatch{}, notify: told}
	says := func() (text string) {
		for _, p := range s.parts()() {
			text += fmt.Sprintf("%s (%v): %s\n", p.Name, p.Well, p.Text)
		}
		return text
	}
	for _, want := range []string{"Intake (true): receives what fails\n", "Store (true): 50 GiB are free; below 100 MiB nothing",
		"Management API (true): not in the config", "Notifications (true): none"} {
		if got := says(); !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	s.manage = &management.Client{}
	if got := says(); !strings.Contains(got, "Management API (true): has not answered yet\n") {
		t.Error(got)
	}
	h.Put(condition.Condition{Kind: condition.Management, Text: "does not answer"})
	h.Put(condition.Condition{Kind: condition.Parked, Text: "not connected"})
	h.Put(condition.Condition{Kind: condition.Disk, Text: "full"})
	for _, want := range []string{"Intake (false): not connected\n", "Store (false): full\n", "Management API (false): does not answer"} {
		if got := says(); !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	s.queueWatch.last.Store(&lastLook{at: time.Now()})
	h.Put(condition.Condition{Kind: condition.Management})
	if got := says(); !strings.Contains(got, "Management API (true): answers\n") {
		t.Error(got)
	}
}

func TestAPolicysStormIsDrawnOnce(t *testing.T) {
	var s outagePictures
	p := policy.Default()
	p.Name = `<b>&"`
	one := s.draw(t.Context(), p, throttle.Rules{Rate: 5})
	if !strings.HasPrefix(string(one), "<svg ") || strings.Contains(string(one), "<b>") || !strings.Contains(string(one), `role="img" aria-label="Load on an upstream`) {
		t.Errorf("it draws %.300s", one)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Equal(t, s.draw(gone, p, throttle.Rules{Rate: 5}), one, "it is drawn a second time")
	expect.Equal(t, s.draw(gone, p, throttle.Rules{Rate: 4}), "", "a policy that has changed has its old picture")
}

var must, errOf = expect.NoError, expect.ErrOf

// several is a configuration of the virtual hosts /, shop and a/b, without RabbitMQ.
func several(t *testing.T) *config.Config {
	c := testConfig(t)
	c.Broker.URL = "amqp://guest:guest@127.0.0.1:1/"
	c.Broker.VHosts = []config.VHost{{Name: "shop"}, {Name: "a/b"}}
	return c
}

// ask asks a service by its handler, as a user of this machine, with a token or without.
func ask(s *Service, path string, token ...string) (int, string) {
	return send(s, "GET", path, "", token...)
}

func send(s *Service, method, path, body string, token ...string) (int, string) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.RemoteAddr, r.Host = "127.0.0.1:4242", "127.0.0.1:8250"
	r.Header.Set("Content-Type", "application/json")
	for _, secret := range token {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	w := httptest.NewRecorder()
	s.server().Handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// A proxy passes the base path on, or removes it; links have it.
func TestAllIsBelowTheBasePath(t *testing.T) {
	c := several(t)
	c.BasePath = "/tools/redrive"
	s := opened(t, c)
	for _, c := range []struct {
		path string
		code int
		has  string
	}{
		{"/tools/redrive/", 200, `href="/tools/redrive/v/shop/"`},
		{"/", 200, `href="/tools/redrive/v/shop/"`},
		{"/tools/redrive/", 200, `="/tools/redrive/assets/`},
		{"/tools/redrive/v/shop/", 200, `href="/tools/redrive/v/a%2Fb/"`},
		{"/tools/redrive", 307, `"/tools/redrive/"`},
		{"/tools/redrive/api/v1/overview", 200, `127.0.0.1:1/"`},
		{"/tools/redrive/v/shop/api/v1/overview", 200, `127.0.0.1:1/shop`},
		{"/tools/redrive/healthz", 200, ""},
		{"/healthz", 200, ""},
		{"/tools/redrivers/healthz", 404, ""},
	} {
		if code, body := ask(s, c.path); code != c.code || !strings.Contains(body, c.has) {
			t.Errorf("%s answers %d without %s:\n%.2000s", c.path, code, c.has, body)
		}
	}
}

func TestWhereTheFacesOfVirtualHostsAre(t *testing.T) {
	s := opened(t, several(t))
	for _, c := range []struct {
		path string
		code int
		has  string
		not  string
	}{
		{"/", 200, `href="/v/shop/"`, ""},
		{"/v/shop/", 200, `href="/v/a%2Fb/"`, ""},
		{"/v/shop", 307, "/v/shop/", ""},
		{"/v/a%2Fb/api/v1/overview", 200, `/a%2Fb`, `127.0.0.1:1/shop`},
		{"/v/%2F/api/v1/overview", 200, `127.0.0.1:1/"`, ""},
		{"/v/none/api/v1/overview", 404, "there is no virtual host \\\"none\\\" here: `redrive check FILE`", "shop"},
		{"/v/a/b/", 404, "which a proxy may have decoded", ""},
		{"/v/", 404, "there is no virtual host", ""},
		{"/healthz", 200, "ok", ""},
		{"/readyz", 503, "virtual host /: intake: connecting\nvirtual host /: parked: connecting\nvirtual host /: retries: connecting\nvirtual host shop: intake: connecting\n", "\nready"},
		{"/v/shop/readyz", 503, "intake: connecting\n", "virtual host"},
		{"/metrics", 200, `redrive_ready{vhost="a/b"} 0`, `redrive_ready 0`},
		{"/metrics", 200, "\ngo_goroutines ", ""},
		{"/v/shop/metrics", 200, `redrive_ready{vhost="shop"} 0`, `vhost="/"`},
		{"/v/%2F/metrics", 200, `redrive_build_info{version="test",vhost="/"} 1`, "\ngo_goroutines "},
	} {
		if code, text := ask(s, c.path); code != c.code || !strings.Contains(text, c.has) || c.not != "" && strings.Contains(text, c.not) {
			t.Errorf("%s: %d, want %d with %q and without %q:\n%.2000s", c.path, code, c.code, c.has, c.not, text)
		}
	}
	if p := s.Problems(); len(p) != 9 || p[3] != "virtual host shop: intake: connecting" {
		t.Errorf("problems are %q", p)
	}
	// All are ready when each is.
	for i, v := range s.vhosts {
		if code, text := ask(s, "/readyz"); code != 503 {
			t.Errorf("with %d ready: %d %s", i, code, text)
		}
		connected(v.conditions)
	}
	if code, text := ask(s, "/readyz"); code != 200 || text != "ready\n" {
		t.Errorf("all are ready: %d %s", code, text)
	}
}

// Callers without a login do not learn which virtual hosts there are, and those who can read the metrics of one read no
// others.
func TestHealthOfAllTellsNobodyMoreThanThatOfEach(t *testing.T) {
	c := several(t)
	c.Access.SignIn = true
	s := opened(t, c)
	if code, text := ask(s, "/readyz"); code != 503 || text != httpapi.Unsaid+"\n" {
		t.Errorf("ready: %d %s", code, text)
	}
	var secrets []string
	for _, v := range s.vhosts {
		secret, _, err := auth.NewTokens(v.store, v.audit).Create(t.Context(), auth.Caller{Name: "ann", Role: auth.Admin}, auth.NewToken{Name: "prometheus", Role: "viewer"})
		must(t, err)
		secrets = append(secrets, secret)
	}
	for path, want := range map[string][3]int{"/metrics": {401, 401, 401}, "/v/%2F/metrics": {200, 401, 401}, "/v/shop/metrics": {401, 200, 401}, "/v/a%2Fb/metrics": {401, 401, 200}} {
		for i, secret := range secrets {
			if code, text := ask(s, path, secret); code != want[i] || code != 200 && strings.Contains(text, "redrive_") {
				t.Errorf("%s with the token of %d: %d, want %d", path, i, code, want[i])
			}
		}
	}
	if _, text := ask(s, "/readyz", secrets[1]); !strings.Contains(text, "virtual host shop: intake: connecting\n") || strings.Contains(text, "a/b") {
		t.Errorf("ready, to one of shop: %s", text)
	}
}

// A service of one virtual host shows what it did before there could be several.
func TestOneVirtualHostHasNoLabelsAndNoPrefix(t *testing.T) {
	c := testConfig(t)
	c.Broker.URL = "amqp://guest:guest@127.0.0.1:1/shop"
	s := opened(t, c)
	for path, want := range map[string]string{"/metrics": "\nredrive_ready 0\n", "/readyz": "intake: connecting\n", "/v/shop/api/v1/overview": "127.0.0.1:1/shop"} {
		if _, text := ask(s, path); !strings.Contains("\n"+text, want) || strings.Contains(text, "vhost=") || strings.Contains(text, "virtual host") {
			t.Errorf("%s has not %q alone:\n%.2000s", path, want, text)
		}
	}
	if _, text := ask(s, "/metrics"); !strings.Contains(text, "\ngo_goroutines ") || strings.Count(text, "# TYPE redrive_parked ") > 1 {
		t.Errorf("the metrics are %s", text)
	}
	if _, text := ask(s, "/"); strings.Contains(text, `href="/v/`) {
		t.Error("the page leads to other virtual hosts")
	}
}

// A store belongs to the virtual host that used it first, in either engine.
func TestAStoreOfAnotherVirtualHostIsRefused(t *testing.T) {
	redis := redisnode.New(t, redisnode.Options{})
	for _, engine := range []string{"disk", "Redis"} {
		t.Run(engine, func(t *testing.T) {
			c := testConfig(t)
			c.Broker.URL = "amqp://127.0.0.1:1/shop"
			if engine == "Redis" {
				c.Store.Redis.URL = redis.URL()
			}
			open := func(url string) error {
				c.Broker.URL = url
				s, err := New(c, quiet())
				if err == nil {
					err = s.Close()
				}
				return err
			}
			for range 2 {
				must(t, open("amqp://127.0.0.1:1/shop"))
			}
			err := open("amqp://127.0.0.1:1/billing")
			if !errors.Is(err, store.ErrOwner) || !strings.Contains(err.Error(), c.Store.Place()+` keeps the messages of the virtual host "shop", and its messages must not be retried to queues of "billing"`) {
				t.Errorf("another virtual host's: %v", err)
			}
			// One of before it was written down is marked at the next start.
			s, err := openAlone(c.Store)
			must(t, err)
			must(t, errors.Join(s.PutEntries(t.Context(), []store.Entry{{Name: store.OwnerEntry}}), s.Close()))
			must(t, open("amqp://127.0.0.1:1/billing"))
			expect.Err(t, open("amqp://127.0.0.1:1/shop"), store.ErrOwner, "a store of before is not marked")
		})
	}
}

// If one of three virtual hosts cannot start, the others' folders are released.
func TestAStartThatFailsForOneNamesItAndFreesAll(t *testing.T) {
	c := several(t)
	shop := filepath.Join(c.Store.Disk, "vhosts", "shop")
	must(t, os.MkdirAll(filepath.Dir(shop), 0o700))
	must(t, os.WriteFile(shop, nil, 0o600))
	_ = refuses(t, c, `virtual host "shop": `)
	must(t, os.Remove(shop))
	starts(t, c)
}

// A disk that is full in spite of the reserve stops its own virtual host, until there is room.
func TestAFullDiskStopsItsOwnVirtualHostOnly(t *testing.T) {
	var full atomic.Bool
	o := quiet()
	o.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpFileWrite && strings.Contains(op.Path, "/vhosts/shop/") {
			return syscall.ENOSPC
		}
		return nil
	}))
	s, err := New(several(t), o)
	must(t, err)
	defer s.Close()
	keep := func(i int) error {
		return s.vhosts[i].store.PutEntries(context.Background(), []store.Entry{{Name: "test", Value: []byte("kept")}})
	}
	full.Store(true)
	kept := make(chan error, 1)
	go func() { kept <- keep(1) }()
	stands := func() bool { return s.vhosts[1].conditions.Text(of(condition.Disk, "")) != "" }
	brokertest.Eventually(t, "the virtual host stands", stands)
	must(t, keep(0))
	_, text := ask(s, "/readyz")
	if !strings.Contains(text, "virtual host shop: disk: ") || strings.Contains(text, "virtual host /: disk") {
		t.Error(text)
	}
	select {
	case err := <-kept:
		t.Error("acknowledged on a full disk:", err)
	default:
	}
	full.Store(false)
	must(t, <-kept)
	brokertest.Eventually(t, "it goes on", func() bool { return !stands() })
	if e, err := s.vhosts[1].store.Entry(t.Context(), "test"); err != nil || string(e) != "kept" {
		t.Errorf("%q, %v", e, err)
	}
}

// Messages of a virtual host that is no longer served are reported, if there are any.
func TestMessagesOfAVirtualHostThatIsServedNoMore(t *testing.T) {
	c := several(t)
	s, err := New(c, quiet())
	must(t, err)
	keep := func(v *vhost, state store.State) {
		t.Helper()
		must(t, v.store.Add(t.Context(), []*store.Record{{ID: uuid.New(), Queue: "orders", State: state, Due: time.Now(), FirstFailed: time.Now(), FailedAt: time.Now()}}))
	}
	keep(s.vhosts[0], store.Parked)
	keep(s.vhosts[2], store.Parked)
	keep(s.vhosts[2], store.Waiting)
	if len(s.Notices()) > 0 {
		t.Errorf("while all are served: %q", s.Notices())
	}
	must(t, s.Close())
	c.Broker.VHosts = nil
	folder := filepath.Join(c.Store.Disk, "vhosts", "a%2Fb")
	var log bytes.Buffer
	s, err = New(c, Options{Version: "test", Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	want := []string{"the folder " + folder + ` holds messages (2) of the virtual host "a/b", which is not served: list it under broker.vhosts, or move the folder away`}
	if is := s.Notices(); !slices.Equal(is, want) {
		t.Errorf("notices are %q, want %q", is, want)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	must(t, s.Run(ended))
	if !strings.Contains(log.String(), "level=WARN msg=\"the folder ") {
		t.Errorf("the log has %s", &log)
	}
	must(t, os.RemoveAll(folder))
	must(t, os.Mkdir(folder, 0o700))
	s, err = New(c, quiet())
	must(t, err)
	defer s.Close()
	if len(s.Notices()) > 0 {
		t.Errorf("of none that holds any: %q", s.Notices())
	}
}

// New policies take effect in their virtual hosts; a virtual host that is no longer listed stays as it was until the
// next start.
func TestReloadOfSeveralVirtualHosts(t *testing.T) {
	load := func(yaml string) *config.Config {
		t.Helper()
		file := filepath.Join(t.TempDir(), "redrive.yaml")
		must(t, os.WriteFile(file, []byte(yaml), 0o600))
		c, err := config.Load(file, func(string) string { return "" })
		must(t, err)
		return c
	}
	c := load("broker: {url: 'amqp://127.0.0.1:1/', vhosts: [shop, crm]}\nlisten: 127.0.0.1:0\nstore: {disk: " + t.TempDir() + "}\npolicies: [{name: old, queues: ['*']}]")
	s := opened(t, c)
	inForce := func() (all []string) {
		for _, t := range s.vhosts {
			for _, p := range t.inForce.Policies() {
				all = append(all, t.config.VHost()+" "+p.Name)
			}
		}
		return all
	}
	s.reload(load("broker: {url: 'amqp://127.0.0.1:1/', vhosts: [shop]}\npolicies: [{name: new, queues: ['*']}, {name: only, queues: [a], vhosts: [shop]}]"), nil)
	if is := inForce(); !slices.Equal(is, []string{"/ new", "shop new", "shop only", "crm old"}) {
		t.Errorf("in force are %q", is)
	}
	s.reload(nil, errors.New("line 3"))
	if is := inForce(); !slices.Equal(is, []string{"/ new", "shop new", "shop only", "crm old"}) {
		t.Errorf("after one that was refused, in force are %q", is)
	}
	if _, text := ask(s, "/metrics"); !strings.Contains(text, `redrive_config_loads_total{result="refused",vhost="crm"} 1`) || !strings.Contains(text, `redrive_config_loads_total{result="ok",vhost="shop"} 1`) {
		t.Error(text)
	}
}
