// Command redrive is the service and its command line.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redrive-mq/redrive/internal/cli"
)

// version is set when a release is built.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr, version)
	stop()
	os.Exit(code)
}
