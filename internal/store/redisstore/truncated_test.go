package redisstore_test

import (
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// A server that dies in the middle of a write leaves half a script in its append-only file. Redis
// 7.0 cuts off the command that is not whole, and leaves the MULTI and the commands before it, to
// which it appends. The next start takes what follows for a part of that script. When a whole one
// follows, both are applied: a change that was not confirmed, and was done again since, is half
// there. When only single commands follow, they are lost, though they were confirmed. A rewrite of
// the file before that start repairs it, as docs/how-to/redis.md says. [measured on Redis 7.0.15;
// Valkey 9.1.2 cuts off the whole script]
func TestRedis70LeavesHalfAScriptInItsFile(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		server := redisnode.New(t, o)
		do := func(s *redisnode.Server, command ...string) {
			t.Helper()
			if _, err := s.Do(ctx, command...); err != nil {
				t.Fatal(err)
			}
		}
		do(server, "SET", "before", "1")
		do(server, "EVAL", `redis.call("SET", "first", "1") redis.call("SET", "second", "1")`, "0")
		written, err := server.Written()
		if err != nil {
			t.Fatal(err)
		}
		server.Kill()
		const exec, last = len("*1\r\n$4\r\nEXEC\r\n"), len("second\r\n$1\r\n1\r\n")
		whole := []string{"EVAL", `redis.call("SET", "after", "1") redis.call("SET", "later", "1")`, "0"}
		single := []string{"SET", "after", "1"}
		right := map[string]int64{"before": 1, "first": 0, "second": 0, "after": 1}
		for name, c := range map[string]struct {
			next     []string
			repaired bool
			on70     map[string]int64
		}{
			"a script follows":                 {whole, false, map[string]int64{"before": 1, "first": 1, "second": 0, "after": 1}},
			"a single write follows":           {single, false, map[string]int64{"before": 1, "first": 0, "second": 0, "after": 0}},
			"a script follows, repaired":       {whole, true, right},
			"a single write follows, repaired": {single, true, right},
		} {
			again := redisnode.AfterPowerCut(t, server, written-int64(exec+last))
			if !again.HasCutOff() {
				t.Error("it does not say that it has cut off the end of its file")
			}
			do(again, c.next...)
			if c.repaired {
				if err := again.RewriteLog(ctx); err != nil {
					t.Fatal(err)
				}
			}
			again.Kill()
			if err := again.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			want, version := right, again.Info(ctx, "server", "redis_version")
			if o.Root == "" && strings.HasPrefix(version, "7.0.") {
				want = c.on70
			}
			for key, want := range want {
				if n, err := again.Do(ctx, "EXISTS", key); err != nil || n != want {
					t.Errorf("%s %s: %s: after two starts %q exists %v times, not %d: %v", o.Name(), version, name, key, n, want, err)
				}
			}
		}
	})
}
