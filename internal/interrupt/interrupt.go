// Package interrupt receives SIGINT and SIGTERM as early as a Go program can. Go initialises a
// package as soon as all that it imports is initialised, so this one is ahead of some 200 others
// that main waits for: a signal that came in between would kill the process.
package interrupt

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Context ends at the first SIGINT or SIGTERM. After Stop the next one kills the process.
var Context, Stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
