package redisnode

import (
	"context"
	"path/filepath"
	"testing"

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
	s, err := Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	owned(t, s.Stop, s)
	version := s.Info(context.Background(), "server", "redis_version")
	if o.Root != "" {
		version = s.Info(context.Background(), "server", "valkey_version")
	}
	t.Logf("on %s %s", o.Name(), version)
	return s
}

// AfterPowerCut is StartAfterPowerCut for one test.
func AfterPowerCut(t testing.TB, s *Server, synced int64) *Server {
	t.Helper()
	again, err := s.StartAfterPowerCut(context.Background(), synced)
	if err != nil {
		t.Fatal(err)
	}
	owned(t, again.Stop, again)
	return again
}

// NewSentinel is a Sentinel for one test.
func NewSentinel(t testing.TB, o Options) *Sentinel {
	t.Helper()
	s, err := StartSentinel(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	owned(t, s.Stop, append(s.Sentinels, s.Servers...)...)
	return s
}

// NewCluster is a Cluster for one test.
func NewCluster(t testing.TB, o Options) *Cluster {
	t.Helper()
	c, err := StartCluster(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	owned(t, c.Stop, c.Servers...)
	return c
}

// owned ends servers with the test, and tells what they said when it failed.
func owned(t testing.TB, stop func() error, servers ...*Server) {
	t.Cleanup(func() {
		if t.Failed() {
			for _, s := range servers {
				t.Logf("%s at %s said:\n%s", s.opts.Name(), s.Addr(), s.LastWords())
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
