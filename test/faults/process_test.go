package faults_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
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
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

func TestMain(m *testing.M) {
	brokertest.AlsoByTLS()
	os.Exit(m.Run())
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
	r.Verb = actions.Adopt
	op := p.begin(r, 0)
	p.awaitEnd(&op)
	return op
}

// begin plans an operation and starts it.
func (p *process) begin(r operations.PlanRequest, rate float64) operations.Operation {
	p.t.Helper()
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

// messages are all that a query finds.
func (p *process) messages(query string) (all []inspect.Message) {
	p.t.Helper()
	for after := ""; ; {
		page, err := p.Messages(p.t.Context(), query, after, 1000)
		must(p.t, err)
		all = append(all, page.Messages...)
		if after = page.After; after == "" {
			return all
		}
	}
}

// count is how many messages a query finds; -1 when the service does not say.
func (p *process) count(query string) int64 {
	count, err := p.Count(context.Background(), query)
	if err != nil {
		return -1
	}
	return count.Count
}

// says waits until all of these are in what the service says is wrong.
func (p *process) says(texts ...string) {
	p.t.Helper()
	brokertest.Eventually(p.t, fmt.Sprintf("the service says %q", texts), func() bool {
		wrong := p.readyz()
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(wrong, text) })
	})
}

// serve starts a service of the queue orders, and waits until it is ready.
func serve(t *testing.T, v *brokertest.VHost, policies string) *process {
	t.Helper()
	p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
	p.configure(policies)
	p.serve()
	return p
}

// newProcess prepares a service with a data folder of its own.
func newProcess(t *testing.T, url string) *process {
	t.Helper()
	dir := t.TempDir()
	p := &process{t: t, config: filepath.Join(dir, "redrive.yaml"), url: url, listen: brokertest.Address(t)}
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
	p.cmd = exec.Command(brokertest.Redrive(p.t), "serve", "--config", p.config)
	p.cmd.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+p.url)
	p.cmd.Stderr = &p.log
	must(p.t, p.cmd.Start())
}

// serve starts it, and waits until it is ready.
func (p *process) serve() {
	p.t.Helper()
	p.start()
	p.waitReady()
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
	out, err := exec.Command(brokertest.Redrive(p.t), append(args, "--address", p.listen)...).CombinedOutput()
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

var (
	soakBudget = flag.Duration("budget", 0,
		"TestSoak: how long all rows together may take; without it TestSoak does nothing")
	soakOnly = flag.String("only", "", "TestSoak: the rows whose names match this regular expression")
)

// soakRow is one fault.
type soakRow struct {
	name  string
	share int // of the time
	run   func(*testing.T, *soakRow)
	until time.Time
	parts []*soakPart
}

// soakRows are the faults that `make soak` repeats.
var soakRows = []*soakRow{
	{name: "kill -9 of the service", share: 4, run: onBrokers(func(t *testing.T, l *tally, kills iter.Seq[int]) {
		killing(t, newProcess(t, l.v.ServiceURL(brokertest.Works("orders"))), true, kills, l)
	})},
	{name: "kill -9 of one of two replicas", share: 3, run: onRedis(killingReplicas)},
	{name: "power cut", share: 2, run: onBrokers(cuttingPower)},
	{name: "connections to RabbitMQ cut", share: 2, run: onBrokers(cuttingConnections)},
	{name: "connecting to RabbitMQ cut at any byte", share: 4,
		run: onBrokers(func(t *testing.T, l *tally, cuts iter.Seq[int]) {
			l.various = false // large bodies would be most of what can be cut
			cuttingAtBytes(t, l, cuts)
		})},
	{name: "connecting to Redis cut at any byte", share: 3,
		run: onRedis(func(t *testing.T, l *tally, o redisnode.Options, cuts iter.Seq[int]) {
			l.various = false
			cuttingRedisAtBytes(t, l, o, time.Now().UnixNano()%2 == 0, cuts)
		})},
	{name: "kill -9 of RabbitMQ", share: 4, run: onNodes},
	{name: "kill -9 of Redis", share: 2, run: onRedis(killingRedis)},
}

// TestSoak repeats faults for as long as -budget says, and prints what became of the messages.
// Without -budget it does nothing: each row is a test of its own, with fewer faults.
func TestSoak(t *testing.T) {
	if *soakBudget == 0 {
		return
	}
	only, err := regexp.Compile(*soakOnly)
	must(t, err)
	var versions []string
	for _, b := range brokertest.All(t) {
		versions = append(versions, b.Version)
	}
	began, shares := time.Now(), 0
	rows := slices.DeleteFunc(soakRows, func(r *soakRow) bool { return !only.MatchString(r.name) })
	for _, r := range rows {
		shares += r.share
	}
	if len(rows) == 0 {
		t.Fatalf("no row has a name that matches %q", *soakOnly)
	}
	t.Cleanup(func() {
		commit, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
		fmt.Printf("%s, commit %s, RabbitMQ %s, %s, %d cores, %s:\n\n    make soak SOAKFLAGS=%q\n\n%s",
			began.UTC().Format("2006-01-02 15:04 UTC"),
			strings.TrimSpace(string(commit)), strings.Join(versions, " and "), runtime.Version(), runtime.NumCPU(),
			time.Since(began).Round(time.Second), os.Getenv("SOAKFLAGS"), soakTable(rows))
	})
	for _, r := range rows {
		left := *soakBudget - time.Since(began)
		r.until = time.Now().Add(left * time.Duration(r.share) / time.Duration(shares))
		shares -= r.share
		t.Run(r.name, func(t *testing.T) { r.run(t, r) })
	}
}

// soakPart is a fault on one RabbitMQ or Redis.
type soakPart struct {
	on           string
	until        time.Time
	done, failed int // faults, and episodes
	sums         sums
	took         time.Duration
}

// repeat runs episodes on something until the row's time is over or one of them fails: at least
// one, each in a test of its own that is given its faults. It runs beside the row's other parts.
func (r *soakRow) repeat(t *testing.T, on string, episode func(*testing.T, *soakPart)) {
	p := &soakPart{on: on, until: r.until}
	r.parts = append(r.parts, p)
	t.Run(on, func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		defer func() { p.took = time.Since(began) }()
		for n := 1; n == 1 || time.Now().Before(p.until); n++ {
			if !t.Run(fmt.Sprint(n), func(t *testing.T) { episode(t, p) }) {
				p.failed++
				return
			}
		}
	})
}

// faults counts those of one episode, so many at most.
func (p *soakPart) faults(most int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; i < most && (i == 0 || time.Now().Before(p.until)); i++ {
			if !yield(i) {
				return
			}
			p.done++
		}
	}
}

// newTally is a tally of various messages, which counts for the part.
func (p *soakPart) newTally(t *testing.T, v *brokertest.VHost) *tally {
	l := newTally(t, v, "orders")
	l.various = true
	t.Cleanup(func() { p.sums.add(l.result()) })
	return l
}

// onBrokers runs episodes on each broker, plain and by TLS.
func onBrokers(episode func(*testing.T, *tally, iter.Seq[int])) func(*testing.T, *soakRow) {
	return func(t *testing.T, r *soakRow) {
		for _, b := range brokertest.All(t) {
			for _, how := range []string{"plain", "TLS"} {
				b := b
				if how == "TLS" {
					if b.Authority == "" {
						continue // somebody else's
					}
					b.AMQP, b.Management = b.AMQPS, b.HTTPS
				}
				r.repeat(t, fmt.Sprintf("RabbitMQ %s, %s", b.Version, how), func(t *testing.T, p *soakPart) {
					episode(t, p.newTally(t, brokertest.NewVHost(t, b)), p.faults(30))
				})
			}
		}
	}
}

// onRedis runs episodes with Redis beside one of the brokers and with Valkey beside the other.
func onRedis(episode func(*testing.T, *tally, redisnode.Options, iter.Seq[int])) func(*testing.T, *soakRow) {
	return func(t *testing.T, r *soakRow) {
		brokers := brokertest.All(t)
		for i, o := range redisnode.Both(t) {
			b := brokers[min(i, len(brokers)-1)]
			r.repeat(t, fmt.Sprintf("%s, RabbitMQ %s", o.Name(), b.Version), func(t *testing.T, p *soakPart) {
				episode(t, p.newTally(t, brokertest.NewVHost(t, b)), o, p.faults(25))
			})
		}
	}
}

// onNodes kills nodes of their own.
func onNodes(t *testing.T, r *soakRow) {
	for _, b := range brokertest.All(t) {
		if !b.Private {
			continue // somebody else's
		}
		r.repeat(t, "RabbitMQ "+b.Version, func(t *testing.T, p *soakPart) {
			v, n := brokertest.NewPrivate(t, b, "")
			killingRabbitMQ(t, p.newTally(t, v), n, p.faults(20), nil)
		})
	}
}

func soakTable(rows []*soakRow) string {
	var b strings.Builder
	b.WriteString("| fault | on | done | messages | lost | early | changed | doubled | doubled without a fault that explains it | took |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		for _, p := range r.parts {
			done := fmt.Sprint(p.done)
			if p.failed > 0 {
				done += ", and failed"
			}
			s := p.sums
			fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %d | %d | %d | %s |\n", r.name, p.on, done,
				s.Messages, s.Lost, s.Early, s.Changed, s.Doubled, s.Unexplained, p.took.Round(time.Second))
		}
	}
	return b.String()
}
