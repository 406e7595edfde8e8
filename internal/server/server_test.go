package server

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

func testConfig(t *testing.T) *config.Config {
	c := config.Default()
	c.Store.Disk, c.Listen = t.TempDir(), "127.0.0.1:0"
	return c
}

func quiet() Options { return Options{Version: "test", Log: slog.New(slog.DiscardHandler)} }

func TestOneServiceOwnsADataFolder(t *testing.T) {
	c := testConfig(t)
	first, err := New(c, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(c, quiet()); !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), c.Store.Disk) {
		t.Errorf("a second one says: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := New(c, quiet())
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// A start that fails must leave the data folder free for the next.
func TestAPortInUseFreesTheDataFolder(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := testConfig(t)
	c.Listen = taken.Addr().String()
	if _, err := New(c, quiet()); err == nil || !strings.Contains(err.Error(), c.Listen) {
		t.Fatalf("it says: %v", err)
	}
	c.Listen = "127.0.0.1:0"
	s, err := New(c, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestARefusedConfigLeavesTheOldPolicies(t *testing.T) {
	s, err := New(testConfig(t), quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	inForce := func() string { return s.vhosts[0].intake.Policies()[0].Name }

	s.reload(nil, errors.New("line 3"))
	if got := inForce(); got != "default" {
		t.Errorf("policy %q is in force after a refused one", got)
	}
	if got := gauge(t, s.vhosts[0].metrics, `redrive_config_loads_total{result="refused"}`); got != "1" {
		t.Errorf("%s loads were refused", got)
	}
	next := *s.config
	next.Decode.Protobuf.Files = []string{"none.proto"}
	s.reload(&next, nil)
	if got := gauge(t, s.vhosts[0].metrics, `redrive_config_loads_total{result="refused"}`); got != "2" {
		t.Errorf("%s loads were refused; one names a file that is not there", got)
	}
	schema := filepath.Join(t.TempDir(), "a.proto")
	if err := os.WriteFile(schema, []byte(`syntax = "proto3"; message A { string name = 1; }`), 0o600); err != nil {
		t.Fatal(err)
	}
	next.Decode.Protobuf = decode.Protobuf{Files: []string{schema}, Queues: []decode.QueueType{{Queues: []string{"orders"}, Message: "A"}}}
	p := policy.Default()
	p.Name = "orders"
	next.Policies = policy.Set{p}
	next.Throttle = map[string]throttle.Rules{"orders": {Rate: 5, Breaker: &throttle.Breaker{}}}
	next.Redirects = map[string]string{"old": "new"}
	s.reload(&next, nil)
	if all, err := s.vhosts[0].inspect.Policies(t.Context(), auth.Caller{Role: auth.Viewer}); err != nil || all[0].Limits != "5/s, breaker" || len(all[0].Redirects) != 1 {
		t.Errorf("people see %+v, %v", all, err)
	}
	if got := inForce(); got != "orders" {
		t.Errorf("policy %q is in force", got)
	}
	schemaInForce := func() {
		t.Helper()
		if got := s.vhosts[0].decoder.Decode(t.Context(), decode.Body{Bytes: []byte("\n\x03ann"), Queue: "orders"}); !strings.Contains(got.Text, `"name": "ann"`) {
			t.Errorf("a body is read as %s", got.Text)
		}
	}
	schemaInForce()
	if got := gauge(t, s.vhosts[0].metrics, `redrive_config_loads_total{result="ok"}`); got != "1" {
		t.Errorf("%s loads were good", got)
	}

	next.Decode = decode.Options{}
	next.Notify.Routes = []notify.Route{{Name: "a", URL: "nonsense://a"}}
	s.reload(&next, nil)
	if got := gauge(t, s.vhosts[0].metrics, `redrive_config_loads_total{result="refused"}`); got != "3" {
		t.Errorf("%s loads were refused; one has no notifier's URL", got)
	}
	schemaInForce()
}

// The status must not wait for a connection, nor show the broker's password.
func TestStatusBeforeAnyConnection(t *testing.T) {
	c := testConfig(t)
	c.Broker.URL = "amqp://shop:s3cret@127.0.0.1:1/"
	s, err := New(c, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	st, err := s.vhosts[0].inspect.Overview(t.Context(), auth.Caller{Name: "ann", Role: auth.Viewer})
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Problems) != 3 || len(st.Queues) != 0 || strings.Contains(st.Broker, "s3cret") || !strings.Contains(st.Broker, "127.0.0.1:1") {
		t.Errorf("the status is %+v", st)
	}
}
