package memredis_test

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/testenv/memredis"
)

// client connects as redisstore does.
func client(t *testing.T, s *memredis.Server) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"memory:6379"}, DisableCache: true, DisableRetry: true,
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return s.Dial(ctx, "a test")
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// do returns an answer as text: an error, nil or what it says.
func do(c rueidis.Client, args ...string) string {
	m, err := c.Do(context.Background(), c.B().Arbitrary(args...).Build()).ToMessage()
	if err != nil {
		return err.Error()
	}
	return m.String()
}

// inBubble runs a test in fake time.
func inBubble(t *testing.T, o memredis.Options, test func(*testing.T, *memredis.Server)) {
	synctest.Test(t, func(t *testing.T) {
		s := memredis.New(o)
		t.Cleanup(s.Close)
		test(t, s)
	})
}

// What was synced outlives a crash, and what was not only as far as it survives.
func TestACrashLeavesWhatWasSynced(t *testing.T) {
	inBubble(t, memredis.Options{EverySecond: true}, func(t *testing.T, s *memredis.Server) {
		c := client(t, s)
		_ = do(c, "SET", "synced", "1")
		time.Sleep(1500 * time.Millisecond)
		for _, key := range []string{"a", "b", "c"} {
			_ = do(c, "SET", key, "1")
		}
		n := 0
		s.Crash(func() bool { n++; return n < 2 })
		if got := do(c, "GET", "a"); !strings.Contains(got, "closed pipe") {
			t.Errorf("a server that is down answers %s", got)
		}
		s.Start(0)
		c = client(t, s)
		var there []string
		for _, key := range []string{"synced", "a", "b", "c"} {
			if do(c, "EXISTS", key) != do(c, "EXISTS", "none") {
				there = append(there, key)
			}
		}
		if got := strings.Join(there, " "); got != "synced a" {
			t.Errorf("after the crash there are %s", got)
		}
	})
}

// A script's flags say what it may do.
func TestScriptsKeepToTheirFlags(t *testing.T) {
	inBubble(t, memredis.Options{}, func(t *testing.T, s *memredis.Server) {
		c := client(t, s)
		const sets = "\nreturn redis.call('SET', KEYS[1], 'x')"
		s.SetMaxMemory(1)
		for text, want := range map[string]string{
			"#!lua" + sets:                                   "OOM ",
			"#!lua flags=allow-oom" + sets:                   "OK",
			"#!lua flags=no-writes" + sets:                   "Write commands are not allowed",
			"#!lua flags=allow-oom\nreturn nosuch":           "nonexistent global variable",
			"#!lua flags=allow-oom\nnosuch = 1":              "readonly",
			"#!lua flags=nosuch\nreturn 1":                   "Unexpected flag",
			"#!lua flags=allow-oom\nreturn redis.call('GE')": "unknown command",
		} {
			if got := do(c, "EVAL", text, "1", "k"); !strings.Contains(got, want) {
				t.Errorf("%q: %s, want %s", text, got, want)
			}
		}
		s.SetMaxMemory(0)
		s.SetReadOnly(true)
		if got := do(c, "EVAL", "#!lua"+sets, "1", "k"); !strings.HasPrefix(got, "READONLY") {
			t.Errorf("a replica answers %s", got)
		}
	})
}

// Faults: a command that is done and not answered, one that is not done, and one that is late.
func TestFaults(t *testing.T) {
	var next memredis.Fault
	inBubble(t, memredis.Options{Fault: func(c memredis.Command) memredis.Fault {
		f := next
		next = memredis.Fault{}
		return f
	}}, func(t *testing.T, s *memredis.Server) {
		c := client(t, s)
		for _, f := range []struct {
			fault memredis.Fault
			said  string
			value string
		}{
			{memredis.Fault{CutAnswer: true}, "EOF", "1"},
			{memredis.Fault{Cut: true}, "EOF", "1"},
			{memredis.Fault{Error: "BUSY"}, "BUSY", "1"},
			{memredis.Fault{Late: time.Second}, "2", "2"},
			{memredis.Fault{AnswerLate: time.Second}, "3", "3"},
		} {
			next = f.fault
			began := time.Now()
			if got := do(c, "HINCRBY", "h", "n", "1"); !strings.Contains(got, f.said) {
				t.Errorf("%+v: %s", f.fault, got)
			}
			if took := time.Since(began); took != f.fault.Late+f.fault.AnswerLate {
				t.Errorf("%+v took %s", f.fault, took)
			}
			if got := do(c, "HGET", "h", "n"); !strings.Contains(got, f.value) {
				t.Errorf("%+v: then it is %s", f.fault, got)
			}
		}
	})
}
