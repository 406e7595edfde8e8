// Command brokers starts one private RabbitMQ node of each version, runs a
// command with REDRIVE_TEST_BROKERS set, and ends the nodes, whatever happens:
//
//	go run ./test/brokers go test ./...
//
// With BROKERS (AMQP URLs, separated by commas or spaces; the management API is
// expected on port 15672 of the same host, or as MANAGEMENT names it in the same
// order) it starts nothing and uses those.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
	"github.com/redrive-mq/redrive/internal/rabbitnode"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var list []brokertest.Broker
	if given := brokertest.Given(os.Getenv("BROKERS"), os.Getenv("MANAGEMENT")); len(given) > 0 {
		list = given
	} else {
		dir := os.Getenv("REDRIVE_BROKERS_DIR")
		if dir == "" {
			dir = ".brokers"
		}
		cwd, err := os.Getwd()
		if err != nil {
			return fail(err)
		}
		if !strings.HasPrefix(dir, "/") {
			dir = cwd + "/" + dir
		}
		for _, root := range []string{"", dir + "/sid"} {
			n, err := rabbitnode.Start(ctx, rabbitnode.Options{Root: root,
				// What it says of a quorum queue is up to so old, 5 s by default.
				Args: "-rabbit quorum_tick_interval 500"})
			if err != nil {
				return fail(err)
			}
			defer n.Stop()
			list = append(list, brokertest.Broker{AMQP: n.URL(), Management: n.Management(), Root: root, Private: true, Group: n.Group()})
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
	c.Env = append(os.Environ(), brokertest.Env+"="+brokertest.Encode(list))
	if err := c.Run(); err != nil {
		if code := c.ProcessState.ExitCode(); code > 0 {
			return code
		}
		return fail(err)
	}
	return 0
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "brokers:", err)
	return 1
}
