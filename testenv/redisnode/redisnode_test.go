package redisnode_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// must is the answer to a command as text.
func must(t *testing.T, s *redisnode.Server, command ...string) string {
	t.Helper()
	answer, err := s.Do(context.Background(), command...)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(answer)
}

func TestAServerKeepsWhatItAnswered(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		ctx := context.Background()
		s := redisnode.New(t, o)
		must(t, s, "SET", "a", "1")
		s.Kill()
		if _, err := s.Do(ctx, "PING"); err == nil {
			t.Error("a killed server answers")
		}
		if err := s.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		if got := must(t, s, "GET", "a"); got != "1" {
			t.Errorf("after a kill: %s", got)
		}
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		if _, err := s.Do(soon, "PING"); err == nil || soon.Err() == nil {
			t.Errorf("a paused server answers: %v", err)
		}
		if err := s.Continue(); err != nil {
			t.Fatal(err)
		}
		if got := must(t, s, "GET", "a"); got != "1" {
			t.Errorf("after a pause: %s", got)
		}
		if got := must(t, s, "EVAL", "return {1, false, {'x', ''}}", "0"); got != "[1 <nil> [x ]]" {
			t.Errorf("a script answers %s", got)
		}
		if _, err := s.Do(ctx, "NONSENSE"); err == nil || !strings.Contains(err.Error(), "unknown command") {
			t.Errorf("an unknown command: %v", err)
		}
	})
}

func TestConfigOfATestWins(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		o.Config = "appendfsync everysec\nmaxmemory 50mb"
		s := redisnode.New(t, o)
		if got := must(t, s, "CONFIG", "GET", "appendfsync"); got != "[appendfsync everysec]" {
			t.Error(got)
		}
		if got := must(t, s, "CONFIG", "GET", "maxmemory"); got != "[maxmemory 52428800]" {
			t.Error(got)
		}
		o.Config = "no-such-option 1"
		_, err := redisnode.Start(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), "no-such-option") {
			t.Errorf("a server with a wrong configuration: %v", err)
		}
	})
}
