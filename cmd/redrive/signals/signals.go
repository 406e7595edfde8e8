// Package signals installs the handler of SIGINT and SIGTERM while the program is initialized. It
// imports nothing beyond os/signal and what that needs, so that Go initializes it before the
// packages of the service, which takes 90 ms on a slow machine. Whatever arrives before it (Go's
// runtime itself needs about a millisecond) ends the program by the signal, with nothing begun.
package signals

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Context ends at the first signal. Stop restores what signals do by default.
var Context, Stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
