package faults_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

// The service's own binary, built once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "redrive-faults-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "redrive")
	out, err := exec.Command("go", "build", "-o", path, "../../cmd/redrive").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// These tests wait far more than they work. With more at once they would keep each other
// from answering in time, since some have nodes of their own.
func TestMain(m *testing.M) {
	brokertest.AlsoByTLS()
	flag.Parse()
	parallel := "4"
	if *soakBudget > 0 {
		parallel = "32" // of one row, that wait even more
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	code := m.Run()
	if path, err := binary(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// process is the service as users run it.
type process struct {
	t      *testing.T
	config string
	url    string
	listen string
	store  string // the value of its store: in YAML
	log    bytes.Buffer
	cmd    *exec.Cmd
}

// newProcess prepares a service with a data folder of its own.
func newProcess(t *testing.T, url string) *process {
	t.Helper()
	dir := t.TempDir()
	ports, err := subprocess.Ports(1)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, config: filepath.Join(dir, "redrive.yaml"), url: url, listen: fmt.Sprintf("127.0.0.1:%d", ports[0])}
	p.store = fmt.Sprintf("{disk: %s}", p.data())
	p.configure(policies)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			log := p.log.String()
			t.Logf("the service said:\n%s", log[max(0, len(log)-4000):])
		}
	})
	return p
}

// configure writes its file.
func (p *process) configure(policies string) {
	p.t.Helper()
	yaml := fmt.Sprintf("store: %s\nlisten: %s\n%s\n", p.store, p.listen, policies)
	if err := os.WriteFile(p.config, []byte(yaml), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) data() string { return filepath.Join(filepath.Dir(p.config), "data") }

func (p *process) start() {
	p.t.Helper()
	path, err := binary()
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd = exec.Command(path, "serve", "--config", p.config)
	p.cmd.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+p.url)
	p.cmd.Stderr = &p.log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// supervise starts it, and again when it ends, as systemd would, until the test
// ends. ends tells how often that was.
func (p *process) supervise() (ends func() int) {
	var n atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ; ctx.Err() == nil; n.Add(1) {
			p.start()
			stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
			_ = p.cmd.Wait()
			stop()
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
		p.cmd = nil
	})
	p.t.Cleanup(func() { cancel(); running.Wait() })
	return func() int { return int(n.Load()) }
}

// kill ends it as the OOM killer does.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

// term asks it to stop, and waits.
func (p *process) term() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err := p.cmd.Wait()
	p.cmd = nil
	return err
}

// readyz is what the service says is wrong: "" when it is ready and no queue has
// troubles of its own.
func (p *process) readyz() string {
	resp, err := http.Get("http://" + p.listen + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return strings.TrimSpace(string(text))
	}
	var queues []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "queue ") || strings.HasPrefix(line, "consumers of queue ") {
			queues = append(queues, line)
		}
	}
	return strings.Join(queues, "")
}

// waitReady allows for six nodes of RabbitMQ that start beside it on two cores.
func (p *process) waitReady() {
	p.t.Helper()
	brokertest.EventuallyWithin(p.t, 5*time.Minute, "the service is ready", func() bool { return p.readyz() == "" })
}

// cli runs a command against the service, and returns what it prints.
func (p *process) cli(args ...string) string {
	p.t.Helper()
	path, err := binary()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := exec.Command(path, append(args, "--address", p.listen)...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("redrive %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// consuming runs a tally's consumer until the test ends.
func consuming(t *testing.T, l *tally) {
	ctx, cancel := context.WithCancel(context.Background())
	var w sync.WaitGroup
	w.Go(func() { l.consume(ctx) })
	t.Cleanup(func() { cancel(); w.Wait() })
}

const acknowledgedWithin = 2 * time.Minute
