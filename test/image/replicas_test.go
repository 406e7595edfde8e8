package image_test

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// replicas runs what the Compose file runs, by hand, since Compose needs Docker: three
// containers of the image with its redrive.yaml and secrets, a RabbitMQ with its users, a
// Valkey with its valkey.conf and users. A replica is killed while messages fail and come
// back, and all come back.
func replicas(p *podman, v *brokertest.VHost) {
	t := p.t
	files := prepareCompose(t)
	files.users(v)
	valkey := startValkey(t, files)
	config := files.read("redrive.yaml")
	for was, is := range map[string]string{"rabbitmq:5672": hostOf(t, v.AMQP), "rabbitmq:15672": hostOf(t, v.Management), "valkey:6379": valkey} {
		if !strings.Contains(config, was) {
			t.Fatalf("redrive.yaml does not name %s", was)
		}
		config = strings.ReplaceAll(config, was, is)
	}
	var containers []string
	for range 3 {
		address := freeAddress(t)
		file := filepath.Join(t.TempDir(), "redrive.yaml")
		if err := os.WriteFile(file, []byte(strings.Replace(config, "0.0.0.0:8250", address, 1)), 0o444); err != nil {
			t.Fatal(err)
		}
		flags := []string{"--env", "REDRIVE_ADDRESS=" + address, "--volume", file + ":/etc/redrive/redrive.yaml:ro"}
		for _, name := range []string{"broker", "redis"} {
			flags = append(flags, "--env", "REDRIVE_"+strings.ToUpper(name)+"_PASSWORD_FILE=/run/secrets/"+name+"-password",
				"--volume", files.dir+"/secrets/"+name+"-password:/run/secrets/"+name+"-password:ro")
		}
		c := p.serve(flags...)
		defer p.remove(c)
		containers = append(containers, c)
	}
	for _, c := range containers {
		brokertest.Eventually(t, "each replica is ready", func() bool {
			out, err := p.try("exec", "--env", "REDRIVE_USER=admin", "--env", "REDRIVE_PASSWORD="+files.read("secrets/admin-password"), c, program, "status")
			return err == nil && strings.Contains(out, "ready: nothing is wrong")
		})
	}

	v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters})
	consumer := v.Consume("orders")
	const messages = 300
	back := map[string]string{} // body: id
	for i := range messages {
		v.Publish("", "orders", amqp.Publishing{Body: fmt.Append(nil, i)})
	}
	for killed := false; len(back) < messages; {
		d := consumer.Next()
		id, _ := d.Headers[wire.HeaderID].(string)
		if id == "" {
			if err := d.Reject(false); err != nil {
				t.Fatal(err)
			}
			continue
		}
		// One that comes twice after a kill has the same id.
		if was := back[string(d.Body)]; was != "" && was != id {
			t.Errorf("message %s came as %s and %s", d.Body, was, id)
		}
		back[string(d.Body)] = id
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
		if !killed {
			p.run("kill", containers[0])
			killed = true
		}
	}
}

func hostOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// startValkey starts the Valkey that is beside RabbitMQ 4, with the configuration and the
// users of the Compose file, and tells where it is.
func startValkey(t *testing.T, files compose) (address string) {
	t.Helper()
	var system string
	for _, b := range brokertest.All(t) {
		if _, err := os.Stat(b.Root + "/usr/bin/valkey-server"); b.Root != "" && err == nil {
			system = b.Root
		}
	}
	if system == "" {
		t.Fatal("this needs Valkey: run `make test`, or `make install-valkey` once")
	}
	dir, err := os.MkdirTemp(system+"/tmp", "redrive-valkey-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	inside := strings.TrimPrefix(dir, system)
	config := files.read("valkey.conf")
	for was, is := range map[string]string{"dir /data": "dir " + inside, "/run/secrets/users.acl": inside + "/users.acl"} {
		if !strings.Contains(config, was) {
			t.Fatalf("valkey.conf does not have %s", was)
		}
		config = strings.Replace(config, was, is, 1)
	}
	for name, text := range map[string]string{"valkey.conf": config + "\n", "users.acl": files.read("secrets/valkey-users.acl") + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address = freeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	c := exec.Command("/usr/bin/valkey-server", inside+"/valkey.conf", "--bind", "127.0.0.1", "--port", port)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: system, Pdeathsig: syscall.SIGKILL}
	var log bytes.Buffer
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil || t.Failed() {
			t.Logf("Valkey ended (%v) and said:\n%s", err, &log)
		}
	})
	brokertest.Eventually(t, "Valkey answers", func() bool {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	return address
}
