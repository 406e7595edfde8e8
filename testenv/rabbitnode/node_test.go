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
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

const owner = "REDRIVE_TEST_OWN_NODE_OF"

// TestMain is also the owner of a node, in a process that a test can kill.
func TestMain(m *testing.M) {
	root, own := os.LookupEnv(owner)
	if !own {
		os.Exit(m.Run())
	}
	n, err := rabbitnode.Start(context.Background(), rabbitnode.Options{Root: root})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(n.Port())
	select {} // until it is killed
}

func TestANodeEndsWhenItsOwnerIsKilled(t *testing.T) {
	for _, b := range brokertest.All(t) {
		t.Run("RabbitMQ "+b.Version, func(t *testing.T) {
			if !b.Private {
				t.Skip("not run: a broker that was given with BROKERS is not ours to end")
			}
			t.Parallel()
			tmp := t.TempDir()
			c := exec.Command(os.Args[0])
			c.Env, c.Stderr = append(os.Environ(), owner+"="+b.Root, "TMPDIR="+tmp), os.Stderr
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			port, err := bufio.NewReader(out).ReadString('\n')
			port = strings.TrimSpace(port)
			if killed := c.Process.Kill(); err != nil || killed != nil {
				t.Fatalf("the owner said %q: %v, %v", port, err, killed)
			}
			_ = c.Wait()
			brokertest.Eventually(t, "no process listens", func() bool {
				conn, err := net.Dial("tcp", "127.0.0.1:"+port)
				if err == nil {
					conn.Close()
				}
				return err != nil
			})
			if b.Root != "" {
				tmp = filepath.Join(b.Root, "tmp")
			}
			brokertest.Eventually(t, "its folder is gone", func() bool {
				confs, _ := filepath.Glob(filepath.Join(tmp, "redrive-rabbitmq-*", "rabbitmq.conf"))
				for _, conf := range confs {
					data, _ := os.ReadFile(conf)
					if strings.Contains(string(data), "127.0.0.1:"+port+"\n") {
						return false
					}
				}
				return true
			})
		})
	}
}
