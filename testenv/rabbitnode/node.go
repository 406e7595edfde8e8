// Package rabbitnode runs a private RabbitMQ node on loopback, for `make run` and
// the tests: away from the standard ports, in a folder of its own, reading no
// configuration of the machine, and gone when its owner is, however that ends.
package rabbitnode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

// ErrNotInstalled: there is no RabbitMQ to run.
var ErrNotInstalled = errors.New("RabbitMQ is not installed")

// Options of a node.
type Options struct {
	// Root is a folder with a whole system in it, to change root into; "" uses
	// the RabbitMQ installed on this machine.
	Root string
	// Config is added to rabbitmq.conf.
	Config string
	// Args are added to those of the Erlang virtual machine.
	Args string
	// Authority, when not nil, gives it a certificate, and listeners for TLS besides.
	Authority *authority.Authority
}

// Node is a RabbitMQ node that this process owns. Its methods are for one
// goroutine at a time.
type Node struct {
	opts         Options
	dir          string // as this process sees it
	inside       string // as the node sees it
	server       string
	name         string
	amqp, http   int
	amqps, https int
	dist, epmd   int
	epmdProcess  *subprocess.Process
	epmdOf       *Node // whose epmd it uses; nil: its own
	broker       *subprocess.Process
	brokerOutput bytes.Buffer
}

// Start starts a node and waits until it takes connections.
func Start(ctx context.Context, o Options) (n *Node, err error) {
	server, err := findServer(o.Root)
	if err != nil {
		return nil, err
	}
	for tries := 3; tries > 0; tries-- {
		// A program that knows nothing of our ports may take one while the node boots.
		if n, err = startOn(ctx, o, server); err == nil || !strings.Contains(err.Error(), "eaddrinuse") {
			break
		}
	}
	return n, err
}

// startOn starts a node on ports of its own.
func startOn(ctx context.Context, o Options, server string) (*Node, error) {
	n := &Node{opts: o, server: server}
	err := n.prepare()
	if err == nil {
		err = n.configure("")
	}
	if err == nil {
		err = n.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

// findServer finds rabbitmq-server as seen from within root.
func findServer(root string) (string, error) {
	found, _ := filepath.Glob(filepath.Join(root, "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"))
	if len(found) == 0 && root == "" {
		if server, err := exec.LookPath("rabbitmq-server"); err == nil {
			return server, nil
		}
	}
	if len(found) == 0 {
		target := "install-rabbitmq"
		if root != "" {
			target = "install-rabbitmq-4"
		}
		return "", fmt.Errorf("%w in %s/usr/lib/rabbitmq: `make %s` installs it", ErrNotInstalled, root, target)
	}
	return strings.TrimPrefix(found[len(found)-1], strings.TrimSuffix(root, "/")), nil
}

// prepare takes a folder and ports.
func (n *Node) prepare() (err error) {
	base := ""
	if n.opts.Root != "" {
		base = filepath.Join(n.opts.Root, "tmp")
	}
	if n.dir, err = os.MkdirTemp(base, "redrive-rabbitmq-"); err != nil {
		return err
	}
	n.inside = n.dir
	if n.opts.Root != "" {
		n.inside = strings.TrimPrefix(n.dir, strings.TrimSuffix(n.opts.Root, "/"))
		hosts, err := os.ReadFile("/etc/hosts")
		if err == nil {
			err = os.WriteFile(filepath.Join(n.opts.Root, "etc/hosts"), hosts, 0o644)
		}
		if err != nil && os.Getuid() == 0 {
			return err
		}
	}
	ports, err := subprocess.Ports(6)
	if err != nil {
		return err
	}
	n.amqp, n.http, n.dist, n.epmd, n.amqps, n.https = ports[0], ports[1], ports[2], ports[3], ports[4], ports[5]
	n.name = fmt.Sprintf("redrive%d@localhost", n.amqp)
	return nil
}

// configure writes its files; more is added to rabbitmq.conf.
func (n *Node) configure(more string) error {
	secure, err := n.secure()
	if err != nil {
		return err
	}
	plugins := "[rabbitmq_management,rabbitmq_shovel].\n"
	if secure != "" {
		plugins = "[rabbitmq_management,rabbitmq_shovel,rabbitmq_auth_mechanism_ssl].\n"
	}
	// RabbitMQ 3.10.8 flushes a full write-ahead log for all quorum queues at once, and may crash when one
	// is deleted meanwhile: no quorum queue then answers until the node restarts (rabbitmq-server#4512, ra#484).
	// 4 GB are never full. Newer versions keep 512 MiB whatever this says.
	conf := fmt.Sprintf(`listeners.tcp.default = 127.0.0.1:%d
management.tcp.ip = 127.0.0.1
management.tcp.port = %d
collect_statistics_interval = 1000
management.sample_retention_policies.global.minute = 1
management.sample_retention_policies.basic.minute = 1
management.sample_retention_policies.detailed.10 = 1
disk_free_limit.absolute = 50MB
raft.wal_max_size_bytes = 4000000000
vm_memory_high_watermark.absolute = 4GB
log.file.level = warning
%s
%s
%s`, n.amqp, n.http, n.opts.Config, more, secure)
	for name, content := range map[string]string{"rabbitmq.conf": conf, "enabled_plugins": plugins} {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// URL is where it speaks AMQP.
func (n *Node) URL() string { return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", n.amqp) }

// Management is where its management API is.
func (n *Node) Management() string { return fmt.Sprintf("http://guest:guest@127.0.0.1:%d", n.http) }

// Group is the process group of the broker, all its helpers included.
func (n *Node) Group() int { return n.broker.Group() }

// Name is its name in Erlang.
func (n *Node) Name() string { return n.name }

// Port is its AMQP port.
func (n *Node) Port() int { return n.amqp }

// Kill ends it as a power cut would: SIGKILL to all of it.
func (n *Node) Kill() {
	n.broker.Kill()
	n.broker = nil
}

// Pause stops all of it where it is, as a virtual machine that is moved; its
// connections stay open, and nothing answers.
func (n *Node) Pause() { _ = n.broker.Pause() }

// Continue ends a Pause.
func (n *Node) Continue() { _ = n.broker.Continue() }

// Restart starts it on the data it has; kill it first when it runs.
func (n *Node) Restart(ctx context.Context) (err error) {
	if n.epmdProcess == nil && n.epmdOf == nil {
		// Started here, or the node would start one that outlives it.
		n.epmdProcess, err = n.start(io.Discard, "epmd", "-port", strconv.Itoa(n.epmd), "-address", "127.0.0.1")
		if err != nil {
			return fmt.Errorf("starting epmd: %w", err)
		}
	}
	n.brokerOutput.Reset()
	if n.broker, err = n.start(&n.brokerOutput, n.server); err != nil {
		return fmt.Errorf("starting RabbitMQ: %w", err)
	}
	// Eight that started at once, on two cores with forty processes more, took over four minutes.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for !n.answers(ctx) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("RabbitMQ did not start: %w\n%s", ctx.Err(), n.LastWords())
		case <-n.broker.Ended():
			return fmt.Errorf("RabbitMQ ended while starting:\n%s", n.LastWords())
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// answers reports whether both the management API and, as that says, AMQP are up. Whoever else
// listens on one of the ports meanwhile is not taken for it.
func (n *Node) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second) // what hangs while it starts is asked again
	defer cancel()
	type listener struct {
		Node, Protocol string
		Port           int
	}
	var overview struct {
		Node         string
		DisableStats bool `json:"disable_stats"`
		Listeners    []listener
	}
	n.ask(ctx, "overview", &overview)
	if overview.DisableStats && overview.Node == n.name { // it lists no listeners then
		c, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", n.amqp))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}
	return slices.Contains(overview.Listeners, listener{n.name, "amqp", n.amqp})
}

// ask reads what the management API answers, if it does.
func (n *Node) ask(ctx context.Context, path string, answer any) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.Management()+"/api/"+path, nil)
	if err != nil {
		return
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		defer resp.Body.Close()
		_ = json.NewDecoder(resp.Body).Decode(answer)
	}
}

// LastWords is the end of Said.
func (n *Node) LastWords() string {
	said := n.Said()
	return said[max(0, len(said)-6000):]
}

// Said is what the node printed and logged.
func (n *Node) Said() string {
	out := n.brokerOutput.String()
	logs, _ := filepath.Glob(filepath.Join(n.dir, "log", "*.log"))
	for _, l := range logs {
		data, _ := os.ReadFile(l)
		out += "\n" + string(data)
	}
	// A broker in trouble repeats itself thousands of times.
	var kept []string
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		_, what, _ := strings.Cut(line, "[") // behind the time
		if !seen[what] {
			seen[what] = true
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// Stop ends it for good, and leaves nothing behind.
func (n *Node) Stop() error {
	n.broker.Kill() // nothing of it is kept, so nothing need be saved
	n.epmdProcess.Kill()
	n.broker, n.epmdProcess = nil, nil
	if n.dir == "" {
		return nil
	}
	return os.RemoveAll(n.dir)
}

// Eval runs an Erlang expression on the node and returns its value. It uses erl_call, since `rabbitmqctl eval` starts an
// Erlang virtual machine, which costs a second of CPU. erl_call itself can crash (SIGSEGV, seen once); then the
// expression is evaluated again, so twice must be as good as once.
func (n *Node) Eval(ctx context.Context, expression string) (string, error) {
	const unreachable = 1 // nothing was evaluated
	for began := time.Now(); ; {
		c := n.command(ctx, "erl_call", "-sname", n.name, "-fetch_stdout", "-no_result_term", "-e")
		c.Stdin = strings.NewReader(`try io:format("~tp~n", [begin ` + strings.TrimSuffix(expression, ".") +
			` end]) catch C:R -> io:format("~tp: ~tp", [C, R]) end.` + "\n")
		out, err := c.CombinedOutput()
		var e *exec.ExitError
		again := errors.As(err, &e) && (e.ExitCode() == unreachable || e.ExitCode() < 0 && ctx.Err() == nil)
		if again && time.Since(began) < time.Minute {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err == nil && !bytes.HasSuffix(out, []byte("\n")) {
			err = errors.New("it has no value")
		}
		if err != nil {
			return "", fmt.Errorf("evaluating %q: %w: %s", expression, err, out)
		}
		return string(out), nil
	}
}

// Shell runs a command line, with RabbitMQ's commands, as the node's administrator
// would.
func (n *Node) Shell(ctx context.Context, line string) (string, error) {
	return n.run(ctx, "/bin/sh", "-c", line)
}

func (n *Node) run(ctx context.Context, name string, args ...string) (string, error) {
	out, err := n.command(ctx, name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(name), args[0], err, out)
	}
	return string(out), nil
}

// command is how to run something as the node sees the world.
func (n *Node) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	name, args = subprocess.InRoot(n.opts.Root, name, args...)
	c := exec.CommandContext(ctx, name, args...)
	c.Env = []string{
		"PATH=" + filepath.Dir(n.server) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		"HOME=" + n.inside,
		"RABBITMQ_NODENAME=" + n.name,
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(n.dist),
		"ERL_EPMD_PORT=" + strconv.Itoa(n.epmd),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_MNESIA_BASE=" + n.inside + "/data",
		"RABBITMQ_LOG_BASE=" + n.inside + "/log",
		"RABBITMQ_CONFIG_FILE=" + n.inside + "/rabbitmq.conf",
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + n.inside + "/enabled_plugins",
		"RABBITMQ_PID_FILE=" + n.inside + "/pid",
		"RABBITMQ_CONF_ENV_FILE=" + n.inside + "/none",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 " + n.opts.Args,
	}
	if dir := os.Getenv("RABBITMQ_PLUGINS_DIR"); dir != "" && n.opts.Root == "" {
		c.Env = append(c.Env, "RABBITMQ_PLUGINS_DIR="+dir)
	}
	return c
}

func (n *Node) start(output io.Writer, name string, args ...string) (*subprocess.Process, error) {
	c := n.command(context.Background(), name, args...)
	c.Stdout, c.Stderr = output, output
	return subprocess.Start(c, n.dir)
}

// secure gives the node a certificate, and is what rabbitmq.conf says of it: clients may
// have a certificate, and are the user of its common name by SASL EXTERNAL.
func (n *Node) secure() (string, error) {
	if n.opts.Authority == nil {
		return "", nil
	}
	leaf := authority.Leaf{User: "rabbitmq", Hosts: []string{"127.0.0.1", "localhost"}}
	return fmt.Sprintf(`
listeners.ssl.default = 127.0.0.1:%[1]d
ssl_options.cacertfile = %[3]s/ca.pem
ssl_options.certfile = %[3]s/cert.pem
ssl_options.keyfile = %[3]s/key.pem
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
management.ssl.ip = 127.0.0.1
management.ssl.port = %[2]d
management.ssl.cacertfile = %[3]s/ca.pem
management.ssl.certfile = %[3]s/cert.pem
management.ssl.keyfile = %[3]s/key.pem
`, n.amqps, n.https, n.inside), n.opts.Authority.Install(n.dir, leaf)
}

// SecureURL is where it speaks AMQP by TLS.
func (n *Node) SecureURL() string { return fmt.Sprintf("amqps://guest:guest@127.0.0.1:%d/", n.amqps) }

// SecureManagement is where its management API is by TLS.
func (n *Node) SecureManagement() string {
	return fmt.Sprintf("https://guest:guest@127.0.0.1:%d", n.https)
}

// Cluster is several nodes of one RabbitMQ cluster, on loopback. Its methods are for
// one goroutine at a time.
type Cluster struct{ Nodes []*Node }

// cookie is the secret that lets the nodes of a cluster speak to each other. They
// listen on loopback alone.
const cookie = "redrive"

// FoundCluster starts the first of so many nodes; Grow starts the others. In a
// minority nodes of RabbitMQ 3 pause; RabbitMQ 4.3 has no such choice.
func FoundCluster(ctx context.Context, o Options, size int) (*Cluster, error) {
	server, err := findServer(o.Root)
	if err != nil {
		return nil, err
	}
	// Erlang would take away connections between nodes that see each other, when
	// they do not see the same others.
	o.Args += " -kernel prevent_overlapping_partitions false"
	c := &Cluster{}
	for range size {
		n := &Node{opts: o, server: server}
		c.Nodes = append(c.Nodes, n)
		if err == nil {
			err = n.prepare()
		}
		if err == nil {
			err = c.join(n)
		}
	}
	if err == nil {
		err = c.Nodes[0].Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// join writes what makes a node one of the cluster: the others join the first when
// they start for the first time.
func (c *Cluster) join(n *Node) error {
	first := c.Nodes[0]
	more := "cluster_partition_handling = pause_minority\n"
	if n != first {
		n.epmd, n.epmdOf = first.epmd, first
		more += "cluster_formation.peer_discovery_backend = classic_config\n"
		for i, peer := range []*Node{first, n} {
			more += fmt.Sprintf("cluster_formation.classic_config.nodes.%d = %s\n", i+1, peer.name)
		}
	}
	return errors.Join(n.configure(more), os.WriteFile(filepath.Join(n.dir, ".erlang.cookie"), []byte(cookie), 0o400))
}

// Grow starts all but the first, and waits until all know each other.
func (c *Cluster) Grow(ctx context.Context) error {
	failed := make([]error, len(c.Nodes))
	var starting sync.WaitGroup
	for i, n := range c.Nodes[1:] {
		starting.Go(func() { failed[i] = n.Restart(ctx) })
	}
	starting.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	return c.Await(ctx)
}

// Await waits until every node says that every other runs.
func (c *Cluster) Await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, n := range c.Nodes {
		for !n.sees(ctx, len(c.Nodes)) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s does not see all nodes of its cluster:\n%s", n.name, n.LastWords())
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return nil
}

// sees reports whether a node knows that so many run.
func (n *Node) sees(ctx context.Context, want int) bool {
	var all []struct{ Running bool }
	n.ask(ctx, "nodes", &all)
	running := 0
	for _, n := range all {
		if n.Running {
			running++
		}
	}
	return running == want
}

// URL is where its nodes speak AMQP.
func (c *Cluster) URL() string { return c.addresses((*Node).URL) }

// Management is where their management APIs are.
func (c *Cluster) Management() string { return c.addresses((*Node).Management) }

// SecureURL and SecureManagement are the same by TLS.
func (c *Cluster) SecureURL() string        { return c.addresses((*Node).SecureURL) }
func (c *Cluster) SecureManagement() string { return c.addresses((*Node).SecureManagement) }

func (c *Cluster) addresses(of func(*Node) string) string {
	var all []string
	for _, n := range c.Nodes {
		all = append(all, of(n))
	}
	return connect.JoinURLs(all)
}

// Node is the one of a name, or of an address that is host:port; nil: there is none.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		is := func(port int) bool { return strings.HasSuffix(name, fmt.Sprintf(":%d", port)) }
		if n.name == name || is(n.amqp) || is(n.amqps) {
			return n
		}
	}
	return nil
}

// Isolate parts a node from all others: both sides hang up, and neither lets the other
// in again.
func (c *Cluster) Isolate(ctx context.Context, n *Node) error {
	return c.eachOther(ctx, n, "erlang:set_cookie(N, isolated), erlang:disconnect_node(N)")
}

// Rejoin ends an Isolate.
func (c *Cluster) Rejoin(ctx context.Context, n *Node) error {
	return c.eachOther(ctx, n, "erlang:set_cookie(N, erlang:get_cookie()), net_kernel:connect_node(N)")
}

// eachOther has a node do something in Erlang with each other, N.
func (c *Cluster) eachOther(ctx context.Context, n *Node, do string) error {
	var others []string
	for _, other := range c.Nodes {
		if other != n {
			others = append(others, "'"+other.name+"'")
		}
	}
	_, err := n.Eval(ctx, "[begin "+do+" end || N <- ["+strings.Join(others, ", ")+"]].")
	return err
}

// Stop ends all nodes for good, and leaves nothing behind.
func (c *Cluster) Stop() error {
	var all []error
	for _, n := range slices.Backward(c.Nodes) { // the first has the epmd
		all = append(all, n.Stop())
	}
	return errors.Join(all...)
}

// LastWords are those of all nodes.
func (c *Cluster) LastWords() string {
	var all []string
	for _, n := range c.Nodes {
		all = append(all, n.name+":\n"+n.LastWords())
	}
	return strings.Join(all, "\n")
}
