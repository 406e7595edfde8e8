// Command redrive is the service and its command line.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redrive-mq/redrive/internal/cli"
)

// Set when a release is built.
var version, commit, date string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr, cli.Build{Version: version, Commit: commit, Date: date})
	stop()
	os.Exit(code)
}
