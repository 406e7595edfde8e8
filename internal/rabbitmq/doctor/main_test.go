package doctor_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// TestMain is our command, too, where it is called by that name: what findings print is run by a
// shell.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "redrive" {
		os.Exit(cli.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr, cli.Build{Version: "test"}))
	}
	brokertest.AlsoByTLS()
	os.Exit(m.Run())
}
