package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// several is a configuration of the virtual hosts /, shop and a/b, without RabbitMQ.
func several(t *testing.T) *config.Config {
	c := testConfig(t)
	c.Broker.URL = "amqp://guest:guest@127.0.0.1:1/"
	c.Broker.VHosts = []config.VHost{{Name: "shop"}, {Name: "a/b"}}
	return c
}

// ask asks a service by its handler, as somebody on this machine.
func ask(s *Service, path string) (int, string) {
	r := httptest.NewRequest("GET", path, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:4242", "127.0.0.1:8250"
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
		{"/v/a/b/", 404, "there is no virtual host", ""},
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
		for _, part := range []string{partIntake, partParked, partPublish} {
			v.health.set(part, "")
		}
	}
	if code, text := ask(s, "/readyz"); code != 200 || text != "ready\n" {
		t.Errorf("all are ready: %d %s", code, text)
	}
}

// Who is no one is not told which virtual hosts there are, and who can read the metrics
// of one reads none of the others.
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
	as := func(secret, path string) (int, string) {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		w := httptest.NewRecorder()
		s.server().Handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for path, want := range map[string][3]int{"/metrics": {401, 401, 401}, "/v/%2F/metrics": {200, 401, 401}, "/v/shop/metrics": {401, 200, 401}, "/v/a%2Fb/metrics": {401, 401, 200}} {
		for i, secret := range secrets {
			if code, text := as(secret, path); code != want[i] || code != 200 && strings.Contains(text, "redrive_") {
				t.Errorf("%s with the token of %d: %d, want %d", path, i, code, want[i])
			}
		}
	}
	if _, text := as(secrets[1], "/readyz"); !strings.Contains(text, "virtual host shop: intake: connecting\n") || strings.Contains(text, "a/b") {
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

// A store is the virtual host's that used it first, in either engine.
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
			s, err := OpenStore(c.Store, slog.New(slog.DiscardHandler))
			must(t, err)
			must(t, errors.Join(s.PutEntries(t.Context(), []store.Entry{{Name: store.OwnerEntry}}), s.Close()))
			must(t, open("amqp://127.0.0.1:1/billing"))
			if err := open("amqp://127.0.0.1:1/shop"); !errors.Is(err, store.ErrOwner) {
				t.Errorf("a store of before is not marked: %v", err)
			}
		})
	}
}

// Of one virtual host out of three that cannot start, the others' folders are released.
func TestAStartThatFailsForOneNamesItAndFreesAll(t *testing.T) {
	c := several(t)
	shop := filepath.Join(c.Store.Disk, "vhosts", "shop")
	must(t, os.MkdirAll(filepath.Dir(shop), 0o700))
	must(t, os.WriteFile(shop, nil, 0o600))
	if _, err := New(c, quiet()); err == nil || !strings.Contains(err.Error(), `virtual host "shop": `) {
		t.Errorf("it says: %v", err)
	}
	must(t, os.Remove(shop))
	s, err := New(c, quiet())
	must(t, err)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// What a virtual host left behind that is served no more is reported, once it is any.
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
	if err := os.Mkdir(folder, 0o700); err != nil { // as with the audit log alone
		t.Fatal(err)
	}
	if s, err = New(c, quiet()); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if len(s.Notices()) > 0 {
		t.Errorf("of none that holds any: %q", s.Notices())
	}
}

// New policies are in force for each virtual host that they are for; one that is listed
// no more goes on as it was until the next start.
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
			for _, p := range t.intake.Policies() {
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
