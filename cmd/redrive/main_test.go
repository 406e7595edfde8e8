package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A signal while packages are initialized is one to stop cleanly: its handler is installed before
// any package of other modules that needs the operating system.
func TestSignalsAreHandledBeforeThePackagesOfTheService(t *testing.T) {
	c := exec.Command(os.Args[0], "-test.run=^$")
	c.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	trace, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, trace)
	}
	const handler = "github.com/redrive-mq/redrive/cmd/redrive/signals"
	var after []string // the packages since os/signal
	for line := range strings.Lines(string(trace)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "init" {
			if after = append(after, fields[1]); fields[1] == "os/signal" {
				after = nil
			}
			if fields[1] == handler {
				if len(after) > 1 {
					t.Errorf("initialized before the handler: %s", after)
				}
				return
			}
		}
	}
	t.Errorf("%s is not initialized:\n%s", handler, trace)
}
