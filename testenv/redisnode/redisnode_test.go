package redisnode_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/redisnode"
)

const owner = "REDRIVE_TEST_OWN_SERVER_OF"

// TestMain is also the owner of a server, in a process that a test can kill.
func TestMain(m *testing.M) {
	root, own := os.LookupEnv(owner)
	if !own {
		os.Exit(m.Run())
	}
	s, err := redisnode.Start(context.Background(), redisnode.Options{Root: root})
	if err == nil {
		err = s.Pause() // a server that does nothing ends too
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.Addr())
	select {} // until it is killed
}

// must is the answer to a command as text.
func must(t *testing.T, s *redisnode.Server, command ...string) string {
	t.Helper()
	answer, err := s.Do(context.Background(), command...)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(answer)
}

// eventually asks until it is so, and fails after a minute.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute still not so: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func TestAServerEndsWhenItsOwnerIsKilled(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		tmp := t.TempDir()
		c := exec.Command(os.Args[0])
		c.Env, c.Stderr = append(os.Environ(), owner+"="+o.Root, "TMPDIR="+tmp), os.Stderr
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		addr, err := bufio.NewReader(out).ReadString('\n')
		addr = strings.TrimSpace(addr)
		if killed := c.Process.Kill(); err != nil || killed != nil {
			t.Fatalf("the owner said %q: %v, %v", addr, err, killed)
		}
		_ = c.Wait()
		eventually(t, "no process listens", func() bool {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				conn.Close()
			}
			return err != nil
		})
		if o.Root != "" {
			tmp = filepath.Join(o.Root, "tmp")
		}
		_, port, _ := net.SplitHostPort(addr)
		eventually(t, "its folder is gone", func() bool {
			confs, _ := filepath.Glob(filepath.Join(tmp, "redrive-redis-*", "server.conf"))
			for _, conf := range confs {
				data, _ := os.ReadFile(conf)
				if strings.Contains(string(data), "port "+port+"\n") {
					return false
				}
			}
			return true
		})
	})
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
		if _, err := redisnode.Start(context.Background(), o); err == nil || !strings.Contains(err.Error(), "no-such-option") {
			t.Errorf("a server with a wrong configuration: %v", err)
		}
	})
}
