package faults_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
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

func TestMain(m *testing.M) {
	brokertest.AlsoByTLS()
	code := m.Run()
	if path, err := binary(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

var must, errOf = expect.NoError, expect.ErrOf

// times counts to plain, and in a long run to long.
func times(plain, long int) iter.Seq[int] {
	if brokertest.Long() {
		plain = long
	}
	return func(yield func(int) bool) {
		for i := 0; i < plain && yield(i); i++ {
		}
	}
}

// longOnly skips what shorter runs leave out.
func longOnly(t *testing.T) {
	t.Helper()
	if !brokertest.Long() {
		t.Skip("not run: `make test-long` runs it")
	}
}

// random is seeded, and logs its seed.
func random(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// process is the service as users run it.
type process struct {
	httpapi.Client
	t      *testing.T
	config string
	url    string // of the broker
	listen string
	store  string // the value of its store: in YAML
	log    brokertest.Output
	cmd    *exec.Cmd
}

// adopt adopts what is in a queue, and waits for the end.
func (p *process) adopt(r operations.PlanRequest) operations.Operation {
	p.t.Helper()
	op := p.beginAdoption(r, 0)
	p.awaitEnd(&op)
	return op
}

func (p *process) beginAdoption(r operations.PlanRequest, rate float64) operations.Operation {
	p.t.Helper()
	r.Verb = actions.Adopt
	plan, err := p.Plan(p.t.Context(), r)
	must(p.t, err)
	op, err := p.Start(p.t.Context(), plan.ID, operations.Start{Rate: rate})
	must(p.t, err)
	return op
}

func (p *process) awaitEnd(op *operations.Operation) {
	p.t.Helper()
	brokertest.Eventually(p.t, "the operation ends", func() (ended bool) {
		is, err := p.Operation(p.t.Context(), op.ID)
		must(p.t, err)
		*op = is
		return op.Ended != nil
	})
}

// serve starts a service of the queue orders, and waits until it is ready.
func serve(t *testing.T, v *brokertest.VHost, policies string) *process {
	t.Helper()
	p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
	p.configure(policies)
	p.start()
	p.waitReady()
	return p
}

// newProcess prepares a service with a data folder of its own.
func newProcess(t *testing.T, url string) *process {
	t.Helper()
	dir := t.TempDir()
	ports, err := subprocess.Ports(1)
	must(t, err)
	p := &process{t: t, config: filepath.Join(dir, "redrive.yaml"), url: url, listen: fmt.Sprintf("127.0.0.1:%d", ports[0])}
	p.Client = httpapi.Client{Addr: p.listen}
	p.store = fmt.Sprintf("{disk: %q}", p.data())
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
	must(p.t, os.WriteFile(p.config, []byte(yaml), 0o600))
}

func (p *process) data() string { return filepath.Join(filepath.Dir(p.config), "data") }

func (p *process) start() {
	p.t.Helper()
	path, err := binary()
	must(p.t, err)
	p.cmd = exec.Command(path, "serve", "--config", p.config)
	p.cmd.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+p.url)
	p.cmd.Stderr = &p.log
	must(p.t, p.cmd.Start())
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

// term asks it to stop, which it must do without an error.
func (p *process) term() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	err := p.cmd.Wait()
	p.cmd = nil
	if err != nil {
		p.t.Errorf("after SIGTERM: %v", err)
	}
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

func (p *process) waitReady() {
	p.t.Helper()
	brokertest.Eventually(p.t, "the service is ready", func() bool { return p.readyz() == "" })
}

// cli runs a command against the service, and returns what it prints.
func (p *process) cli(args ...string) string {
	p.t.Helper()
	path, err := binary()
	must(p.t, err)
	out, err := exec.Command(path, append(args, "--address", p.listen)...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("redrive %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(s))
}

// ended reports whether it ended by itself.
func (p *process) ended() bool {
	pid, err := syscall.Wait4(p.cmd.Process.Pid, nil, syscall.WNOHANG, nil)
	return err != nil || pid != 0
}

// balances fails the test when the service's own account of its messages does not balance.
func (p *process) balances(flags ...string) {
	p.t.Helper()
	p.t.Log(p.cli(append([]string{"ledger", "--recount"}, flags...)...))
}

// replicas are n services on one store in Redis, not started yet.
func replicas(t *testing.T, v *brokertest.VHost, n int, url, settings string, lease time.Duration) []*process {
	t.Helper()
	var all []*process
	for range n {
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders", "other")))
		p.store = fmt.Sprintf("{disk: %q, redis: {url: %q, %s, lease: %s}}", p.data(), url, settings, lease)
		p.configure(unbroken)
		all = append(all, p)
	}
	return all
}

// start starts services, and waits until they are ready.
func start(all []*process) {
	for _, p := range all {
		p.start()
	}
	for _, p := range all {
		p.waitReady()
	}
}

// sees waits until each of these replicas shows all of them and no one else, of which one
// leads, and returns that one.
func sees(t *testing.T, all ...*process) (leader *process) {
	t.Helper()
	brokertest.Eventually(t, fmt.Sprintf("%d replicas with one leader", len(all)), func() bool {
		leader = nil
		for _, p := range all {
			o, err := p.Overview(context.Background())
			leads := slices.IndexFunc(o.Replicas, func(r inspect.Replica) bool { return r.Leads })
			if err != nil || len(o.Replicas) != len(all) || leads < 0 {
				return false
			}
			if o.Replicas[leads].Self {
				leader = p
			}
		}
		return leader != nil
	})
	return leader
}

// consuming runs a tally's consumer until the test ends.
func consuming(t *testing.T, l *tally) {
	ctx, cancel := context.WithCancel(context.Background())
	var w sync.WaitGroup
	w.Go(func() { l.consume(ctx) })
	t.Cleanup(func() { cancel(); w.Wait() })
}
