// Command redrive is the service and its command line.
package main

import (
	"os"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/interrupt"
)

// Set when a release is built.
var version, commit, date string

func main() {
	code := cli.Run(interrupt.Context, os.Args[1:], os.Stdout, os.Stderr,
		cli.Build{Version: version, Commit: commit, Date: date})
	interrupt.Stop()
	os.Exit(code)
}
