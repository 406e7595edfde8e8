package rabbitnode_test

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

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// TestMain is also the owner of a node, in a process that a test can kill.
func TestMain(m *testing.M) {
	root, owns := ownedRoot()
	if !owns {
		os.Exit(m.Run())
	}
	n, err := rabbitnode.Start(context.Background(), rabbitnode.Options{Root: root})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("127.0.0.1:%d\n", n.Port())
	select {} // until it is killed
}

func TestANodeEndsWhenItsOwnerIsKilled(t *testing.T) {
	for _, b := range brokertest.All(t) {
		t.Run("RabbitMQ "+b.Version, func(t *testing.T) {
			if !b.Private {
				t.Skip("not run: a broker that was given with BROKERS is not ours to end")
			}
			t.Parallel()
			endsWithOwner(t, b.Root, "redrive-rabbitmq-*/rabbitmq.conf", "127.0.0.1:")
		})
	}
}

// owner, in the environment of a test's program, is the root of the server that it is to own.
const owner = "REDRIVE_TEST_OWN_SERVER_IN"

// ownedRoot is the root of the server that this process is to own, and whether it is to own any:
// TestMain then starts it, prints where it listens, and waits until it is killed.
func ownedRoot() (root string, owns bool) { return os.LookupEnv(owner) }

// endsWithOwner kills the owner of a server, and waits until no one listens and the server's
// folder is gone: the one whose file, a pattern in its temporary folder, says where it listens, by
// words before the port.
func endsWithOwner(t *testing.T, root, file, words string) {
	t.Helper()
	tmp := t.TempDir()
	c := exec.Command(os.Args[0])
	c.Env, c.Stderr = append(os.Environ(), owner+"="+root, "TMPDIR="+tmp), os.Stderr
	out, err := c.StdoutPipe()
	expect.NoError(t, err)
	expect.NoError(t, c.Start())
	addr, err := bufio.NewReader(out).ReadString('\n')
	if killed := c.Process.Kill(); err != nil || killed != nil {
		t.Fatalf("the owner said %q: %v, %v", addr, err, killed)
	}
	_ = c.Wait()
	if root != "" {
		tmp = filepath.Join(root, "tmp")
	}
	_, port, _ := strings.Cut(addr, ":") // with the end of the line
	left := func() string {
		if conn, err := net.Dial("tcp", strings.TrimSpace(addr)); err == nil {
			conn.Close()
			return "a process listens at " + addr
		}
		all, _ := filepath.Glob(filepath.Join(tmp, file))
		for _, path := range all {
			if data, _ := os.ReadFile(path); strings.Contains(string(data), words+port) {
				return path
			}
		}
		return ""
	}
	expect.Eventually(t, "no one listens, and the node's folder is gone", func() bool { return left() == "" })
}
