// Package owned checks that a server ends when the process does that owns it, however that ends.
package owned

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/expect"
)

// owner, in the environment of a test's program, is the root of the server that it is to own.
const owner = "REDRIVE_TEST_OWN_SERVER_IN"

// Root is the root of the server that this process is to own, and whether it is to own any:
// TestMain then starts it, prints where it listens, and waits until it is killed.
func Root() (root string, owns bool) { return os.LookupEnv(owner) }

// EndsWithOwner kills the owner of a server, and waits until no one listens and the server's
// folder is gone: the one whose file, a pattern in its temporary folder, says where it listens, by
// words before the port.
func EndsWithOwner(t *testing.T, root, file, words string) {
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
	for deadline := time.Now().Add(time.Minute); left() != ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a minute after its owner was killed there is still %s", left())
		}
	}
}
