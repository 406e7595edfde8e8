// Command redrive is the service and its command line.
package main

import (
	"os"

	"github.com/redrive-mq/redrive/cmd/redrive/signals"
	"github.com/redrive-mq/redrive/internal/cli"
)

// Set when a release is built.
var version, commit, date string

func main() {
	code := cli.Run(signals.Context, os.Args[1:], os.Stdout, os.Stderr, cli.Build{Version: version, Commit: commit, Date: date})
	signals.Stop()
	os.Exit(code)
}
