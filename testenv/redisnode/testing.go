package redisnode

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

// Each runs a test on Redis and on Valkey, side by side. One that is not installed
// fails the test when it starts a server: a suite that ran nowhere must not look green.
func Each(t *testing.T, test func(*testing.T, Options)) {
	t.Helper()
	for _, o := range Both(t) {
		t.Run(o.Name(), func(t *testing.T) {
			t.Parallel()
			test(t, o)
		})
	}
}

// Both are Redis and Valkey.
func Both(testing.TB) []Options {
	return []Options{{}, {Root: filepath.Join(subprocess.Installed(), "sid")}}
}

// New is a server for one test.
func New(t testing.TB, o Options) *Server {
	t.Helper()
	s := begin(t, o, "")
	field := map[string]string{"Redis": "redis_version", "Valkey": "valkey_version"}[o.Name()]
	t.Logf("on %s %s", o.Name(), s.Info(context.Background(), "server", field))
	return s
}

// begin is start for one test, which the server ends with; where it fails it shows what the
// server said.
func begin(t testing.TB, o Options, config string, args ...string) *Server {
	t.Helper()
	s, err := start(context.Background(), o, config, args...)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s at %s said:\n%s", o.Name(), s.Addr(), s.LastWords())
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

var must = expect.NoError

// Authority is a CA of a test's own.
type Authority struct {
	Cert []byte // in PEM
	t    testing.TB
	ca   *authority.Authority
}

// NewAuthority makes one, whose certificates are valid for as long as a test may last.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	ca, err := authority.New(t.TempDir())
	must(t, err)
	return &Authority{Cert: read(t, ca.CAFile()), t: t, ca: ca}
}

// Identity is one of a server with these addresses or names, or of a client.
func (a *Authority) Identity(names ...string) *Identity {
	a.t.Helper()
	cert, key := a.File(nil), a.File(nil)
	must(a.t, a.ca.Issue(authority.Leaf{User: names[0], Hosts: names}, cert, key))
	return &Identity{Cert: read(a.t, cert), Key: read(a.t, key)}
}

// File writes PEM to a file of the test's, and says where.
func (a *Authority) File(data []byte) string {
	a.t.Helper()
	path := filepath.Join(a.t.TempDir(), "file.pem")
	must(a.t, os.WriteFile(path, data, 0o600))
	return path
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return data
}
