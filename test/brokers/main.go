// Command brokers starts one private RabbitMQ node of each version, runs a
// command with REDRIVE_TEST_BROKERS set, and ends the nodes, whatever happens:
//
//	go run ./test/brokers go test ./...
//
// With BROKERS (AMQP URLs, separated by commas or spaces; the management API is
// expected on port 15672 of the same host, or as MANAGEMENT names it in the same
// order) it starts nothing and uses those.
//
// With -demo before the command it starts only the version that is installed, as it is, for `make run`.
//
// Its nodes speak TLS too, with certificates of an authority made for them, which the
// command trusts by SSL_CERT_FILE. Which tests use it, brokertest.TLSEnv says.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if args[0] == "-demo" {
		return runDemo(ctx, args[1:])
	}
	list := brokertest.Given(os.Getenv("BROKERS"), os.Getenv("MANAGEMENT"))
	dir, err := os.MkdirTemp("", "redrive-brokers-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	var nodes []*rabbitnode.Node
	if len(list) == 0 {
		ca, err := authority.New(dir)
		if err != nil {
			return fail(err)
		}
		list, nodes, err = start(ctx, ca)
		defer func() {
			for _, n := range slices.Backward(nodes) {
				_ = n.Stop()
			}
		}()
		if err != nil {
			return fail(err)
		}
	}
	for i := range list {
		if err := list[i].Ask(ctx); err != nil {
			return fail(err)
		}
		// Not on stdout, which is the command's own.
		fmt.Fprintf(os.Stderr, "RabbitMQ %s is up\n", list[i].Version)
	}
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), brokertest.Env+"="+brokertest.Encode(list), brokertest.DirEnv+"="+dir)
	if ca := list[0].Authority; ca != "" {
		trusted, err := trust(ca)
		if err != nil {
			return fail(err)
		}
		c.Env = append(c.Env, "SSL_CERT_FILE="+trusted)
	}
	if err := c.Run(); err != nil {
		for i, n := range nodes {
			for _, line := range ended.FindAllString(n.Said(), 10) {
				fmt.Fprintf(os.Stderr, "RabbitMQ %s said: %.800s\n", list[i].Version, line)
			}
		}
		if code := c.ProcessState.ExitCode(); code > 0 {
			return code
		}
		return fail(err)
	}
	return 0
}

// runDemo runs a command that shows the demo, on a node of its own.
func runDemo(ctx context.Context, args []string) int {
	fmt.Println("starting a private RabbitMQ on loopback …")
	n, err := rabbitnode.Start(ctx, rabbitnode.Options{})
	if err != nil {
		return fail(err)
	}
	defer n.Stop()
	// Ctrl-C reaches the command by itself, and a second signal would kill it.
	ending, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := exec.CommandContext(ending, args[0], args[1:]...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), "REDRIVE_DEMO_BROKER_URL="+n.URL(), "REDRIVE_DEMO_MANAGEMENT_URL="+n.Management())
	if err := c.Run(); err != nil && c.ProcessState == nil {
		return fail(err)
	}
	if c.ProcessState.ExitCode() < 0 { // it was killed
		return 1
	}
	return c.ProcessState.ExitCode()
}

// ended finds why parts of RabbitMQ ended, without which tests fail that have done nothing wrong.
var ended = regexp.MustCompile(`.*(reached_max_restart_intensity|failed to form new cluster|Reason for termination)(.*\n){4}`)

// start starts a node of each version. Stop them also after an error.
func start(ctx context.Context, ca *authority.Authority) (list []brokertest.Broker, nodes []*rabbitnode.Node, err error) {
	for _, root := range []string{"", filepath.Join(subprocess.Installed(), "sid")} {
		n, err := rabbitnode.Start(ctx, rabbitnode.Options{Root: root, Authority: ca,
			// What it says of a quorum queue is up to 0.5 s old instead of 5 s, and at-least-once dead-lettering
			// that stands still goes on after 3 s instead of 3 minutes. Nothing is synced: tests kill processes, and
			// queues of 3.10.8 end for good when a busy disk takes seconds. A handshake may take longer than
			// 10 s on a busy machine; the client would then report a wrong password.
			Args: "-rabbit quorum_tick_interval 500 -rabbit dead_letter_worker_publisher_confirm_timeout 3000 " +
				"-ra wal_sync_method none -rabbit handshake_timeout 300000"})
		if err != nil {
			return nil, nodes, err
		}
		nodes = append(nodes, n)
		if out, err := n.Eval(ctx, isolateWorkers); err != nil {
			return nil, nodes, fmt.Errorf("%w: %s", err, out)
		}
		list = append(list, brokertest.Broker{AMQP: n.URL(), Management: n.Management(), Root: root, Private: true, Group: n.Group(),
			AMQPS: n.SecureURL(), HTTPS: n.SecureManagement(), Authority: ca.Dir})
	}
	return list, nodes, nil
}

// isolateWorkers has RabbitMQ go on without a worker of at-least-once dead-lettering that crashed, as that
// of a queue deleted under load does. RabbitMQ starts it again a hundred times in half a second, which ends
// the supervisor of all workers: then no at-least-once queue of the node elects a leader until it restarts
// (rabbitmq-server#16652; the change proposed there does the same).
const isolateWorkers = `sys:replace_state(rabbit_fifo_dlx_sup, fun(S) ->
	{[Id], #{} = Children} = element(4, S),
	Child = maps:get(Id, Children),
	setelement(4, S, {[Id], #{Id => setelement(5, Child, temporary)}}) end), ok.`

// trust makes a file of the authority in a folder and of those that the system trusts.
func trust(dir string) (file string, err error) {
	ours, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return "", err
	}
	system, _ := os.ReadFile("/etc/ssl/certs/ca-certificates.crt") // elsewhere Go finds them by itself
	file = filepath.Join(dir, "trusted.pem")
	return file, os.WriteFile(file, append(ours, system...), 0o644)
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "brokers:", err)
	return 1
}
