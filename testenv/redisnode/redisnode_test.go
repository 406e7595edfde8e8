package redisnode_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// must is the answer to a command as text.
func must(t *testing.T, s *redisnode.Server, command ...string) string {
	t.Helper()
	answer, err := s.Do(context.Background(), command...)
	expect.NoError(t, err)
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
		expect.NoError(t, s.Restart(ctx))
		expect.Equal(t, must(t, s, "GET", "a"), "1", "after a kill")
		expect.NoError(t, s.Pause())
		soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		if _, err := s.Do(soon, "PING"); err == nil || soon.Err() == nil {
			t.Errorf("a paused server answers: %v", err)
		}
		expect.NoError(t, s.Continue())
		expect.Equal(t, must(t, s, "GET", "a"), "1", "after a pause")
		expect.Equal(t, must(t, s, "EVAL", "return {1, false, {'x', ''}}", "0"), "[1 <nil> [x ]]", "a script")
		expect.ErrSays(t, expect.ErrOf(s.Do(ctx, "NONSENSE")), "an unknown command", "unknown command")
	})
}

func TestConfigOfATestWins(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		o.Config = "appendfsync everysec\nmaxmemory 50mb"
		s := redisnode.New(t, o)
		expect.Equal(t, must(t, s, "CONFIG", "GET", "appendfsync"), "[appendfsync everysec]", "the option")
		expect.Equal(t, must(t, s, "CONFIG", "GET", "maxmemory"), "[maxmemory 52428800]", "the option")
		o.Config = "no-such-option 1"
		_, err := redisnode.Start(context.Background(), o)
		expect.ErrSays(t, err, "a server with a wrong configuration", "no-such-option")
	})
}
